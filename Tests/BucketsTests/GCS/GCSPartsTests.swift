import BucketConformance
import System
import TestSupport
import Testing

@testable import Buckets

@Suite("Uploads in parts in Cloud Storage", .timeLimit(.minutes(10)))
struct GCSPartsTests {
    private static let minimum = 5 << 20
    /// The parts of most tests.
    private static let parts = [pattern(minimum, seed: 1), pattern(1000, seed: 2)]

    @Test(arguments: SessionConformance.partsCases)
    func conforms(_ check: SessionConformance.Case) async throws {
        let model = GCSModel()
        try await check.run { model.bucket() }
        try await onLoop { try await model.sweep() }
        #expect(model.leftovers == [])
    }

    /// The entity tag of an object of these parts.
    private static func tag(_ parts: [[UInt8]]) -> String {
        S3Properties.tag(ofParts: parts.map { digest(.md5, $0) }, count: parts.count)
    }

    private func begin(_ bucket: GCSBucket, _ attributes: ObjectAttributes = ObjectAttributes()) async throws
        -> any PartsUpload
    {
        let upload = try await bucket.beginUpload("n", attributes)
        for (number, bytes) in [(2, Self.parts[1]), (1, Self.parts[0])] { try await upload.send(number, bytes) }
        return upload
    }

    @Test("A part is one request")
    func costs() async throws {
        let model = GCSModel()
        try await onLoop {
            let (bucket, other) = (model.bucket(), model.bucket())
            _ = try await bucket.capabilities()
            #expect(model.requests() == ["parts": 1])
            let upload = try await bucket.beginUpload("n")
            #expect(model.requests() == ["initiate": 1, "state": 1])
            _ = try await other.openParts(upload.id, "n", key: upload.key).send(1, Self.parts[0])
            try await upload.send(2, [1])
            #expect(model.requests() == ["part": 2])
            _ = try await upload.parts(after: 0, limit: 10)
            #expect(model.requests() == ["parts": 1])
            try await upload.select([SelectedPart(1), SelectedPart(2)])
            #expect(model.requests() == ["read": 1, "parts": 1, "state": 1])
            let facts = try await upload.finish()
            #expect(model.requests() == [:])
            _ = try await upload.commit(facts, Preconditions(), resultUntil: .max)
            #expect(model.requests() == ["read": 1, "stat": 1, "state": 2, "complete": 1, "patch": 1, "move": 1])
            await bucket.close()
            await other.close()
        }
    }

    @Test("Properties are set before the object is visible")
    func properties() async throws {
        let model = GCSModel()
        try await onLoop {
            let bucket = model.bucket()
            var plain = ObjectAttributes(
                contentType: "text/plain; charset=utf-8", cacheControl: "no-cache",
                contentDisposition: "inline", contentEncoding: "gzip", contentLanguage: "de")
            plain.customMetadata = ["a": "b"]
            var others = [plain, plain, plain]
            others[0].customMetadata["Upper"] = "b"
            others[1].customMetadata["a"] = "ä"
            others[2].system.downloadTokens = ["t"]
            for attributes in [plain] + others {
                let upload = try await bucket.beginUpload("n", attributes)
                try await upload.send(1, [1])
                _ = model.requests()
                try await upload.commitAll([1])
                #expect(model.requests()["patch"] == 1)
                var found = try await bucket.stat("n").attributes
                #expect(found.system.s3 == S3Properties(tag: Self.tag([[1]]), parts: PartSizes([1])))
                found.system.s3 = nil
                #expect(found == attributes)
            }
            await bucket.close()
        }
    }

    /// A commit as a client repeats it, until it reports the result.
    private func commit(
        _ id: UploadSessionID, _ key: [UInt8], _ buckets: [GCSBucket], _ parts: [[UInt8]] = parts
    ) async throws -> CommitResult? {
        let selection = parts.indices.map { SelectedPart($0 + 1) }
        let facts = ContentFacts(size: UInt64(parts.reduce(0) { $0 + $1.count }), md5: nil, crc32c: nil)
        var last: SessionError?
        for round in 0..<12 {
            do throws(SessionError) {
                let upload = try await buckets[round % buckets.count].openParts(id, "n", key: key)
                do throws(SessionError) {
                    try await upload.select(selection)
                } catch {
                    guard case .finished = error else { throw error }
                }
                return try await upload.commit(facts, Preconditions(), resultUntil: .max)
            } catch {
                last = error
                switch error {
                case .superseded: continue
                case .store(let cause) where cause.isRetryable: continue
                default: throw error
                }
            }
        }
        Issue.record("no result: \(last as Any)")
        return nil
    }

