import Dispatch
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

    /// Writes a file that only its owner may read.
    /// - Returns: Its path.
    @discardableResult
    public func write(_ name: String, _ bytes: [UInt8]) -> String {
        let path = path + "/" + name
        let descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0o600)
        precondition(Glibc.write(descriptor, bytes, bytes.count) == bytes.count)
        close(descriptor)
        return path
    }

    /// Writes a text file that only its owner may read.
    /// - Returns: Its path.
    @discardableResult
    public func write(_ name: String, _ text: String) -> String { write(name, Array(text.utf8)) }
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
    return File.names(in: stream).sorted()
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

private let looks = DispatchQueue(label: "eventually")

/// Waits for `condition`, at most two minutes, and records an issue where it never holds.
public func eventually(
    sourceLocation: SourceLocation = #_sourceLocation, _ condition: () async throws -> Bool
) async rethrows {
    let deadline = EventLoop.monotonicNow() + 120_000_000_000
    while try await !condition() {
        if EventLoop.monotonicNow() > deadline {
            Issue.record("never came true", sourceLocation: sourceLocation)
            return
        }
        // By a queue of its own: Task.sleep also waits for one of the threads of Swift's tasks, which other tests occupy.
        await withCheckedContinuation { waiter in
            looks.asyncAfter(deadline: .now() + .milliseconds(5)) { waiter.resume() }
        }
    }
}
