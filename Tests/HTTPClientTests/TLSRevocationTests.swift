import Foundation
import Glibc
import Testing

@testable import HTTPClient

/// Revocation lists for upstreams: by our transport as by libcurl.
@Suite("Revocation of an upstream's certificate", .timeLimit(.minutes(2)))
struct TLSRevocationTests {
    private let root = TestIdentity(nil, commonName: "root", isAuthority: true)

    /// A server that closes each connection after its response.
    private func server(_ way: Way, _ context: OpaquePointer) -> ScriptedServer {
        ScriptedServer(way, context: context) { peer, _ in
            guard peer.request() != nil else { return }
            peer.respond(200, peer.isResumed ? "resumed" : "new", fields: "connection: close\r\n")
        }
    }

    /// Runs `body` with a client of a server that has `context`. The server stays until the end.
    private func withUpstream(
        _ way: Way, _ context: OpaquePointer, _ lists: String,
        _ body: (Upstream) async throws -> Void
    ) async rethrows {
        let server = server(way, context)
        let upstream = server.upstream {
            $0.certificateAuthorities = root.path
            $0.revocations = lists
        }
        try await body(upstream)
        await upstream.close()
        withExtendedLifetime(server) {}
    }

    @Test("A certificate is accepted if a current list does not have it", arguments: Way.secure)
    func accepted(way: Way) async throws {
        let identity = TestIdentity("IP:127.0.0.1", issuer: root)
        let lists = root.revocations(TestIdentity("IP:127.0.0.1", issuer: root))
        await withUpstream(way, identity.context(), lists) { upstream in
            // A resumed session would not be checked.
            for _ in 0..<3 { #expect(await upstream.ask().text == "new") }
        }
    }

    enum Lists: CaseIterable { case revoked, expired, ofAnother, unusable, missing }

    @Test(
        "A certificate is rejected if it is revoked, or no current list says that it is not",
        arguments: Way.secure, Lists.allCases)
    func rejected(way: Way, lists: Lists) async throws {
        let identity = TestIdentity("IP:127.0.0.1", issuer: root)
        let other = TestIdentity(nil, commonName: "other", isAuthority: true)
        let (file, reason) =
            switch lists {
            case .revoked: (root.revocations(identity), "certificate revoked")
            case .expired: (root.revocations(ends: -3600), "CRL has expired")
            case .ofAnother: (other.revocations(), "unable to get certificate CRL")
            case .unusable: (root.path, root.path)
            case .missing: (root.path + ".missing", root.path + ".missing")
            }
        await withUpstream(way, identity.context(), file) { upstream in
            guard case .failure(let error) = await upstream.ask() else {
                Issue.record("a response with a certificate that was not checked")
                return
            }
            #expect(error.code == .unreachable && !error.mayHaveReached)
            #expect(error.cause.contains(reason), "\(error)")
        }
    }

    @Test("Every authority of the chain is checked", arguments: Way.secure, [true, false])
    func chain(way: Way, isRevoked: Bool) async throws {
        let middle = TestIdentity(nil, commonName: "middle", isAuthority: true, issuer: root)
        let identity = TestIdentity("IP:127.0.0.1", issuer: middle)
        let file = middle.revocations()
        let more = isRevoked ? root.revocations(middle) : root.revocations()
        try
            (String(contentsOfFile: file, encoding: .utf8)
            + String(contentsOfFile: more, encoding: .utf8))
            .write(toFile: file, atomically: true, encoding: .utf8)
        await withUpstream(way, identity.context { middle.extend($0) }, file) { upstream in
            let outcome = await upstream.ask()
            #expect(outcome.text == (isRevoked ? nil : "new"), "\(outcome)")
            if case .failure(let error) = outcome {
                #expect(error.cause.contains("certificate revoked"), "\(error)")
            }
        }
    }

    @Test("A changed list is used for new connections", arguments: Way.secure)
    func changed(way: Way) async throws {
        let identity = TestIdentity("IP:127.0.0.1", issuer: root)
        let file = root.revocations()
        try await withUpstream(way, identity.context(), file) { upstream in
            #expect(await upstream.ask().text == "new")
            try #require(rename(root.revocations(identity), file) == 0)
            #expect(await upstream.ask().code == .unreachable)
            try #require(rename(root.revocations(), file) == 0)
            #expect(await upstream.ask().text == "new")
        }
    }
}