    @Test(
        "A fault of any single request loses no part, commits once and leaves nothing",
        arguments: GCSModel.Fault.allCases, [1, 3])
    func singleFault(_ fault: GCSModel.Fault, attempts: Int) async throws {
        let bytes = pattern(100_000, seed: 1)
        for number in 1...30 {
            let model = GCSModel()
            model.state.withLock { $0.fault = { count, _ in count == number ? fault : nil } }
            let attributes = ObjectAttributes(customMetadata: ["Upper": "b"])
            let what = "\(fault), request \(number), \(attempts) attempts"
            try await onLoop {
                let buckets = [model.bucket(attempts: attempts), model.bucket(attempts: attempts)]
                for bucket in buckets { bucket.partsSupport.withLock { $0 = true } }
                func again<Value>(_ body: () async throws -> Value) async throws -> Value {
                    for _ in 0..<4 {
                        do { return try await body() } catch SessionError.store(let error) {
                            #expect(error.isRetryable, "\(what): \(error)")
                        }
                    }
                    return try await body()
                }
                let upload = try await again { try await buckets[0].beginUpload("n", attributes) }
                _ = try await again { try await upload.send(1, bytes) }
                let result = try await commit(upload.id, upload.key, buckets, [bytes])
                #expect(result?.metadata.attributes.customMetadata["Upper"] == "b", "\(what)")
                #expect(result?.metadata.s3Tag == Self.tag([bytes]), "\(what)")
                model.state.withLock { $0.fault = { _, _ in nil } }
                #expect(try await model.bucket().stat("n").s3Tag == Self.tag([bytes]), "\(what)")
                for bucket in buckets { await bucket.close() }
                try await model.sweep()
            }
            #expect(model.bytes("n") == bytes, "\(what)")
            #expect(model.commits == 1, "\(what)")
            #expect(model.leftovers == [], "\(what)")
            if model.requests().values.reduce(0, +) < number { break }
        }
    }

    @Test("Of two gateways that complete at once, both report the one object", arguments: 0..<8)
    func twoGateways(seed: Int) async throws {
        let model = GCSModel()
        try await onLoop {
            let buckets = [model.bucket(), model.bucket()]
            let upload = try await begin(buckets[0])
            let (id, key) = (upload.id, upload.key)
            let tasks = [buckets, buckets.reversed()].map { buckets in
                Task(executorPreference: EventLoop.current) { try await commit(id, key, [buckets[0]]) }
            }
            var results: [CommitResult] = []
            for task in tasks { results += [try await task.value].compactMap(\.self) }
            #expect(results.count == 2)
            #expect(Set(results.map(\.metadata.generation)).count == 1)
            let object = try await buckets[0].stat("n")
            #expect(Set(results.map(\.metadata.s3Tag) + [object.s3Tag]) == [Self.tag(Self.parts)])
            #expect(results.count { !$0.isRepeated } <= 1)
            for bucket in buckets { await bucket.close() }
            try await model.sweep()
        }
        #expect(model.bytes("n") == Self.parts.flatMap { $0 })
        #expect(model.commits == 1)
        #expect(model.leftovers == [])
    }

    @Test("Joined parts are kept after a failed precondition, and no others can be selected")
    func fixed() async throws {
        let model = GCSModel()
        try await onLoop {
            let bucket = model.bucket()
            let upload = try await begin(bucket)
            let isDone = Lock(false)
            // Another object appears when the parts are joined.
            model.state.withLock { state in
                state.before = { kind, state in
                    if kind == "move", !isDone.withLock({ $0 }) { state.put("n", [7]) }
                    if kind == "move" { isDone.withLock { $0 = true } }
                }
            }
            var absent = Preconditions()
            absent.generation = 0
            await #expect(throws: SessionError.self) { try await upload.commitAll([1, 2], absent) }
            #expect(model.bytes("n") == [7])
            await #expect(throws: SessionError.self) { try await upload.select([SelectedPart(1)]) }
            let result = try await upload.commitAll([1, 2])
            #expect(result.replaced)
            #expect(model.bytes("n") == Self.parts.flatMap { $0 })
            await bucket.close()
            try await model.sweep()
        }
        #expect(model.leftovers == [])
    }

