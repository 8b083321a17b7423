import Buckets
import Glibc
import OpenSSL
import System

/// The requirements of every ``BucketDriver``, as cases that the tests of each driver run one by one:
///
///     @Test(arguments: BucketConformance.cases(for: capabilities))
///     func conforms(_ check: BucketConformance.Case) async throws {
///         try await check.run { try DirectoryBucket(path: temporaryPath, pool: pool) }
///     }
public struct BucketConformance {
    /// Creates an empty bucket. The case closes it.
    public typealias MakeDriver = @Sendable () async throws -> any BucketDriver

    /// One requirement.
    public struct Case: Sendable, CustomStringConvertible {
        /// States the requirement.
        public let name: String
        /// Whether the requirement applies to a store with these capabilities.
        let applies: @Sendable (Capabilities) -> Bool
        let body: @Sendable (any BucketDriver) async throws -> Void

        init(
            _ name: String, if applies: @escaping @Sendable (Capabilities) -> Bool = { _ in true },
            _ body: @escaping @Sendable (any BucketDriver) async throws -> Void
        ) {
            self.name = name
            self.applies = applies
            self.body = body
        }

        public var description: String { name }

        /// Runs the case on its own loop.
        /// - Throws: ``ConformanceFailure`` if the driver does not conform, or the driver's own error.
        public func run(_ makeDriver: @escaping MakeDriver) async throws {
            let body = body
            try await onLoop {
                let driver = try await makeDriver()
                do {
                    try await body(driver)
                } catch {
                    await driver.close()
                    throw error
                }
                await driver.close()
            }
        }
    }

    /// All cases.
    public static let all: [Case] =
        objectCases + systemMetadataCases + preconditionCases + copyCases + listCases + s3Cases

    /// The cases that a store with these capabilities must pass.
    public static func cases(for capabilities: Capabilities) -> [Case] {
        all.filter { $0.applies(capabilities) }
    }

    /// The names of the cases that do not apply to such a store. Print them, so that nobody assumes that they passed.
    public static func leftOut(for capabilities: Capabilities) -> [String] {
        all.filter { !$0.applies(capabilities) }.map(\.name)
    }
}

/// A requirement that a driver does not fulfil.
public struct ConformanceFailure: Error, CustomStringConvertible {
    public let description: String
}

/// Runs `body` with a new loop as its task's executor, as the server does.
public func onLoop<Result: Sendable>(
    _ body: @escaping @Sendable () async throws -> Result
) async throws -> Result {
    let loop = try EventLoop()
    let thread = startThread { loop.run() }
    let outcome = await Task(executorPreference: loop, operation: body).result
    loop.stop()
    pthread_join(thread, nil)
    return try outcome.get()
}

/// - Throws: ``ConformanceFailure`` unless both are equal.
func expectEqual<Value: Equatable>(
    _ found: Value, _ wanted: Value, _ what: String = "", line: Int = #line,
    file: StaticString = #fileID
) throws {
    if found == wanted { return }
    throw ConformanceFailure(
        description: "\(file):\(line): \(what) is \(found), should be \(wanted)")
}

/// - Throws: ``ConformanceFailure`` unless `condition` holds.
func expect(
    _ condition: Bool, _ what: String, line: Int = #line, file: StaticString = #fileID
) throws {
    if !condition { throw ConformanceFailure(description: "\(file):\(line): not so: \(what)") }
}

/// - Throws: ``ConformanceFailure`` unless `body` throws a ``BucketError`` with this code.
func expectError<Value>(
    _ code: BucketError.Code, line: Int = #line, file: StaticString = #fileID,
    _ body: () async throws -> Value
) async throws {
    do {
        _ = try await body()
    } catch let error as BucketError {
        return try expectEqual(error.code, code, "the error \(error)", line: line, file: file)
    }
    throw ConformanceFailure(description: "\(file):\(line): no error, should be \(code)")
}

/// Pseudo-random bytes, determined by the seed.
public func pattern(_ count: Int, seed: UInt64) -> [UInt8] {
    // An empty array has shared storage, and the thread sanitizer would report a write to it.
    if count == 0 { return [] }
    var state = seed &* 0x9e37_79b9_7f4a_7c15 | 1
    return [UInt8](unsafeUninitializedCapacity: count) { buffer, initialized in
        for index in 0..<count {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            buffer[index] = UInt8(truncatingIfNeeded: state >> 56)
        }
        initialized = count
    }
}

extension BucketDriver {
    /// Begins an upload and writes all bytes, in pieces of `step`.
    public func filledUpload(
        _ name: String, _ bytes: [UInt8], _ attributes: ObjectAttributes = ObjectAttributes(),
        _ preconditions: Preconditions = Preconditions(), step: Int = 24_576,
        declared: Bool = true, digests: Set<DigestAlgorithm> = []
    ) async throws -> any Upload {
        let plan = UploadPlan(
            attributes, size: declared ? UInt64(bytes.count) : nil, digests: digests,
            preconditions: preconditions)
        let upload = try await beginUpload(name, plan)
        var offset = 0
        while offset < bytes.count {
            let end = min(bytes.count, offset + step)
            let taken = try upload.write(bytes.span.bytes.extracting(offset..<end))
            offset += taken
            if taken < min(step, end - offset + taken) {
                await withCheckedContinuation { waiter in
                    upload.whenWritable { waiter.resume() }
                }
            }
        }
        return upload
    }

    /// Uploads and commits an object.
    @discardableResult
    public func put(
        _ name: String, _ bytes: [UInt8], _ attributes: ObjectAttributes = ObjectAttributes(),
        _ preconditions: Preconditions = Preconditions(), step: Int = 24_576, declared: Bool = true
    ) async throws -> CommitResult {
        let upload = try await filledUpload(
            name, bytes, attributes, preconditions, step: step, declared: declared)
        _ = try await upload.finish()
        return try await upload.commit(preconditions)
    }

    /// Reads the current object, or a range of it.
    public func get(_ name: String, _ range: Range<UInt64>? = nil) async throws -> [UInt8] {
        let reader = try await self.open(name, ReadPlan())
        return try await readAll(reader, range ?? 0..<reader.metadata.size)
    }

    /// All entries of a list. Each page has at most `limit` entries.
    func listAll(prefix: String, delimited: Bool, limit: Int) async throws -> ListPage {
        var all = ListPage()
        var after: String?
        repeat {
            let page = try await list(
                ListQuery(prefix: prefix, delimited: delimited, limit: limit), after: after)
            let count = page.items.count + page.prefixes.count
            try expect(count <= limit, "a page is within its limit")
            try expect(page.end == nil || count > 0, "a page that is not the last has entries")
            all.items += page.items
            all.prefixes += page.prefixes
            after = page.end
        } while after != nil
        return all
    }
}

/// Reads a range to its end, with a buffer of an odd size.
public func readAll(_ reader: any ObjectReader, _ range: Range<UInt64>) async throws -> [UInt8] {
    let source = try await reader.bytes(range)
    defer { source.close() }
    var result: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 10_007)
    while true {
        var span = chunk.mutableSpan
        var bytes = span.mutableBytes
        switch try source.read(into: &bytes) {
        case .bytes(let count): result += chunk[..<count]
        case .end: return result
        case .wait:
            await withCheckedContinuation { waiter in source.whenReadable { waiter.resume() } }
        }
    }
}

/// The digest of an array of bytes.
public func digest(_ algorithm: Digest.Algorithm, _ bytes: [UInt8]) -> [UInt8] {
    let digest = Digest(algorithm)
    digest.update(bytes.span.bytes)
    return digest.finish()
}
