import Glibc
import Synchronization
import System
import TestSupport
import Testing
import Wire

@testable import Identity

/// A server of keys that does what a test says.
private final class KeyServer: Sendable {
    let service: FakeService
    private let respond: Lock<@Sendable (FakeService.Request) -> FakeService.Response>

    init(_ keys: String) {
        let respond = Lock<@Sendable (FakeService.Request) -> FakeService.Response>(
            { _ in .json(keys) })
        self.respond = respond
        service = FakeService { request in respond.withLock { $0 }(request) }
    }

    var url: String { "\(service.origin)/keys" }
    var requests: Int { service.log.count }

    func publish(_ keys: String) { behave { _ in .json(keys) } }
    func behave(_ handler: @escaping @Sendable (FakeService.Request) -> FakeService.Response) {
        respond.withLock { $0 = handler }
    }

    func issuer(_ name: String = "example") -> TokenIssuer {
        TokenIssuer(name: name, keys: .url(url), issuer: issuerName, audiences: [audience])
    }
}

/// Keys that come, change, and do not come.
@Suite(.timeLimit(.minutes(2))) struct KeyServerTests {
    private static let second = TestKey(.ec("P-256"), "second")
    private static let third = TestKey(.ec("P-256"), "third")

    /// A token that nobody has seen before.
    private func new(_ key: TestKey) -> String {
        token(key, claims(("jti", "\(UInt32.random(in: 0 ... .max))")))
    }

    struct Trouble: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let words: String
        let handler: @Sendable (FakeService.Request) -> FakeService.Response
    }
    static let troubles = [
        Trouble(testDescription: "down", words: "127.0.0.1") { _ in .cut },
        Trouble(testDescription: "500", words: "responds with 500") { _ in .json("{}", 500) },
        Trouble(testDescription: "garbage", words: "not a JSON Web Key Set") { _ in
            .json("<html>")
        },
        Trouble(testDescription: "no usable key", words: "none of 1 keys") { _ in
            .json(keySet(TestKey.weakRSA.jwk()))
        },
        Trouble(testDescription: "redirect", words: "responds with 302") { request in
            .json("{}", 302, [("location", "http://127.0.0.1:1\(request.target)")])
        },
        Trouble(testDescription: "endless", words: "bytes") { _ in
            .json(String(repeating: " ", count: (1 << 20) + 1))
        },
        Trouble(testDescription: "cut off", words: "127.0.0.1") { _ in
            FakeService.Response(body: Array("{\"keys\"".utf8), announced: 10_000)
        },
    ]

    @Test(arguments: troubles) func aFailedRefreshKeepsTheKeys(_ trouble: Trouble) async throws {
        let server = KeyServer(keySet(TestKey.p256.jwk()))
        let harness = await Harness([server.issuer()], times: quickly).ready()
        let known = new(.p256)
        #expect(try await harness.rejection(known) == nil)
        server.behave(trouble.handler)
        let statistics = harness.authenticator.statistics
        let before = statistics.keyRefreshFailures
        await eventually { statistics.keyRefreshFailures >= before + 3 }
        #expect(harness.authenticator.pending.isEmpty)
        let failure = try #require(harness.authenticator.failures.first)
        #expect(failure.hasPrefix("example: ") && failure.contains(trouble.words), "\(failure)")
        #expect(try await harness.rejection(known) == nil)
        #expect(try await harness.rejection(new(.p256)) == nil)
        #expect(try await harness.rejection(new(Self.second)) == .badSignature)
        server.publish(keySet(TestKey.p256.jwk(), Self.second.jwk()))
        try await eventually { try await harness.rejection(new(Self.second)) == nil }
        #expect(harness.authenticator.failures.isEmpty)
        #expect(try await harness.rejection(known) == nil)
        #expect(statistics.cached == 2)
        await close(harness)
    }

    static let empty = Trouble(testDescription: "empty set", words: "is empty") { _ in
        .json(keySet())
    }

    @Test(arguments: troubles + [empty]) func withoutKeysTokensAreUnavailable(_ trouble: Trouble)
        async throws
    {
        let server = KeyServer("")
        server.behave(trouble.handler)
        let harness = Harness([server.issuer()], times: quickly)
        let statistics = harness.authenticator.statistics
        await eventually { statistics.keyRefreshFailures >= 2 }
        #expect(try await harness.rejection(new(.p256)) == .unavailable)
        #expect(harness.authenticator.pending.count == 1)
        let foreign = token(.p256, claims(("iss", "\"https://elsewhere\"")))
        #expect(try await harness.rejection(foreign) == .unknownIssuer)
        #expect(harness.authenticator.failures.isEmpty)
        server.publish(keySet(TestKey.p256.jwk()))
        await eventually { harness.authenticator.pending.isEmpty }
        #expect(try await harness.rejection(new(.p256)) == nil)
        await close(harness)
    }

    @Test func aSlowServerDelaysNobody() async throws {
        let server = KeyServer(keySet(TestKey.p256.jwk()))
        var times = quickly
        times.waitLimit = 20_000_000
        let harness = await Harness([server.issuer()], times: times).ready()
        let gate = Lock(true)
        server.behave { _ in
            while gate.withLock({ $0 }) { usleep(1000) }
            return .json(keySet(Self.second.jwk()))
        }
        let before = server.requests
        await eventually { server.requests > before }
        for _ in 0..<20 { #expect(try await harness.rejection(new(.p256)) == nil) }
        // That is said while the server still has not responded. A fetch that waits for it fails every ten seconds.
        try await eventually {
            let failures = harness.authenticator.statistics.keyRefreshFailures
            let code = try await harness.rejection(new(Self.second))
            #expect(code == .badSignature)
            return harness.authenticator.statistics.keyRefreshFailures == failures
        }
        gate.withLock { $0 = false }
        try await eventually { try await harness.rejection(new(Self.second)) == nil }
        await close(harness)
    }

    @Test func manyCallersWithANewKeyCauseOneRefresh() async throws {
        let server = KeyServer(keySet(TestKey.p256.jwk()))
        let harness = await Harness([server.issuer()], times: patiently).ready()
        #expect(server.requests == 1)
        server.publish(keySet(TestKey.p256.jwk(), Self.second.jwk()))
        let tokens = (0..<50).map { _ in new(Self.second) }
        try await withThrowingTaskGroup { group in
            for token in tokens { group.addTask { try await harness.rejection(token) } }
            for try await code in group { #expect(code == nil) }
        }
        #expect(server.requests == 2)
        // Not again, for a while: whoever makes names up makes no requests.
        for _ in 0..<20 { #expect(try await harness.rejection(new(Self.third)) == .badSignature) }
        #expect(server.requests == 2)
        await close(harness)
    }

    @Test func unknownSignaturesCauseOneRefresh() async throws {
        let server = KeyServer(keySet(TestKey.p256.jwk(), Self.second.jwk()))
        let harness = await Harness([server.issuer()], times: patiently).ready()
        // A key of that name is there, and has not signed it.
        let forged = Self.third.token(header: header(.p256), claims: claims())
        #expect(try await harness.rejection(forged) == .badSignature)
        #expect(server.requests == 2)
        // Which of two keys should it be?
        let nameless = TestKey.p256.token(header: #"{"alg": "ES256"}"#, claims: claims())
        #expect(try await harness.rejection(nameless) == .badSignature)
        #expect(try await harness.rejection(forged) == .badSignature)
        #expect(server.requests == 2)
        await close(harness)
    }

    @Test func aKeyIsReplacedUnderItsName() async throws {
        let server = KeyServer(keySet(TestKey.p256.jwk()))
        let harness = await Harness([server.issuer()], times: patiently).ready()
        let old = new(.p256)
        #expect(try await harness.rejection(old) == nil)
        server.publish(keySet(Self.second.jwk(keyID: TestKey.p256.keyID)))
        let replaced = Self.second.token(header: header(.p256), claims: claims())
        #expect(try await harness.rejection(replaced) == nil)
        #expect(server.requests == 2)
        #expect(try await harness.rejection(old) == .badSignature)
        #expect(try await harness.rejection(new(.p256)) == .badSignature)
        #expect(server.requests == 2)
        await close(harness)
    }

    @Test func anEmptySetWithdrawsAllKeys() async throws {
        let server = KeyServer(keySet(TestKey.p256.jwk()))
        let warnings = Lock<[String]>([])
        let harness = await Harness([server.issuer()], times: quickly) { warning in
            warnings.withLock { $0.append(warning) }
        }.ready()
        let known = new(.p256)
        #expect(try await harness.rejection(known) == nil)
        server.publish(keySet())
        try await eventually { try await harness.rejection(known) == .badSignature }
        #expect(try await harness.rejection(new(.p256)) == .badSignature)
        let authenticator = harness.authenticator
        #expect(authenticator.pending.isEmpty && authenticator.failures.isEmpty)
        #expect(authenticator.keyCounts.map(\.keys) == [0])
        let warning = "example: its key set is empty: no token of it is accepted"
        #expect(authenticator.warnings == [warning])
        let refreshes = authenticator.statistics.keyRefreshes
        await eventually { authenticator.statistics.keyRefreshes > refreshes + 2 }
        #expect(warnings.withLock { $0 } == [warning])
        server.publish(keySet(TestKey.p256.jwk()))
        try await eventually { try await harness.rejection(known) == nil }
        #expect(authenticator.warnings.isEmpty)
        await close(harness)
    }

    @Test func failuresToFetchAreSaidOnceUntilItWorksAgain() async throws {
        let server = KeyServer(keySet(TestKey.p256.jwk()))
        let warnings = Lock<[String]>([])
        let harness = await Harness([server.issuer()], times: quickly) { warning in
            warnings.withLock { $0.append(warning) }
        }.ready()
        let statistics = harness.authenticator.statistics
        for round in 1...2 {
            server.behave { _ in .json("nonsense") }
            let before = statistics.keyRefreshFailures
            await eventually { statistics.keyRefreshFailures >= before + 3 }
            let said = warnings.withLock { $0 }
            #expect(said.count == round && said.allSatisfy { $0.hasPrefix("example: ") }, "\(said)")
            server.publish(keySet(TestKey.p256.jwk()))
            await eventually { harness.authenticator.failures.isEmpty }
        }
        await close(harness)
    }

    @Test func aSetMayHaveTooManyKeys() async throws {
        let others = (0..<150).map { Self.third.jwk(keyID: "other \($0)") }
        let keys = others.prefix(99) + [TestKey.p256.jwk()] + others.suffix(51)
        let server = KeyServer("{\"keys\": [\(keys.joined(separator: ", "))]}")
        let warnings = Lock<[String]>([])
        let harness = await Harness([server.issuer()], times: quickly) { warning in
            warnings.withLock { $0.append(warning) }
        }.ready()
        #expect(try await harness.rejection(new(.p256)) == nil)
        let unused = Self.third.token(
            header: header(.p256).replacing(TestKey.p256.keyID, with: "other 149"),
            claims: claims())
        #expect(try await harness.rejection(unused) == .badSignature)
        #expect(harness.authenticator.keyCounts.map(\.keys) == [100])
        #expect(
            warnings.withLock { $0 } == [
                "example: its key set has more than 100 keys: the last 51 are not used"
            ])
        await close(harness)
    }

    @Test func tokensOfAWithdrawnKeyAreInvalid() async throws {
        let server = KeyServer(keySet(TestKey.p256.jwk(), Self.second.jwk()))
        let harness = await Harness([server.issuer()], times: quickly).ready()
        let (kept, lost) = (new(.p256), new(Self.second))
        #expect(try await harness.rejection(kept) == nil)
        #expect(try await harness.rejection(lost) == nil)
        server.publish(keySet(TestKey.p256.jwk()))
        try await eventually { try await harness.rejection(lost) == .badSignature }
        #expect(try await harness.rejection(kept) == nil)
        #expect(harness.authenticator.statistics.verified == 2)
        await close(harness)
    }

    @Test func aFileIsReadAgainWhenItChanges() async throws {
        let directory = TemporaryDirectory()
        let path = directory.path + "/keys"
        let issuer = TokenIssuer(
            name: "example", keys: .file(path), issuer: issuerName, audiences: [audience])
        let harness = Harness([issuer], times: quickly)
        await eventually { harness.authenticator.statistics.keyRefreshFailures > 0 }
        #expect(try await harness.rejection(new(.p256)) == .unavailable)
        write(keySet(TestKey.p256.jwk()), to: path)
        _ = await harness.ready()
        #expect(try await harness.rejection(new(.p256)) == nil)
        let refreshes = harness.authenticator.statistics.keyRefreshes
        write("{", to: path)
        await eventually { !harness.authenticator.failures.isEmpty }
        #expect(try await harness.rejection(new(.p256)) == nil)
        write(keySet(Self.second.jwk()), to: path)
        try await eventually { try await harness.rejection(new(Self.second)) == nil }
        #expect(harness.authenticator.statistics.keyRefreshes == refreshes + 1)
        await close(harness)
    }

    // MARK: Discovery

    private func discovery(_ server: KeyServer, _ issuer: String) -> TokenIssuer {
        TokenIssuer(name: "oidc", keys: .discovery, issuer: issuer, audiences: [audience])
    }

    private func document(_ issuer: String, _ keys: String) -> FakeService.Response {
        .json(#"{"issuer": "\#(issuer)", "jwks_uri": "\#(keys)"}"#)
    }

    @Test(arguments: ["", "/", "/realms/a"]) func keysAreDiscovered(_ path: String) async throws {
        let server = KeyServer("")
        let issuer = "\(server.service.origin)\(path)"
        let url = server.url
        let place = (path == "/" ? "" : path) + "/.well-known/openid-configuration"
        server.behave { [self] request in
            switch request.target {
            case place: document(issuer, url)
            case "/keys": .json(keySet(TestKey.p256.jwk()), 200, [("cache-control", "max-age=9")])
            default: .json("{}", 404)
            }
        }
        let harness = await Harness([discovery(server, issuer)]).ready()
        let token = token(.p256, claims(("iss", "\"\(issuer)\"")))
        #expect(try await harness.rejection(token) == nil)
        await close(harness)
    }

    @Test func theDiscoveryDocumentIsValidated() async throws {
        let server = KeyServer("")
        let issuer = "\(server.service.origin)"
        let keys = KeyServer(keySet(TestKey.p256.jwk()))
        let lies = [
            document(issuer + "/", server.url), document(issuer, keys.url), .json("[]"),
            document(issuer, "/keys"), document("https://evil.example", server.url),
        ]
        for lie in lies {
            server.behave { _ in lie }
            let harness = Harness([discovery(server, issuer)], times: quickly)
            await eventually { harness.authenticator.statistics.keyRefreshFailures > 1 }
            #expect(harness.authenticator.pending.first?.contains("discovery document") == true)
            await close(harness)
        }
        #expect(keys.requests == 0)
    }

    // MARK: Kubernetes

    @Test func theClusterProvidesItsIssuer() async throws {
        let directory = TemporaryDirectory()
        let accepted = Lock("first")
        let server = KeyServer("")
        server.behave { request in
            guard request.fields["authorization"] == "Bearer " + accepted.withLock({ $0 }) else {
                return .json("{}", 401)
            }
            switch request.target {
            case "/.well-known/openid-configuration":
                return .json(
                    #"{"issuer": "https://kubernetes.default.svc", "jwks_uri": "https://10.0.0.1/"}"#
                )
            case "/openid/v1/jwks": return .json(keySet(TestKey.rsa.jwk()))
            default: return .json("{}", 404)
            }
        }
        write("first\n", to: directory.path + "/token")
        let harness = await Harness(
            [.kubernetes(name: "cluster", audience: audience, group: "pods")],
            environment: [
                "SLUICE_KUBERNETES_API": "\(server.service.origin)",
                "SLUICE_KUBERNETES_ACCOUNT": directory.path,
            ], times: quickly
        ).ready()
        let uid = "system:serviceaccount:shop:web"
        let token = token(
            .rsa,
            claims(
                ("iss", "\"https://kubernetes.default.svc\""), ("sub", "\"\(uid)\""),
                ("kubernetes.io", #"{"namespace": "shop", "pod": {"name": "web-0"}}"#)))
        let principal = try #require(try await harness.ask("Bearer " + token))
        #expect(principal.uid == uid && principal.group == "pods")
        #expect(principal.claim("kubernetes.io", "namespace") == "shop")
        #expect(principal.claim("kubernetes.io", "pod", "name") == "web-0")
        let statistics = harness.authenticator.statistics
        accepted.withLock { $0 = "second" }
        await eventually { harness.authenticator.failures.first?.contains("401") == true }
        write("second", to: directory.path + "/token")
        await eventually { harness.authenticator.failures.isEmpty }
        #expect(statistics.keyRefreshes > 1)
        #expect(try await harness.ask("Bearer " + token)?.uid == uid)
        await close(harness)
    }

    @Test func outsideOfAClusterNothingIsKnownYet() async throws {
        let harness = Harness([.kubernetes(name: "cluster", audience: audience)], times: quickly)
        await eventually { harness.authenticator.statistics.keyRefreshFailures > 0 }
        #expect(
            harness.authenticator.pending == [
                "cluster: this is no pod: KUBERNETES_SERVICE_HOST is not set"
            ])
        #expect(try await harness.rejection(token(.rsa)) == .unavailable)
        await close(harness)
    }

    /// The end leaves nothing that still asks.
    private func close(_ harness: Harness) async {
        await harness.authenticator.close()
        let statistics = harness.authenticator.statistics
        let before = (statistics.keyRefreshes, statistics.keyRefreshFailures)
        for _ in 0..<3 { TestLoop.turn() }
        #expect(before == (statistics.keyRefreshes, statistics.keyRefreshFailures))
    }
}
