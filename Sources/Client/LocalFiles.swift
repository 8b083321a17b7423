import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// A local file.
struct LocalFile: Sendable {
    /// Below the directory that was walked.
    let relative: String
    let path: String
    let size: Int64
    /// Seconds since 1970.
    let modified: Double
}

/// The file at a path.
enum FileKind {
    case absent, regular, directory, other

    init(_ path: String) {
        var found = stat()
        guard stat(path, &found) == 0 else {
            self = .absent
            return
        }
        switch found.st_mode & S_IFMT {
        case S_IFREG: self = .regular
        case S_IFDIR: self = .directory
        default: self = .other
        }
    }
}

/// The files of a directory.
struct LocalFiles {
    /// In the order of their names' bytes.
    private(set) var files: [LocalFile] = []
    /// What could not be read, so that it is not known what it holds.
    private(set) var unreadable: [ClientError] = []
    /// What was left out below the directory, in the order of `warnings`.
    private(set) var leftOut: [String] = []
    /// Why.
    private(set) var warnings: [String] = []

    /// No files.
    init() {}

    /// Walks a directory. Symbolic links are followed to files only.
    init(_ directory: String) {
        walk(directory, "")
        files.sort { $0.relative.utf8.lexicographicallyPrecedes($1.relative.utf8) }
    }

    private mutating func walk(_ directory: String, _ prefix: String) {
        guard let stream = opendir(directory) else {
            return unreadable.append(ClientError(directory, errno))
        }
        defer { closedir(stream) }
        while let entry = readdir(stream) {
            let bytes = withUnsafeBytes(of: &entry.pointee.d_name) { name in
                Array(name.prefix { $0 != 0 })
            }
            if bytes == Array(".".utf8) || bytes == Array("..".utf8) { continue }
            guard let name = String(validating: bytes, as: UTF8.self),
                !bytes.contains(where: { $0 == 0x0a || $0 == 0x0d })
            else {
                let shown = VisibleText.escaped(String(decoding: bytes, as: UTF8.self))
                unreadable.append(
                    ClientError(
                        .local,
                        "\(directory)/\(shown): the name of an object is UTF-8 and has no line break. Rename the file."
                    ))
                continue
            }
            add(name, "\(directory)/\(name)", prefix)
        }
    }

    private mutating func add(_ name: String, _ path: String, _ prefix: String) {
        var found = stat()
        guard lstat(path, &found) == 0 else {
            return unreadable.append(ClientError(path, errno))
        }
        if found.st_mode & S_IFMT == S_IFDIR { return walk(path, "\(prefix)\(name)/") }
        if PartFile.isPart(name) { return }
        if found.st_mode & S_IFMT == S_IFLNK {
            guard stat(path, &found) == 0, found.st_mode & S_IFMT == S_IFREG else {
                return leaveOut(prefix + name, "\(path): a symbolic link, but not to a file.")
            }
        }
        guard found.st_mode & S_IFMT == S_IFREG else {
            return leaveOut(prefix + name, "\(path): not a regular file.")
        }
        files.append(
            LocalFile(
                relative: prefix + name, path: path, size: Int64(found.st_size), modified: LocalFiles.modified(found)))
    }

    private mutating func leaveOut(_ relative: String, _ reason: String) {
        leftOut.append(relative)
        warnings.append("\(reason) Left out.")
    }

    /// Whether the file is as it was found.
    static func isUnchanged(_ file: LocalFile) -> Bool {
        var found = stat()
        return stat(file.path, &found) == 0 && Int64(found.st_size) == file.size && modified(found) == file.modified
    }

    private static func modified(_ found: stat) -> Double {
        Double(found.st_mtim.tv_sec) + Double(found.st_mtim.tv_nsec) / 1e9
    }

    /// The size of a file in bytes; nil if there is none.
    static func size(_ path: String) -> Int64? {
        var found = stat()
        return stat(path, &found) == 0 ? Int64(found.st_size) : nil
    }

    /// - Throws: ``ClientError`` for the name of an object that would be a file somewhere else.
    static func check(_ relative: String) throws {
        for segment in relative.utf8.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
        where segment.isEmpty || segment.elementsEqual(".".utf8) || segment.elementsEqual("..".utf8)
            || segment.contains(0)
        {
            throw ClientError(.failure, "'\(relative)' can't be the name of a local file.")
        }
    }
}

/// Parts of local paths, by their bytes. Foundation's functions for them end the process on names of one character.
enum LocalPath {
    private static let slash = UInt8(ascii: "/")

    /// A path below a directory.
    static func path(_ directory: String, _ relative: String) -> String {
        directory.hasSuffix("/") ? directory + relative : "\(directory)/\(relative)"
    }

    /// The directory of a path; empty if it names none.
    static func parent(_ path: String) -> String {
        let bytes = Array(path.utf8)
        guard let slash = bytes.lastIndex(of: slash) else { return "" }
        return slash == 0 ? "/" : String(decoding: bytes[..<slash], as: UTF8.self)
    }

    /// The name of a file or directory.
    static func name(_ path: String) -> String {
        let name = last(path)
        guard name.isEmpty || name == "." || name == ".." else { return name }
        guard let resolved = realpath(path, nil) else { return name }
        defer { free(resolved) }
        return last(String(cString: resolved))
    }

    /// The last segment.
    static func last(_ path: String) -> String {
        String(decoding: path.utf8.split(separator: slash).last ?? [], as: UTF8.self)
    }
}
