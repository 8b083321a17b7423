import COpenSSL
import Dispatch
import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import HTTPClient

/// Who is accepted as the upstream: by our transport as by libcurl.
@Suite("The verification of an upstream", .timeLimit(.minutes(2)))
struct TLSVerificationTests {
    private static let authority = TestIdentity(nil, commonName: "authority", isAuthority: true)

    /// The error of a request, which no script sees.
    private func failure(
        _ server: ScriptedServer, host: String = "127.0.0.1",
        _ change: (inout UpstreamSettings) -> Void = { _ in }
    ) async throws -> ClientError {
        let upstream = server.upstream {
            $0.origin = Origin(.https, host: host, port: server.port)
            change(&$0)
        }
        defer { Task { await upstream.close() } }
        let outcome = await upstream.ask()
        guard case .failure(let error) = outcome else {
            Issue.record("a response from somebody else: \(outcome)")
            throw ClientError(.cancelled, "")
        }
        #expect(!error.mayHaveReached && upstream.statistics.idleConnections == 0)
        return error
    }

    /// A server that counts the requests it gets.
    private func server(_ way: Way, _ identity: TestIdentity) -> ScriptedServer {
        ScriptedServer(way, identity) { peer, _ in
            peer.respondToAll { _ in
                Issue.record("a request was sent to somebody else")
                return peer.respond()
            }
        }
    }

    @Test(
        "A certificate of another name is rejected", arguments: Way.secure,
        [
            ("IP:127.0.0.1", "localhost"), ("DNS:localhost", "127.0.0.1"),
            ("IP:127.0.0.2", "127.0.0.1"), ("DNS:127.0.0.1", "127.0.0.1"),
            ("DNS:local*", "localhost"), ("DNS:*host", "localhost"), ("DNS:*", "localhost"),
            ("DNS:localhost.example.com", "localhost"),
        ])
    func wrongName(way: Way, names: (certificate: String, host: String)) async throws {
        let identity = TestIdentity(names.certificate, issuer: Self.authority)
        let error = try await failure(server(way, identity), host: names.host) {
            $0.certificateAuthorities = Self.authority.path
        }
        #expect(error.code == .unreachable)
        #expect(error.cause.contains("target host name '\(names.host)'"), "\(error)")
    }

    @Test("The common name of a certificate is not the host's name")
    func commonName() async throws {
        let identity = TestIdentity(nil, commonName: "localhost", issuer: Self.authority)
        let error = try await failure(server(.tls, identity), host: "localhost") {
            $0.certificateAuthorities = Self.authority.path
        }
        #expect(error.code == .unreachable && error.cause.contains("target host name"))
    }

    @Test(
        "A certificate is rejected that is not valid now, or not from a known authority",
        arguments: Way.secure,
        [
            ("has expired", (-7200, -3600)), ("not yet valid", (3600, 7200)),
            ("unable to get local issuer certificate", (-3600, 3600)),
        ])
    func wrongCertificate(way: Way, row: (word: String, validity: (Int, Int))) async throws {
        let identity = TestIdentity(
            "IP:127.0.0.1", validity: row.validity, issuer: Self.authority)
        let isKnown = !row.word.contains("issuer")
        let error = try await failure(server(way, identity)) {
            if isKnown { $0.certificateAuthorities = Self.authority.path }
        }
        #expect(error.code == .unreachable && error.isUntrusted)
        #expect(error.cause.contains("SSL certificate problem"), "\(error)")
        #expect(error.cause.contains(row.word), "\(error)")
    }

    @Test("The system's authorities do not know a test's certificate", arguments: Way.secure)
    func selfSigned(way: Way) async throws {
        let error = try await failure(server(way, .shared)) { $0.certificateAuthorities = nil }
        #expect(error.code == .unreachable && error.cause.contains("self-signed"), "\(error)")
    }

    @Test("A version before TLS 1.2 is rejected", arguments: Way.secure)
    func oldVersion(way: Way) async throws {
        let context = TestIdentity.shared.context { limit($0, to: TLS1_1_VERSION) }
        let server = ScriptedServer(way, context: context) { _, _ in
            Issue.record("a handshake with TLS 1.1")
        }
        let error = try await failure(server)
        #expect(error.code == .unreachable && error.cause.contains("protocol"), "\(error)")
        #expect(!error.isUntrusted)
    }

    @Test("A port without TLS is reported", arguments: Way.secure)
    func clearText(way: Way) async throws {
        let server = ScriptedServer(way, context: nil) { peer, _ in
            peer.send("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            peer.waitForEnd()
        }
        let error = try await failure(server)
        #expect(error.code == .unreachable)
        #expect(
            error.cause.contains(
                "the port does not speak TLS: use an http:// address where that is meant"),
            "\(error)")
    }

    @Test("A connection that is lost in the handshake is reported", arguments: Way.secure)
    func cutHandshake(way: Way) async throws {
        let server = ScriptedServer(way, context: nil) { peer, _ in _ = peer.body(100) }
        #expect(try await failure(server).code == .unreachable)
    }

