import Foundation
import SluiceStorage
import Synchronization
import Wire

/// Where unfinished uploads are remembered: `$XDG_STATE_HOME/sluice`, or `~/.local/state/sluice`.
struct StateDirectory: Sendable {
    /// Seconds for which the state of an upload is kept: 30 days.
    private static let lifetime = 30 * 86_400
    private let path: String

    /// nil if there is none, because neither variable is set, it can't be created, or others can write to it.
    init?() {
        let state = Gateways.variable("XDG_STATE_HOME").flatMap { $0.hasPrefix("/") ? $0 : nil }
        guard let base = state ?? Gateways.variable("HOME").map({ "\($0)/.local/state" }) else {
            return nil
        }
        path = "\(base)/sluice"
        // Its content allows to continue uploads, so only the owner may read it.
        try? FileManager.default.createDirectory(
            atPath: path, withIntermediateDirectories: true,
            attributes: [.posixPermissions: 0o700])
        var found = stat()
        guard stat(path, &found) == 0, found.st_mode & S_IFMT == S_IFDIR,
            found.st_uid == geteuid(), found.st_mode & 0o022 == 0,
            access(path, W_OK | X_OK) == 0
        else { return nil }
        removeOld()
    }

    /// Removes the files of uploads that nobody has continued. The gateway has dropped them long ago.
    private func removeOld() {
        let names = (try? FileManager.default.contentsOfDirectory(atPath: path)) ?? []
        for name in names where name.hasSuffix(".json") || name.hasSuffix(".json.new") {
            let file = "\(path)/\(name)"
            var found = stat()
            guard lstat(file, &found) == 0, time(nil) - found.st_mtim.tv_sec > StateDirectory.lifetime,
                let descriptor = LockedFile.open(file, creates: false)
            else { continue }
            unlink(file)
            close(descriptor)
        }
    }

    /// The state of a transfer; nil if another process has it, or it can't be made.
    /// - Parameters:
    ///   - key: Identifies the transfer.
    ///   - creates: Whether to begin one if there is none.
    func state<Value: Codable>(_ key: [String], of type: Value.Type, creates: Bool = true)
        -> ResumeState<Value>?
    {
        // The file contains the key, so two keys with the same file name only prevent a resumption.
        let name = LockedFile.name(for: key.joined(separator: "\u{0}"))
        return ResumeState(path: "\(path)/\(name).json", key, creates: creates)
    }
}

/// The state of one unfinished transfer, in a file that this process alone uses.
final class ResumeState<Value: Codable & Sendable>: Sendable {
    private struct Content: Codable {
        let key: [String]
        let value: Value
    }
    private let path: String
    private let key: [String]
    private let descriptor: Mutex<Int32>

    fileprivate init?(path: String, _ key: [String], creates: Bool) {
        guard let descriptor = ResumeState.open(path, creates: creates) else { return nil }
        self.path = path
        self.key = key
        self.descriptor = Mutex(descriptor)
    }

    deinit { descriptor.withLock { _ = close($0) } }

    private static func open(_ path: String, creates: Bool) -> Int32? {
        guard let descriptor = LockedFile.open(path, creates: creates) else { return nil }
        fchmod(descriptor, 0o600)
        return descriptor
    }

    /// The saved state of this key.
    func load() -> Value? {
        let file = FileHandle(
            fileDescriptor: descriptor.withLock { $0 }, closeOnDealloc: false)
        guard (try? file.seek(toOffset: 0)) != nil, let data = try? file.readToEnd(),
            let content = try? JSONDecoder().decode(Content.self, from: data), content.key.elementsEqual(key, by: ==)
        else { return nil }
        return content.value
    }

    /// Saves the state, as a whole or not at all. A failure is ignored: the transfer can't be continued then.
    func save(_ value: Value) {
        let fresh = "\(path).new"
        guard let data = try? JSONEncoder().encode(Content(key: key, value: value)),
            let new = ResumeState.open(fresh, creates: true)
        else { return }
        descriptor.withLock { descriptor in
            let isSaved =
                ftruncate(new, 0) == 0
                && (try? FileWriting.write(Array(data), new, fresh)) != nil
                && rename(fresh, path) == 0
            if !isSaved { unlink(fresh) }
            // The new file is locked already.
            close(isSaved ? descriptor : new)
            if isSaved { descriptor = new }
        }
    }

    /// The transfer is over.
    func remove() { unlink(path) }
}
