import Buckets
import Configuration
import Gateway
import HTTPClient
import SecurityRules
import System
import Wire

/// The result of `sluice check --connect` for one service.
struct ConnectionFinding: Sendable {
    /// The service, such as `bucket photos (https://storage.googleapis.com)`.
    let subject: String
    /// The operations that work: `list`, `read`, `write`.
    private(set) var works: [String] = []
    /// An operation that does not work but need not: a bucket may be read-only.
    private(set) var note: String?
    /// The operations that fail, grouped by cause.
    private var causes: [(cause: String, attempts: [String])] = []

    private init(_ subject: String) { self.subject = subject }

    /// The failures, one line for each cause.
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

    /// Tests every service in turn on the calling thread, and closes all connections before it returns.
    /// - Returns: The findings, and the services' capabilities by bucket name.
    static func all(_ configuration: Configuration) throws
        -> ([ConnectionFinding], [BytewiseString: Capabilities])
    {
        let loop = try EventLoop()
        let pool = BlockingPool(threads: 1)
        var services = configuration
        services.buckets.removeAll { $0.directory != nil }
        let stores = try Stores(services, pool: pool)
        let names = services.buckets.map(\.name)
        let findings = Lock<[ConnectionFinding]>([])
        let probed = Lock<[BytewiseString: Capabilities]>([:])
        Task(executorPreference: loop) {
            for name in names {
                guard let driver = stores.drivers[name], let upstream = stores.upstreams[name]
                else {
                    continue
                }
                let subject = "bucket \(name) (\(upstream.settings.origin))"
                let finding = await ConnectionFinding(subject, driver)
                findings.withLock { $0.append(finding) }
                guard finding.works.contains("list"),
                    let capabilities = try? await driver.capabilities()
                else { continue }
                probed.withLock { $0[name] = capabilities }
            }
            if let documents = stores.documents {
                let finding = await ConnectionFinding(documents)
                findings.withLock { $0.append(finding) }
            }
            await stores.close()
            loop.stop()
        }
        loop.run()
        return (findings.withLock { $0 }, probed.withLock { $0 })
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
        // Whether the document exists does not matter; the lookup only has to succeed.
        guard let path = DocumentPath("/databases/(default)/documents/sluice/check") else { return }
        let (_, failure) = await documents.look(path)
        if let failure {
            fail("look documents up", failure)
        } else {
            works.append("look documents up")
        }
    }
}