    @Test("If a part is replaced after its selection, another selection is possible")
    func replacedLater() async throws {
        let model = GCSModel()
        try await onLoop {
            let bucket = model.bucket()
            let upload = try await begin(bucket)
            try await upload.select([SelectedPart(1), SelectedPart(2)])
            let facts = try await upload.finish()
            try await upload.send(2, [5])
            await #expect(throws: SessionError.self) {
                _ = try await upload.commit(facts, Preconditions(), resultUntil: .max)
            }
            try await upload.commitAll([1, 2])
            #expect(model.bytes("n") == Self.parts[0] + [5])
            await bucket.close()
        }
    }

    @Test("An upload that the service has lost is unknown")
    func lost() async throws {
        for isSelected in [false, true] {
            let model = GCSModel()
            try await onLoop {
                let bucket = model.bucket()
                let upload = try await begin(bucket)
                if isSelected { try await upload.select([SelectedPart(1), SelectedPart(2)]) }
                model.state.withLock { $0.parts.uploads = [:] }
                let facts = ContentFacts(size: UInt64(Self.minimum + 1000), md5: nil, crc32c: nil)
                let error = await #expect(throws: SessionError.self) {
                    if !isSelected { try await upload.select([SelectedPart(1)]) }
                    _ = try await upload.commit(facts, Preconditions(), resultUntil: .max)
                }
                let isRight = if case .notFound? = error { true } else { false }
                #expect(isRight, "\(error as Any)")
                await #expect(throws: SessionError.self) { try await upload.send(1, [1]) }
                await bucket.close()
                try await model.sweep()
            }
            #expect(model.leftovers == [])
        }
    }

    @Test("A service whose list of parts does not go on is not asked forever")
    func repeatedList() async throws {
        let model = GCSModel()
        try await onLoop {
            let bucket = model.bucket()
            let upload = try await begin(bucket)
            model.state.withLock { ($0.parts.page, $0.parts.repeats) = (1, true) }
            _ = model.requests()
            await #expect(throws: SessionError.self) { try await upload.select([SelectedPart(1)]) }
            #expect(model.requests()["parts"] == 2)
            model.state.withLock { $0.parts.repeats = false }
            #expect(try await upload.parts(after: 0, limit: 100).map(\.number) == [1, 2])
            try await upload.commitAll([1, 2])
            await bucket.close()
        }
    }

    @Test("A part that is aborted, also after its end, is not stored")
    func cut() async throws {
        let model = GCSModel()
        try await onLoop {
            let bucket = model.bucket()
            let upload = try await bucket.beginUpload("n")
            for size in [10, 70_000, 300_000] {
                for isComplete in [false, true] {
                    let part = try await upload.beginPart(1, PartPlan(size: UInt64(size)))
                    try await part.fill(pattern(isComplete ? size : size / 2, seed: 1))
                    if isComplete { _ = try await part.finish() }
                    part.abort()
                }
            }
            let part = try await upload.beginPart(1, PartPlan(size: 100_000, md5: digest(.md5, [])))
            try await part.fill(pattern(100_000, seed: 1))
            _ = try await part.finish()
            await #expect(throws: SessionError.self) { try await part.keep() }
            #expect(try await upload.parts(after: 0, limit: 9) == [])
            await bucket.close()
        }
    }

    @Test(
        "The emulators have no uploads in parts", .enabled(if: UpstreamProcess.environment != nil),
        arguments: GCSServer.allCases)
    func emulators(_ server: GCSServer) async throws {
        let running = RunningGCSServer(server)
        try await onLoop {
            let bucket = try await running.makeBucket()
            #expect(try await bucket.capabilities().parts == false)
            do {
                _ = try await bucket.beginUpload("n", ObjectAttributes())
                Issue.record("an upload begins")
            } catch SessionError.store(let error) {
                #expect(error.code == .unsupported)
            }
            await bucket.close()
        }
    }
}
