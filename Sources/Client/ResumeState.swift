import Foundation
import Wire

/// Where interrupted transfers are remembered: `$XDG_STATE_HOME/sluice`, or `~/.local/state/sluice`.
struct StateDirectory: Sendable {
    private let path: String

    /// nil if there is none, because neither variable is set or it can't be made.
    init?() {
        let state = Gateways.variable("XDG_STATE_HOME").flatMap { $0.hasPrefix("/") ? $0 : nil }
        guard let base = state ?? Gateways.variable("HOME").map({ "\($0)/.local/state" }) else {
            return nil
        }
        path = "\(base)/sluice"
        do {
            // What is in it continues uploads, so it is nobody else's business.
            try FileManager.default.createDirectory(
                atPath: path, withIntermediateDirectories: true,
                attributes: [.posixPermissions: 0o700])
        } catch {
            return nil
        }
        guard access(path, W_OK | X_OK) == 0 else { return nil }
    }

    /// The state of a transfer; nil if another process has it, or it can't be made.
    /// - Parameter key: What the transfer is about.
    func state<Value: Codable>(_ key: [String], of type: Value.Type) -> ResumeState<Value>? {
        ResumeState(path: "\(path)/\(StateDirectory.name(key)).json", key)
    }

    /// A name for a key: FNV-1a. The file has the key itself, so a collision only costs a resumption.
    static func name(_ key: [String]) -> String {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        for text in key {
            for byte in text.utf8 { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
            hash = (hash ^ 0xff) &* 0x100_0000_01b3
        }
        return Hexadecimal.encode(withUnsafeBytes(of: hash.bigEndian) { Array($0) })
    }
}

/// The state of one interrupted transfer, in a file that this process alone uses.
final class ResumeState<Value: Codable & Sendable>: Sendable {
    private struct Content: Codable {
        let key: [String]
        let value: Value
    }
    private let path: String
    private let key: [String]
    private let descriptor: Int32

    fileprivate init?(path: String, _ key: [String]) {
        self.path = path
        self.key = key
        descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0o600)
        guard descriptor >= 0 else { return nil }
        guard flock(descriptor, LOCK_EX | LOCK_NB) == 0 else {
            close(descriptor)
            return nil
        }
    }

    deinit { close(descriptor) }

    /// What was saved for this key.
    func load() -> Value? {
        let file = FileHandle(fileDescriptor: descriptor, closeOnDealloc: false)
        guard (try? file.seek(toOffset: 0)) != nil, let data = try? file.readToEnd(),
            let content = try? JSONDecoder().decode(Content.self, from: data),
            content.key.elementsEqual(key, by: ==)
        else { return nil }
        return content.value
    }

    /// Saves the state. A failure is ignored: the transfer can't be continued then.
    func save(_ value: Value) {
        guard let data = try? JSONEncoder().encode(Content(key: key, value: value)) else { return }
        let file = FileHandle(fileDescriptor: descriptor, closeOnDealloc: false)
        try? file.truncate(atOffset: 0)
        try? file.write(contentsOf: data)
    }

    /// The transfer is over.
    func remove() { unlink(path) }
}
