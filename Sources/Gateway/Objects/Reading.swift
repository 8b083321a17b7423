import Buckets
import HTTPServer

extension OperationHandler {
    /// Opens the object and authorizes the request for what was opened. The bytes follow in the response.
    func download(_ name: ObjectName, _ request: ReadRequest) async throws(Problem)
        -> OperationResult
    {
        if let cache = bucket.cache { return try await download(name, request, cache) }
        let missing = try await authorizer.evaluate()
        let reader = try await opened(name, request, missing)
        do throws(Problem) {
            if missing != .nothing || context.record.shadow == .undetermined {
                try authorizer.require(try await authorizer.evaluate(.object(reader.metadata)))
            }
            if let ready = try readyContent(of: reader, request) { return ready }
            return try await awaitedContent(of: reader, request)
        } catch {
            reader.close()
            throw error
        }
    }

    /// The same through the cache. A negative result because of metadata that was known before is not sent: the store is
    /// asked first.
    @inline(never)
    private func download(_ name: ObjectName, _ request: ReadRequest, _ cache: CachedBucket) async throws(Problem)
        -> OperationResult
    {
        let missing = try await authorizer.evaluate()
        var mustAsk = context.wantsValidation
        while true {
            let read: CachedRead
            do throws(Problem) {
                read = try await bucket.open(name, try request.plan(), in: cache, mustAsk: mustAsk)
            } catch {
                if missing != .nothing, error.code == .objectNotFound {
                    try authorizer.require(try await authorizer.evaluate(.absent))
                }
                throw error
            }
            context.record.cache = read.outcome
            do throws(Problem) {
                if missing != .nothing || context.record.shadow == .undetermined {
                    try authorizer.require(try await authorizer.evaluate(.object(read.reader.metadata)))
                }
                if let ready = try readyContent(of: read.reader, request) { return ready }
                return try await awaitedContent(of: read.reader, request)
            } catch {
                read.reader.close()
                guard read.isRemembered, !mustAsk, error.isOfVersion else { throw error }
                mustAsk = true
            }
        }
    }

    /// Opens the object.
    /// - Parameter missing: The inputs that the decision still needs. Without an object it is made here.
    // Not inlined, so that its memory is free again while the bytes are read.
    @inline(never)
    private func opened(
        _ name: ObjectName, _ request: ReadRequest, _ missing: Authorizer.UnresolvedInput
    ) async throws(Problem) -> any ObjectReader {
        do throws(Problem) {
            return try await bucket.open(name, try request.plan())
        } catch {
            if missing != .nothing, error.code == .objectNotFound {
                try authorizer.require(try await authorizer.evaluate(.absent))
            }
            throw error
        }
    }

    /// Selects the bytes to send of an opened object. Closes the object if there are none.
    /// - Returns: nil if the bytes have to be waited for.
    private func readyContent(of reader: any ObjectReader, _ request: ReadRequest)
        throws(Problem) -> OperationResult?
    {
        let object = reader.metadata
        if try isUnmodified(object, request.conditions) {
            reader.close()
            return .notModified(object)
        }
        var content = try selected(from: object, request)
        if content.range.isEmpty {
            reader.close()
        } else {
            guard let source = try bucket.readyBytes(of: reader, content.range) else { return nil }
            content.body = .source(source, length: UInt64(content.range.count))
        }
        return .content(object, content)
    }

    /// Waits for the bytes to send.
    // Not inlined, so that the task of every request does not reserve memory for it.
    @inline(never)
    private func awaitedContent(of reader: any ObjectReader, _ request: ReadRequest)
        async throws(Problem) -> OperationResult
    {
        let object = reader.metadata
        var content = try selected(from: object, request)
        let source = try await bucket.bytes(of: reader, content.range)
        content.body = .source(source, length: UInt64(content.range.count))
        return .content(object, content)
    }

    /// The requested part of an object, without its bytes.
    private func selected(from object: ObjectMetadata, _ request: ReadRequest)
        throws(Problem) -> ObjectContent
    {
        var content = ObjectContent(range: 0..<object.size, isPart: false, body: .bytes([]))
        switch request.range.select(from: object) {
        case .whole: break
        case .part(let part):
            content.range = part
            content.isPart = true
        case .unsatisfiable:
            throw Problem(
                .rangeNotSatisfiable, "The object has \(object.size) bytes.",
                field: ("content-range", "bytes */\(object.size)"))
        }
        return content
    }

