import Foundation
import Wire

/// The file in which a download grows until it gets the name of its target.
///
/// It is in the target's folder and locked (flock(2)) as long as the download runs. Its name is derived from the target and,
/// if the object has more than one range, from the object's version: so a later download finds what one that was killed has
/// left, continues it or replaces it, and nothing is left behind for ever.
package struct PartFile: DownloadTarget {
    /// The target, without links.
    private let target: String
    private let reference: StorageReference
    /// The permissions of the file that is replaced.
    private let mode: mode_t?
    private var part: (path: String, descriptor: Int32)?

    private static let suffix = ".part"

    /// Checks the target. Nothing is created yet.
    /// - Throws: ``StorageError`` if the target is not a regular file, or its folder does not exist.
    package init(for path: String, of reference: StorageReference) throws(StorageError) {
        self.reference = reference
        var status = stat()
        if stat(path, &status) == 0 {
            guard LocalFile.isRegular(status) else {
                throw StorageError(.file(0), "\(path) is not a regular file.")
            }
            mode = status.st_mode & 0o777
            guard let resolved = realpath(path, nil) else { throw .file("written", path) }
            target = String(cString: resolved)
            free(resolved)
            return
        }
        guard errno == ENOENT else { throw .file("written", path) }
        guard lstat(path, &status) != 0 else {
            throw StorageError(.file(0), "\(path) is a link that leads nowhere.")
        }
        target = path
        mode = nil
        guard stat(folder, &status) == 0, status.st_mode & S_IFMT == S_IFDIR else {
            throw StorageError(.file(ENOENT), "\(path) can't be written: there is no such folder.")
        }
    }

    private var folder: String {
        guard let slash = target.utf8.lastIndex(of: UInt8(ascii: "/")) else { return "." }
        return slash == target.startIndex ? "/" : String(target[..<slash])
    }

    private var name: String {
        let slash = target.utf8.lastIndex(of: UInt8(ascii: "/"))
        return String(target[(slash.map { target.utf8.index(after: $0) } ?? target.startIndex)...])
    }

    /// What the names of all parts of this target begin with.
    private var prefix: String {
        ".sluice-\(PartFile.hash(name))-"
    }

    // MARK: Target

    /// Whether a later download continues this one: it has several ranges, and a checksum that verifies all of them.
    package static func canContinue(_ object: StorageMetadata) -> Bool {
        object.size > Download.rangeSize && ExpectedChecksum.isKnown(of: object)
    }

    /// Begins with a version of the object; see ``DownloadTarget``.
    package mutating func begin(_ object: StorageMetadata, isFresh: Bool) throws(StorageError)
        -> Int64
    {
        let isLarge = object.size > Download.rangeSize
        let version = isLarge ? PartFile.hash(identity(of: object)) : "0"
        let path = "\(folder)/\(prefix)\(version)\(PartFile.suffix)"
        if part?.path != path { try open(path, removesOthers: isLarge) }
        guard let part else { throw .file("written", target) }
        var status = stat()
        fstat(part.descriptor, &status)
        let isContinued =
            !isFresh && PartFile.canContinue(object) && Int64(status.st_size) <= object.size
        if isContinued { return Int64(status.st_size) }
        guard ftruncate(part.descriptor, 0) == 0 else { throw .file("written", target) }
        return 0
    }

    private func identity(of object: StorageMetadata) -> String {
        "\(reference.bucket)\n\(reference.fullPath)\n\(object.generation)\n\(object.size)\n"
            + "\(object.crc32c ?? "")\n\(object.md5Hash ?? "")"
    }

    package func read(_ range: Range<Int64>) throws(StorageError) -> [UInt8] {
        guard let part, let bytes = LocalFile.read(part.descriptor, range),
            bytes.count == range.count
        else { throw .file("read", part?.path ?? target) }
        return bytes
    }

    package func write(_ bytes: [UInt8], at offset: Int64) throws(StorageError) {
        guard let part, LocalFile.write(part.descriptor, bytes, at: offset) else {
            throw .file("written", target)
        }
    }

    // MARK: End

    /// Gives the file the target's name.
    /// - Parameter modified: The file's time; nil for now.
    package mutating func finish(modified: Date? = nil) throws(StorageError) {
        guard let part else { return }
        if let seconds = modified?.timeIntervalSince1970 {
            let whole = seconds.rounded(.down)
            let time = timespec(tv_sec: Int(whole), tv_nsec: Int((seconds - whole) * 1e9))
            _ = futimens(part.descriptor, [time, time])
        }
        if let mode, fchmod(part.descriptor, mode) != 0 { throw .file("written", target) }
        guard rename(part.path, target) == 0 else { throw .file("written", target) }
        keep()
    }

    /// Closes the file, from which another download can continue.
    package mutating func keep() {
        if let part { close(part.descriptor) }
        part = nil
    }

    /// Removes the file.
    package mutating func discard() {
        if let part { unlink(part.path) }
        keep()
    }

    // MARK: Files

    private mutating func open(_ path: String, removesOthers: Bool) throws(StorageError) {
        discard()
        if removesOthers { removeOthers(but: path) }
        if let descriptor = LockedFile.open(path, creates: true) {
            part = (path, descriptor)
            return
        }
        // Another download is writing it, or it belongs to somebody else.
        let other = "\(folder)/\(prefix)\(UUID().uuidString)\(PartFile.suffix)"
        guard let descriptor = LockedFile.open(other, creates: true) else {
            throw .file("written", target)
        }
        part = (other, descriptor)
    }

    /// Removes what downloads of other versions have left that do not run any more.
    private func removeOthers(but kept: String) {
        let names = (try? FileManager.default.contentsOfDirectory(atPath: folder)) ?? []
        for name in names where name.hasPrefix(prefix) && name.hasSuffix(PartFile.suffix) {
            let path = "\(folder)/\(name)"
            guard path != kept, let descriptor = LockedFile.open(path, creates: false) else {
                continue
            }
            unlink(path)
            close(descriptor)
        }
    }

    /// 16 hexadecimal digits (FNV-1a).
    private static func hash(_ text: String) -> String {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        for byte in text.utf8 { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
        let digits = String(hash, radix: 16)
        return String(repeating: "0", count: 16 - digits.utf8.count) + digits
    }
}
