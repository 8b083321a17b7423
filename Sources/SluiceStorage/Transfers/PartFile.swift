import Foundation
import Wire

/// The file in which a download grows until it gets the name of its target.
///
/// It is in the target's folder and locked (flock(2)) as long as the download runs. Its name is derived from the target and,
/// if the object has more than one range, from the object's version: so a later download finds what one that was killed has
/// left, continues it or replaces it, and nothing is left behind forever.
package struct PartFile: DownloadTarget {
    /// The target, without links.
    private let target: String
    /// The target for error messages.
    private let shown: String
    private let reference: StorageReference
    /// The permissions of the file that is replaced.
    private let mode: mode_t?
    private var part: (path: String, descriptor: Int32)?

    private static let start = ".sluice-"
    private static let suffix = ".part"

    /// Whether this is a name of such files. Nothing is downloaded to one, since it could be taken for a part.
    package static func isPart(_ name: String) -> Bool {
        name.hasPrefix(start) && name.hasSuffix(suffix)
    }

    /// Checks the target, and follows it if it is a link. Nothing is created yet.
    /// - Throws: ``StorageError`` if the target is not a regular file, or its folder does not exist.
    package init(for path: String, of reference: StorageReference) throws(StorageError) {
        var status = stat()
        guard stat(path, &status) == 0 else {
            try self.init(absent: path, shown: path, errno, of: reference)
            return
        }
        guard let resolved = realpath(path, nil) else { throw .file("written", path) }
        defer { free(resolved) }
        try self.init(target: String(cString: resolved), shown: path, replacing: status, of: reference)
    }

    /// The same for a name in a folder, which must not be a link.
    /// - Parameter shown: The path for error messages.
    package init(
        below folder: String, _ name: String, shown: String, of reference: StorageReference
    )
        throws(StorageError)
    {
        let path = "\(folder)/\(name)"
        var status = stat()
        guard lstat(path, &status) == 0 else {
            try self.init(absent: path, shown: shown, errno, of: reference)
            return
        }
        guard status.st_mode & S_IFMT != S_IFLNK else {
            throw StorageError(
                .file(0),
                "\(shown) is a symbolic link, which could lead out of the target. Remove it first.")
        }
        try self.init(target: path, shown: shown, replacing: status, of: reference)
    }

    private init(
        absent path: String, shown: String, _ code: Int32, of reference: StorageReference
    ) throws(StorageError) {
        errno = code
        guard code == ENOENT else { throw .file("written", shown) }
        var status = stat()
        guard lstat(path, &status) != 0 else {
            throw StorageError(.file(0), "\(shown) is a link that leads nowhere.")
        }
        try self.init(target: path, shown: shown, replacing: nil, of: reference)
        guard stat(folder, &status) == 0, status.st_mode & S_IFMT == S_IFDIR else {
            throw StorageError(.file(ENOENT), "\(shown) can't be written: there is no such folder.")
        }
    }

    private init(
        target: String, shown: String, replacing status: stat?, of reference: StorageReference
    ) throws(StorageError) {
        (self.target, self.shown, self.reference) = (target, shown, reference)
        mode = status.map { $0.st_mode & 0o777 }
        if let status {
            guard status.st_mode & S_IFMT != S_IFDIR else {
                throw StorageError(.file(0), "\(shown): a directory is in the way of the file.")
            }
            guard LocalFile.isRegular(status) else {
                throw StorageError(.file(0), "\(shown) is not a regular file.")
            }
        }
        guard !PartFile.isPart(name) else {
            throw StorageError(.file(0), "\(shown): such names belong to unfinished downloads. Choose another one.")
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

    /// The prefix of all part files of this target.
    private var prefix: String {
        "\(PartFile.start)\(LockedFile.name(for: name))-"
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
        let version = isLarge ? LockedFile.name(for: identity(of: object)) : "0"
        let path = "\(folder)/\(prefix)\(version)\(PartFile.suffix)"
        if part?.path != path { try open(path, removesOthers: isLarge) }
        guard let part else { throw .file("written", shown) }
        var status = stat()
        fstat(part.descriptor, &status)
        let isContinued = !isFresh && PartFile.canContinue(object) && Int64(status.st_size) <= object.size
        if isContinued { return Int64(status.st_size) }
        guard ftruncate(part.descriptor, 0) == 0 else { throw .file("written", shown) }
        return 0
    }

    private func identity(of object: StorageMetadata) -> String {
        "\(reference.bucket)\n\(reference.fullPath)\n\(object.generation)\n\(object.size)\n"
            + "\(object.crc32c ?? "")\n\(object.md5Hash ?? "")"
    }

    package func read(_ range: Range<Int64>) throws(StorageError) -> [UInt8] {
        guard let part, let bytes = LocalFile.read(part.descriptor, range),
            bytes.count == range.count
        else { throw .file("read", shown) }
        return bytes
    }

    package func write(_ bytes: [UInt8], at offset: Int64) throws(StorageError) {
        guard let part, LocalFile.write(part.descriptor, bytes, at: offset) else {
            throw .file("written", shown)
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
        if let mode, fchmod(part.descriptor, mode) != 0 { throw .file("written", shown) }
        guard rename(part.path, target) == 0 else { throw .file("written", shown) }
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
        // Another download is writing the file, or another user owns it.
        let other = "\(folder)/\(prefix)\(UUID().uuidString)\(PartFile.suffix)"
        guard let descriptor = LockedFile.open(other, creates: true) else {
            throw .file("written", shown)
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
}
