import Buckets
import EventLoop
import Gateway
import HTTPClient

/// What `sluice check --connect` finds out about one service of a configuration.
struct ConnectionFinding: Sendable {
    /// `bucket photos (https://storage.googleapis.com)`.
    let subject: String
    /// What works: `list`, `read`, `write`.
    private(set) var works: [String] = []
    /// What does not, and need not: a bucket may be one to read.
    private(set) var note: String?
    /// What does not, by its cause.
    private var causes: [(cause: String, attempts: [String])] = []

    private init(_ subject: String) { self.subject = subject }

    /// In words, a line each.
    var faults: [String] {
        causes.map { "can't \($0.attempts.joined(separator: " or ")): \($0.cause)" }
    }

    private mutating func attempt(
        _ what: String, _ body: () async throws(BucketError) -> Void
    ) async {
        do throws(BucketError) {
            try await body()
            works.append(what)
        } catch {
            fail(what, error.cause)
        }
    }

    private mutating func fail(_ what: String, _ cause: String) {
        if let known = causes.firstIndex(where: { $0.cause == cause }) {
            causes[known].attempts.append(what)
        } else {
            causes.append((cause, [what]))
        }
    }

    /// Tries every service on the calling thread, one after the other, and leaves nothing behind.
    static func all(_ configuration: Configuration) throws -> [ConnectionFinding] {
        let loop = try EventLoop()
        let pool = BlockingPool(threads: 1)
        var services = configuration
        services.buckets.removeAll { $0.directory != nil }
        let stores = try Stores(services, pool: pool)
        let names = services.buckets.map(\.name)
        let findings = Lock<[ConnectionFinding]>([])
        Task(executorPreference: loop) {
            for name in names {
                guard let driver = stores.drivers[name], let upstream = stores.upstreams[name]
                else {
                    continue
                }
                let subject = "bucket \(name) (\(upstream.settings.origin))"
                let finding = await ConnectionFinding(subject, driver)
                findings.withLock { $0.append(finding) }
            }
            if let documents = stores.documents {
                let finding = await ConnectionFinding(documents)
                findings.withLock { $0.append(finding) }
            }
            await stores.close()
            loop.stop()
        }
        loop.run()
        return findings.withLock { $0 }
    }

    private init(_ subject: String, _ driver: any BucketDriver) async {
        self.init(subject)
        var first: String?
        await attempt("list") { () throws(BucketError) in
            try await driver.checkHealth()
            let query = ListQuery(prefix: "", delimited: false, limit: 1)
            first = try await driver.list(query, after: nil).items.first
        }
        if let first {
            await attempt("read") { () throws(BucketError) in
                try await driver.open(first, ReadPlan()).close()
            }
        }
        if let driver = driver as? any WriteProbing {
            do throws(BucketError) {
                note = try await driver.probeWriting().map { "can't write: \($0)" }
                if note == nil { works.append("write") }
            } catch {
                fail("write", error.cause)
            }
        }
    }

    private init(_ documents: FirestoreDocuments) async {
        self.init("firestore")
        // A name that nobody gives: whether it exists does not matter.
        let (_, failure) = await documents.look("/databases/(default)/documents/sluice/check")
        if let failure {
            fail("look documents up", failure)
        } else {
            works.append("look documents up")
        }
    }
}