    /// The object's metadata.
    /// - Parameter part: The number of a part whose bytes are reported with it, if the store knows them.
    func stat(_ name: ObjectName, _ conditions: Conditions, part: Int? = nil) async throws(Problem)
        -> OperationResult
    {
        if let cache = bucket.cache { return try await stat(name, conditions, part: part, cache) }
        return try await stat(name, conditions, part: part) { () async throws(Problem) in
            try await bucket.stat(name)
        }
    }

    /// The same from the cache. A negative result because of metadata that was known before is not sent: the store is
    /// asked first.
    @inline(never)
    private func stat(_ name: ObjectName, _ conditions: Conditions, part: Int?, _ cache: CachedBucket)
        async throws(Problem) -> OperationResult
    {
        let lookup = CachedLookup(cache, mustAsk: context.wantsValidation, context.record)
        authorizer.lookup = lookup
        defer { authorizer.lookup = nil }
        func attempt() async throws(Problem) -> OperationResult {
            try await stat(name, conditions, part: part) { () async throws(Problem) in
                try await lookup.stat(name, in: bucket)
            }
        }
        do throws(Problem) {
            return try await attempt()
        } catch {
            guard lookup.isRemembered, error.isOfVersion else { throw error }
            lookup.mustAsk = true
            return try await attempt()
        }
    }

    private func stat(
        _ name: ObjectName, _ conditions: Conditions, part: Int?,
        _ find: () async throws(Problem) -> ObjectMetadata
    ) async throws(Problem) -> OperationResult {
        var existing = CurrentObject.unknown
        try await authorizer.authorize(&existing, name)
        // Malformed conditions are reported before the object is looked up.
        _ = try conditions.get()
        let object: ObjectMetadata
        switch existing {
        case .object(let found): object = found
        case .absent: throw Problem(BucketError(.objectNotFound))
        case .unknown: object = try await find()
        }
        if try isUnmodified(object, conditions) { return .notModified(object) }
        guard let part, object.partRange(part) == nil, let driver = bucket.driver as? any PartReadingDriver else {
            return .metadata(object)
        }
        do throws(BucketError) {
            guard let bytes = try await driver.partRange(part, of: object) else { return .metadata(object) }
            return .metadata(object.with(part: part, bytes))
        } catch {
            throw Problem(error)
        }
    }

    /// Whether the client's copy is current.
    /// - Throws: ``Problem`` with `precondition-failed`.
    private func isUnmodified(_ object: ObjectMetadata, _ conditions: Conditions)
        throws(Problem) -> Bool
    {
        if conditions === Conditions.none { return false }
        switch try conditions.get().evaluate(object, reading: true) {
        case nil: return false
        case .preconditionFailed: throw Problem(BucketError(.preconditionFailed))
        case .notModified: return true
        }
    }
}

/// Looks up an object's metadata in the cache, for one request. Confined to its loop.
final class CachedLookup {
    private let cache: CachedBucket
    private let record: RequestRecord
    /// Whether the store must be asked.
    var mustAsk: Bool
    /// Whether the last result was known before the request.
    private(set) var isRemembered = false

    init(_ cache: CachedBucket, mustAsk: Bool, _ record: RequestRecord) {
        self.cache = cache
        self.mustAsk = mustAsk
        self.record = record
    }

    func stat(_ name: ObjectName, in bucket: Bucket) async throws(Problem) -> ObjectMetadata {
        isRemembered = false
        let (object, outcome) = try await bucket.stat(name, in: cache, mustAsk: mustAsk)
        record.cache = outcome
        isRemembered = outcome.isRemembered && !mustAsk
        return object
    }

    /// The current object, or `.absent` if there is none.
    func current(_ name: ObjectName, in bucket: Bucket) async throws(Problem) -> CurrentObject {
        do throws(Problem) {
            return .object(try await stat(name, in: bucket))
        } catch {
            if error.code == .objectNotFound { return .absent }
            throw error
        }
    }
}

extension Problem {
    /// Whether another version of the object could have had another result.
    fileprivate var isOfVersion: Bool { [401, 403, 404, 412, 416].contains(code.status) }
}
