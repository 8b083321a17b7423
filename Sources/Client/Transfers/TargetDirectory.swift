import ClientCommands
import Foundation
import Wire

/// The directory in which a download becomes a file, below the directory that the user has named.
///
/// The names below come from the gateway. A symbolic link among them could redirect a download, so none is
/// followed, not even one that appears during the download. The directory that the user has named may be a link.
final class TargetDirectory: Sendable {
    private let descriptor: Int32

    /// A path below the opened directory, even if the directory's own path later leads elsewhere.
    var path: String { "/proc/self/fd/\(descriptor)" }

    /// Makes the directories of a file that do not exist yet.
    /// - Parameters:
    ///   - relative: The file below `base`, without empty segments, `.` and `..`.
    ///   - base: The directory that the user has named.
    init(of relative: String, below base: String) throws {
        try TargetDirectory.make(base)
        var directory = open(base, TargetDirectory.flags)
        guard directory >= 0 else { throw ClientError(base, errno) }
        var shown = base.hasSuffix("/") ? String(base.dropLast()) : base
        for name in LocalPath.parent(relative).utf8.split(separator: UInt8(ascii: "/")) {
            let name = String(decoding: name, as: UTF8.self)
            shown += "/\(name)"
            let outer = directory
            defer { close(outer) }
            guard mkdirat(outer, name, 0o777) == 0 || errno == EEXIST else {
                throw ClientError(shown, errno)
            }
            directory = openat(outer, name, TargetDirectory.flags | O_NOFOLLOW)
            guard directory >= 0 else { throw TargetDirectory.error(outer, name, shown, errno) }
        }
        descriptor = directory
    }

    deinit { close(descriptor) }

    private static let flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC

    private static func error(_ outer: Int32, _ name: String, _ shown: String, _ code: Int32)
        -> ClientError
    {
        var found = stat()
        guard fstatat(outer, name, &found, AT_SYMLINK_NOFOLLOW) == 0,
            found.st_mode & S_IFMT == S_IFLNK
        else { return ClientError(shown, code) }
        return ClientError(
            .local,
            "\(shown): a symbolic link, which could lead out of the target. Remove it, or name the directory that it leads to as the target."
        )
    }

    /// Makes a directory and those above it.
    static func make(_ path: String) throws {
        if mkdir(path, 0o777) == 0 { return }
        let code = errno
        if code == EEXIST {
            guard FileKind(path) == .directory else { throw ClientError(path, ENOTDIR) }
            return
        }
        let parent = LocalPath.parent(path)
        if code == ENOENT, !parent.isEmpty, parent != path {
            try make(parent)
            if mkdir(path, 0o777) == 0 || errno == EEXIST { return }
        }
        throw ClientError(path, code)
    }
}