    @Test("A handshake that takes too long times out", arguments: Way.secure)
    func slowHandshake(way: Way) async throws {
        let server = ScriptedServer(way, context: nil) { peer, _ in peer.waitForEnd() }
        let error = try await failure(server) { $0.connectTimeout = 200_000_000 }
        #expect(error.code == .timedOut, "\(error)")
    }

    @Test("A protocol that was not offered is rejected")
    func otherProtocol() async throws {
        let context = TestIdentity.shared.context {
            SSL_CTX_set_alpn_select_cb(
                $0,
                { _, out, length, offered, count, _ in
                    let isAlone = count == 9 && memcmp(offered!, "\u{8}http/1.1", 9) == 0
                    #expect(isAlone)
                    out?.pointee = UnsafePointer(h2)
                    length?.pointee = 2
                    return SSL_TLSEXT_ERR_OK
                }, nil)
        }
        let server = ScriptedServer(.tls, context: context) { peer, _ in peer.waitForEnd() }
        let error = try await failure(server) { $0.http2 = false }
        #expect(error.code == .unreachable, "\(error)")
    }

    @Test("Files that can't be used are reported with their names", arguments: 0..<4)
    func files(place: Int) async throws {
        let other = TestIdentity("DNS:other")
        let missing = other.path + ".missing"
        let error = try await failure(server(.tls, .shared)) {
            $0.clientCertificate = other.path
            $0.clientKey = other.keyPath
            switch place {
            case 0: $0.certificateAuthorities = missing
            case 1: $0.clientCertificate = missing
            case 2: $0.clientKey = missing
            default: $0.clientKey = TestIdentity.shared.keyPath
            }
        }
        #expect(error.code == .unreachable)
        let named = place == 3 ? TestIdentity.shared.keyPath : missing
        #expect(error.cause.contains(named), "\(error)")
    }

    // MARK: What is accepted

    @Test(
        "A certificate of the right name is accepted, and SNI has names only",
        arguments: Way.secure,
        [
            ("IP:127.0.0.1", "127.0.0.1"), ("DNS:localhost", "localhost"),
            ("DNS:LOCALHOST,DNS:x", "localhost"),
        ])
    func rightName(way: Way, names: (certificate: String, host: String)) async throws {
        let identity = TestIdentity(names.certificate, issuer: Self.authority)
        let server = ScriptedServer(way, identity) { peer, _ in
            peer.respondToAll { _ in peer.respond(200, peer.serverName ?? "none") }
        }
        let upstream = server.upstream {
            $0.origin = Origin(.https, host: names.host, port: server.port)
            $0.certificateAuthorities = Self.authority.path
        }
        let outcome = await upstream.ask()
        #expect(outcome.text == (names.host == "localhost" ? "localhost" : "none"), "\(outcome)")
        await upstream.close()
    }

    @Test("A client certificate is sent if there is one", arguments: Way.secure, [true, false])
    func clientCertificate(way: Way, isGiven: Bool) async throws {
        let client = TestIdentity("DNS:client", issuer: Self.authority)
        let context = TestIdentity.shared.context {
            SSL_CTX_load_verify_file($0, Self.authority.path)
            SSL_CTX_set_verify($0, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nil)
            SSL_CTX_set_session_id_context($0, "test", 4)
        }
        let server = ScriptedServer(way, context: context) { peer, _ in
            peer.respondToAll { _ in peer.respond(200, "known") }
        }
        let upstream = server.upstream {
            guard isGiven else { return }
            $0.clientCertificate = client.path
            $0.clientKey = client.keyPath
        }
        let outcome = await upstream.ask()
        #expect(outcome.text == (isGiven ? "known" : nil), "\(outcome)")
        await upstream.close()
    }

    @Test("Changed authorities are used for new connections")
    func changedAuthorities() async throws {
        let identity = TestIdentity("IP:127.0.0.1", isAuthority: true)
        let server = ScriptedServer(.tls, identity) { peer, _ in
            guard peer.request() != nil else { return }
            peer.respond(200, "ab", fields: "connection: close\r\n")
        }
        let file = TestIdentity("DNS:unused").path
        let upstream = server.upstream { $0.certificateAuthorities = file }
        #expect(await upstream.ask().code == .unreachable)
        try #require(rename(TestIdentity("IP:127.0.0.1").path, file) == 0)
        #expect(await upstream.ask().code == .unreachable)
        try #require(rename(identity.path, file) == 0)
        #expect(await upstream.ask().text == "ab")
        await upstream.close()
    }
}

/// The text `h2`, which lives as long as the program.
///
/// Safety: it is never changed.
nonisolated(unsafe) private let h2: UnsafeMutablePointer<UInt8> = {
    let text = UnsafeMutablePointer<UInt8>.allocate(capacity: 2)
    text[0] = UInt8(ascii: "h")
    text[1] = UInt8(ascii: "2")
    return text
}()
