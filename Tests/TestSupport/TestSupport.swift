import Glibc
import System
import Testing

/// A directory that is removed when the value goes.
public final class TemporaryDirectory: Sendable {
    public let path: String

    public init(below parent: String = "/tmp") {
        var template = Array((parent + "/sluice-test-XXXXXX").utf8CString)
        let made = mkdtemp(&template)
        precondition(made != nil, "mkdtemp: \(String(cString: strerror(errno)))")
        path = template.withUnsafeBufferPointer { String(cString: $0.baseAddress!) }
    }

    deinit { removeTree(path) }
}

/// Removes a directory and everything in it.
public func removeTree(_ path: String) {
    for name in entries(path) {
        let child = path + "/" + name
        if unlink(child) != 0 { removeTree(child) }
    }
    rmdir(path)
}

/// The names in a directory, sorted.
public func entries(_ path: String) -> [String] {
    guard let stream = opendir(path) else { return [] }
    defer { closedir(stream) }
    var names: [String] = []
    while let entry = readdir(stream) {
        let name = withUnsafePointer(to: &entry.pointee.d_name) {
            $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
        }
        if name != "." && name != ".." { names.append(name) }
    }
    return names.sorted()
}

/// The loop of all tests.
public enum TestLoop {
    public static let loop: EventLoop = {
        let loop = try! EventLoop()
        _ = startThread { loop.run() }
        return loop
    }()

    /// Runs `body` as a task of the loop.
    public static func run<Result: Sendable>(_ body: @escaping @Sendable () async throws -> Result)
        async throws -> Result
    {
        try await Task(executorPreference: loop) { try await body() }.value
    }

    /// Waits until the loop has begun and ended a turn.
    public static func turn() {
        var semaphore = sem_t()
        sem_init(&semaphore, 0, 0)
        withUnsafeMutablePointer(to: &semaphore) { pointer in
            let address = UInt(bitPattern: pointer)
            loop.execute { sem_post(UnsafeMutablePointer(bitPattern: address)!) }
            while sem_wait(pointer) != 0 {}
        }
        sem_destroy(&semaphore)
    }
}

/// Waits for `condition`, at most 30 seconds, and records an issue where it never holds.
public func eventually(
    sourceLocation: SourceLocation = #_sourceLocation, _ condition: () async throws -> Bool
) async rethrows {
    let deadline = EventLoop.monotonicNow() + 30_000_000_000
    while try await !condition() {
        if EventLoop.monotonicNow() > deadline {
            Issue.record("never came true", sourceLocation: sourceLocation)
            return
        }
        await Task.yield()
    }
}
