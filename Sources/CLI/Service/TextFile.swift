import Glibc
import SecurityRules
import System
import Wire

/// Reads and replaces text files. The path `-` is standard input.
enum TextFile {
    /// The maximum length of a file in bytes.
    private static let maximumLength = 64 << 20

    /// Why a file can't be read or written: one line that begins with the file's name.
    struct Failure: Error, CustomStringConvertible {
        let description: String

        init(description: String) { self.description = VisibleText.escaped(description) }
    }

    /// The file's name in messages.
    static func name(_ path: String) -> String { path == "-" ? "<stdin>" : path }

    /// Reads the whole file, which must be UTF-8.
    static func read(_ path: String) throws(Failure) -> String {
        let descriptor = path == "-" ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC)
        guard descriptor >= 0 else { throw failure(path, "can't be opened") }
        defer { if path != "-" { close(descriptor) } }
        let bytes: [UInt8]
        do throws(SystemError) {
            bytes = try File.contents(of: descriptor, limit: maximumLength)
        } catch {
            if error.code != EFBIG { throw failure(path, "can't be read", error.code) }
            throw Failure(
                description: "\(name(path)): error: has more than \(maximumLength) bytes")
        }
        guard let text = String(validating: bytes, as: UTF8.self) else {
            throw Failure(description: "\(name(path)): error: is not UTF-8")
        }
        return text
    }

    /// Reads a file and makes a value of its text. Errors of `parse` get the file's name.
    static func read<Value, Malformed: Error>(
        _ path: String, as parse: (String) throws(Malformed) -> Value
    ) throws(Failure) -> Value {
        let text = try read(path)
        do throws(Malformed) {
            return try parse(text)
        } catch {
            throw Failure(description: "\(name(path)): error: \(error)")
        }
    }

    /// Replaces a file atomically and keeps its permissions, its owner and its group. A file that is not secret gets the
    /// process's owner and group if the process may not give it away.
    /// - Parameter isSecret: Whether only the owner may read a new file, and users outside of the group no file.
    static func replace(_ path: String, with text: String, isSecret: Bool = false) throws(Failure) {
        var status = stat()
        let exists = stat(path, &status) == 0
        let mode = exists ? status.st_mode & (isSecret ? 0o7770 : 0o7777) : isSecret ? 0o600 : 0o644
        // Follow a symbolic link: rename would replace the link, not its target.
        let target =
            realpath(path, nil).map { pointer in
                defer { free(pointer) }
                return String(cString: pointer)
            } ?? path
        let temporary = "\(target).\(getpid()).tmp"
        let descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode)
        guard descriptor >= 0 else { throw failure(temporary, "can't be created") }
        // If the old owner could not read the secret any more, its service would not start again.
        let keepsOwner = exists && (status.st_uid != geteuid() || status.st_gid != getegid())
        if keepsOwner, fchown(descriptor, status.st_uid, status.st_gid) != 0, isSecret {
            let failure = failure(path, "its owner and group can't be kept")
            close(descriptor)
            unlink(temporary)
            throw failure
        }
        var rest = Array(text.utf8)[...]
        var isWritten = fchmod(descriptor, mode) == 0
        while isWritten, !rest.isEmpty {
            let count = rest.withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) }
            if count < 0, errno == EINTR { continue }
            isWritten = count >= 0
            rest = rest.dropFirst(max(0, count))
        }
        isWritten = isWritten && fsync(descriptor) == 0
        isWritten = close(descriptor) == 0 && isWritten
        guard isWritten, rename(temporary, target) == 0 else {
            let failure = failure(path, "can't be written")
            unlink(temporary)
            throw failure
        }
    }

    private static func failure(_ path: String, _ what: String, _ code: Int32 = errno) -> Failure {
        Failure(description: "\(name(path)): error: \(what): \(String(cString: strerror(code)))")
    }
}
