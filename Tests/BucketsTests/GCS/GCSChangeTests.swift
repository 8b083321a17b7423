import BucketConformance
import Credentials
import HTTPClient
import OpenSSL
import System
import TestSupport
import Testing
import Wire

@testable import Buckets

/// The JSON of an object in the format of Cloud Storage.
func object(
    _ bytes: [UInt8], generation: Int, metageneration: Int = 1, custom: String = "{}"
) -> String {
    """
    {"name": "n", "generation": "\(generation)", "metageneration": "\(metageneration)",
     "size": "\(bytes.count)", "timeCreated": "2026-01-02T03:04:05.678901Z", "crc32c": "\(crc(bytes))",
     "md5Hash": "\(Base64.encode(digest(.md5, bytes)))", "contentType": "a/b", "metadata": \(custom)}
    """
}

func crc(_ bytes: [UInt8]) -> String {
    var crc = CRC32C()
    crc.update(bytes.span.bytes)
    return Base64.encode((0..<4).map { UInt8(truncatingIfNeeded: crc.value >> (24 - 8 * $0)) })
}

func bucket(
    _ service: FakeService, _ credentials: GoogleCredentials.Source = .anonymous,
    _ environment: [BytewiseString: String] = [:], spools: Bool = true
) -> GCSBucket {
    var settings = GCSBucket.Settings(
        bucket: "b", endpoint: service.origin, credentials: credentials, environment: environment)
    settings.upstream.retryDelay = 1_000_000
    if !spools { settings.spoolDirectory = "/nowhere" }
    return GCSBucket(settings, pool: sharedPool, environment: environment)
}

@Suite("Changes in Cloud Storage", .timeLimit(.minutes(2)))
struct GCSChangeTests {
    /// One object whose next changes fail as given. It counts the changes that were made.
    final class Store: Sendable {
        struct State {
            var failures: [String]
            var isThere = true
            var type = "a/b"
            var metageneration = 1
            var changes = 0
            var log: [String] = []
        }
        let state: Lock<State>
        init(_ failures: [String]) { state = Lock(State(failures: failures)) }

        func respond(_ request: FakeService.Request) -> FakeService.Response {
            state.withLock { state in
                if request.method != "GET" {
                    let pin = request.query["ifMetagenerationMatch"]
                    state.log.append("\(request.method) \(pin ?? "-")")
                    let failure = state.failures.isEmpty ? "" : state.failures.removeFirst()
                    if failure == "503" { return FakeService.Response(status: 503) }
                    if state.isThere, pin.map({ $0 != "\(state.metageneration)" }) ?? false {
                        return FakeService.Response(status: 412)
                    }
                    if state.isThere {
                        state.changes += 1
                        state.metageneration += 1
                        if request.method == "DELETE" {
                            state.isThere = false
                        } else {
                            state.type = "c/d"
                        }
                        if failure == "lost" { return .cut }
                        if request.method == "DELETE" { return FakeService.Response(status: 204) }
                    }
                }
                guard state.isThere else { return FakeService.Response(status: 404) }
                let text = object([1], generation: 7, metageneration: state.metageneration)
                return .json(text.replacing("a/b", with: state.type))
            }
        }
    }

    @Test(arguments: [
        ([], ["- "]), (["503"], ["- ", "1"]), (["lost"], ["- "]),
        (["503", "503", "lost"], ["- ", "1", "1", "1"]),
    ])
    func aChangeWithoutConditionsIsMadeOnce(failures: [String], pins: [String]) async throws {
        for method in ["PATCH", "DELETE"] {
            let store = Store(failures)
            let service = FakeService { store.respond($0) }
            try await onLoop {
                let bucket = bucket(service)
                if method == "PATCH" {
                    var patch = AttributePatch()
                    patch.contentType = .set("c/d")
                    let changed = try await bucket.patch("n", patch, Preconditions())
                    #expect(changed.metageneration == 2 && changed.attributes.contentType == "c/d")
                } else {
                    try await bucket.delete("n", Preconditions())
                }
                await bucket.close()
            }
            store.state.withLock { state in
                #expect(state.changes == 1)
                let expected = pins.map { "\(method) \($0 == "- " ? "-" : $0)" }
                // After a lost response, a pinned request can find that the change was made.
                #expect(Array(state.log.prefix(expected.count)) == expected, "\(state.log)")
            }
        }
    }
}
