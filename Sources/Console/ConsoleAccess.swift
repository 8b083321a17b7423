import Gateway
import HTTPClient
import HTTPServer
import OpenSSL
import System
import Wire

/// Who may use the console: pages of its own origin, with its token.
///
/// A browser sends requests for any page that asks it to, also for a page whose host's name was changed to resolve to
/// this machine (DNS rebinding). So a request must name the console's own host, and a page of it, if any.
struct ConsoleAccess: Sendable {
    /// More wrong tokens within a minute are 429.
    private static let maximumFailures = 10
    private static let period: UInt64 = 60_000_000_000

    private struct Failures {
        var since: UInt64 = 0
        var count = 0
    }
    /// SHA-256.
    private let token: [UInt8]
    /// Beside loopback names, in lower case, without ports.
    private let hosts: Set<BytewiseString>
    private let failures = Lock(Failures())
    private let now: @Sendable () -> UInt64

    init(token: [UInt8], hosts: [String], now: @escaping @Sendable () -> UInt64 = { EventLoop.monotonicNow() }) {
        self.token = token
        self.hosts = Set(hosts.map { BytewiseString($0.asciiLowercased()) })
        self.now = now
    }

    /// Checks that the request is for the console's host, and that a page that makes it is the console's own.
    /// - Throws: ``Problem``: 421 (RFC 9110, section 15.5.20), 403.
    func check(_ head: RequestHead) throws(Problem) {
        guard let authority = head.authority, let own = Origin("http://\(authority)"),
            own.isLoopback || hosts.contains(BytewiseString(own.host))
        else { throw Problem(.misdirectedRequest, "The host is none of the console's: see console.hosts.") }
        let origins = head.fields.values("origin")
        let isOwn = origins.allSatisfy { text in
            guard let origin = Origin(text) else { return false }
            // A proxy before a configured host may have TLS and another port.
            return origin == own || (!own.isLoopback && origin.host == own.host)
        }
        let sites = head.fields.values("sec-fetch-site")
        guard isOwn, sites.allSatisfy({ $0 == "same-origin" || $0 == "none" }) else {
            throw Problem(.unauthorized, "Pages of other origins may not use the console.")
        }
    }

    /// Checks the token, `X-Console-Token`.
    /// - Throws: ``Problem``: 401, or 429 after too many wrong tokens.
    func authenticate(_ head: RequestHead) throws(Problem) {
        let shown = head.fields.values("x-console-token")
        guard let text = shown.first, !text.isEmpty else {
            throw Problem(.unauthenticated, "The console needs its token in X-Console-Token.")
        }
        // A wrong token must not lock out those with the right one, which has as many bits as its hash.
        if shown.count == 1, areEqualInConstantTime(Digest.hash(text), token) { return }
        let time = now()
        let wait = failures.withLock { failures -> UInt64? in
            if time - failures.since > ConsoleAccess.period { failures = Failures(since: time) }
            failures.count += 1
            return failures.count <= ConsoleAccess.maximumFailures ? nil : failures.since + ConsoleAccess.period - time
        }
        if let wait {
            throw Problem(
                .tooManyRequests, "Too many wrong tokens.", field: ("retry-after", "\(wait / 1_000_000_000 + 1)"))
        }
        throw Problem(.unauthenticated, "The token is not the console's.")
    }
}

extension Digest {
    fileprivate static func hash(_ text: String) -> [UInt8] {
        let digest = Digest(.sha256)
        digest.update(Array(text.utf8).span.bytes)
        return digest.finish()
    }
}
