import Buckets
import Glibc
import System

/// What every ``SessionDriver`` must do, as cases that any driver's tests can run, one by one:
///
///     @Test(arguments: SessionConformance.all)
///     func conforms(_ check: SessionConformance.Case) async throws {
///         try await check.run { try DirectoryBucket(path: temporaryPath, pool: pool) }
///     }
public struct SessionConformance {
    /// Opens the case's bucket, which is empty the first time. The case closes it, and opens it again to see what
    /// survives.
    public typealias OpenDriver = @Sendable () async throws -> any SessionDriver

    /// One requirement.
    public struct Case: Sendable, CustomStringConvertible {
        /// Says what must hold.
        public let name: String
        let body: @Sendable (SessionStore) async throws -> Void

        init(_ name: String, _ body: @escaping @Sendable (SessionStore) async throws -> Void) {
            self.name = name
            self.body = body
        }

        public var description: String { name }

        /// Runs the case on a loop of its own.
        /// - Throws: ``ConformanceFailure`` where the driver does not conform, or the driver's own error.
        public func run(_ open: @escaping OpenDriver) async throws {
            let body = body
            try await onLoop {
                let store = SessionStore(open, try await open())
                do {
                    try await body(store)
                } catch {
                    await store.close()
                    throw error
                }
                await store.close()
            }
        }
    }

    /// All cases.
    public static let all: [Case] = appendCases + endCases
}

/// The bucket of a case.
///
/// Safety: used by the case's own task.
final class SessionStore: @unchecked Sendable {
    private let open: SessionConformance.OpenDriver
    private(set) var driver: any SessionDriver
    /// Other loops that the case uses, and their threads.
    private let loops = Lock<[(loop: EventLoop, thread: pthread_t)]>([])

    init(_ open: @escaping SessionConformance.OpenDriver, _ driver: any SessionDriver) {
        self.open = open
        self.driver = driver
    }

    /// Closes the driver and opens another one on the same store.
    func reopen() async throws {
        await driver.close()
        driver = try await open()
    }

    /// Runs `body` with another loop as its task's executor. The loop runs until the driver is closed, which may have
    /// connections on it.
    func onOtherLoop<Result: Sendable>(
        _ body: @escaping @Sendable () async throws -> Result
    ) async throws -> Result {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        loops.withLock { $0.append((loop, thread)) }
        return try await Task(executorPreference: loop, operation: body).value
    }

    fileprivate func close() async {
        await driver.close()
        for (loop, thread) in loops.withLock({ $0 }) {
            loop.stop()
            pthread_join(thread, nil)
        }
    }
}

/// Seconds from now, since 1970.
public func seconds(fromNow seconds: Int64) -> Int64 { SystemClock.seconds() + seconds }

extension SessionDriver {
    /// Begins a session of an hour.
    public func begin(
        _ name: String, _ attributes: ObjectAttributes = ObjectAttributes(), length: Int? = nil,
        digests: Set<DigestAlgorithm> = [], lifetime: Int64 = 3600, context: [UInt8] = []
    ) async throws -> any UploadSession {
        let upload = UploadPlan(attributes, size: length.map { UInt64($0) }, digests: digests)
        return try await beginSession(
            name,
            SessionPlan(upload, expires: seconds(fromNow: lifetime), context: context))
    }
}

extension ByteSink {
    /// Gives it all bytes, in pieces of `step`.
    public func fill(_ bytes: [UInt8], step: Int = 24_576) async throws {
        var offset = 0
        while offset < bytes.count {
            let end = min(bytes.count, offset + step)
            let taken = try write(bytes.span.bytes.extracting(offset..<end))
            offset += taken
            if offset < end {
                await withCheckedContinuation { waiter in whenWritable { waiter.resume() } }
            }
        }
    }
}

extension UploadSession {
    /// Appends at an offset, and returns the durable one.
    @discardableResult
    public func append(
        _ bytes: [UInt8], at offset: Int, length: Int? = nil, step: Int = 24_576
    ) async throws -> Int {
        let append = try await append(
            AppendPlan(
                at: UInt64(offset), size: UInt64(bytes.count), length: length.map { UInt64($0) }))
        try await append.fill(bytes, step: step)
        return Int(try await append.end())
    }

    /// Finishes and commits.
    @discardableResult
    public func commitAll(_ preconditions: Preconditions = Preconditions()) async throws
        -> CommitResult
    {
        let facts = try await finish()
        return try await commit(facts, preconditions, resultUntil: .max)
    }

    /// The durable offset.
    public func offset() async throws -> Int { Int(try await state().offset) }
}

/// - Throws: ``ConformanceFailure`` unless `body` throws a ``SessionError`` that `isRight`.
func expectSessionError<Value>(
    _ what: String, line: Int = #line, file: StaticString = #fileID,
    _ isRight: (SessionError) -> Bool, _ body: () async throws -> Value
) async throws {
    do {
        _ = try await body()
    } catch let error as SessionError {
        return try expect(
            isRight(error), "the error \(error) should be \(what)", line: line, file: file)
    }
    throw ConformanceFailure(description: "\(file):\(line): no error, should be \(what)")
}

/// - Throws: ``ConformanceFailure`` unless `body` throws ``SessionError/notFound``.
func expectNotFound<Value>(
    line: Int = #line, file: StaticString = #fileID, _ body: () async throws -> Value
) async throws {
    try await expectSessionError(
        "notFound", line: line, file: file,
        { if case .notFound = $0 { true } else { false } }, body)
}

/// - Throws: ``ConformanceFailure`` unless `body` throws ``SessionError/finished``.
func expectFinished<Value>(
    line: Int = #line, file: StaticString = #fileID, _ body: () async throws -> Value
) async throws {
    try await expectSessionError(
        "finished", line: line, file: file,
        { if case .finished = $0 { true } else { false } }, body)
}

/// - Throws: ``ConformanceFailure`` unless `body` throws ``SessionError/superseded``.
func expectSuperseded<Value>(
    line: Int = #line, file: StaticString = #fileID, _ body: () async throws -> Value
) async throws {
    try await expectSessionError(
        "superseded", line: line, file: file,
        { if case .superseded = $0 { true } else { false } }, body)
}

/// - Throws: ``ConformanceFailure`` unless `body` throws ``SessionError/offsetMismatch(durable:)`` with that offset.
func expectMismatch<Value>(
    durable: Int, line: Int = #line, file: StaticString = #fileID, _ body: () async throws -> Value
) async throws {
    try await expectSessionError(
        "offsetMismatch(\(durable))", line: line, file: file,
        { if case .offsetMismatch(UInt64(durable)) = $0 { true } else { false } }, body)
}

/// - Throws: ``ConformanceFailure`` unless `body` throws ``SessionError/lengthMismatch(declared:)`` with that length.
func expectLengthMismatch<Value>(
    _ declared: Int, line: Int = #line, file: StaticString = #fileID,
    _ body: () async throws -> Value
) async throws {
    try await expectSessionError(
        "lengthMismatch(\(declared))", line: line, file: file,
        { if case .lengthMismatch(UInt64(declared)) = $0 { true } else { false } }, body)
}

/// - Throws: ``ConformanceFailure`` unless `body` throws ``SessionError/lengthExceeded(limit:)``.
func expectLengthExceeded<Value>(
    line: Int = #line, file: StaticString = #fileID, _ body: () async throws -> Value
) async throws {
    try await expectSessionError(
        "lengthExceeded", line: line, file: file,
        { if case .lengthExceeded = $0 { true } else { false } }, body)
}
