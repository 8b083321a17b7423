import OpenSSL
import System

/// A client's verified certificate and its current validity. Confined to the connection's loop.
struct VerifiedPeer {
    /// The listener's identity for the certificate.
    let identity: any AnyObject & Sendable
    /// Whether the certificate would be accepted now.
    private(set) var isCurrent = true
    /// The version of the listener's credentials that last verified the certificate.
    private var version: Int
    /// The time after which the connection ends with its next response, so that it does not outlive the certificate.
    private let retirement: UInt64

    /// The maximum time in nanoseconds between the end of a connection and the expiry of its certificate. It exceeds
    /// the idle timeout, so a client that renews its certificate in time is never rejected on an old connection.
    private static let maximumMargin: UInt64 = 300_000_000_000

    /// - Parameter version: The version of the credentials that verified the certificate.
    init(
        _ certificate: PeerCertificate, identity: any AnyObject & Sendable, version: Int,
        now: UInt64
    ) {
        self.identity = identity
        self.version = version
        // The current second counts as elapsed.
        let left = max(0, min(certificate.notAfter - SystemClock.seconds() - 1, Int64(UInt32.max)))
        let nanoseconds = UInt64(left) * 1_000_000_000
        retirement = now + nanoseconds - min(nanoseconds / 10, VerifiedPeer.maximumMargin)
    }

    /// Called for each request. Verifies the certificate again if the credentials have changed.
    /// - Returns: Whether the connection must end with the response to this request.
    mutating func check(_ session: TLSSession, _ credentials: TLSCredentials, now: UInt64)
        -> Bool
    {
        let latest = credentials.version
        if latest != version {
            version = latest
            isCurrent = session.isPeerAccepted(by: credentials.current)
        }
        return !isCurrent || now >= retirement
    }
}

extension Connection {
    /// Checks the certificate for a new request. Returns whether the connection must end with its response.
    func checkCertificate() -> Bool {
        guard let tls, let credentials = listener.credentials else { return false }
        return verified?.check(tls, credentials, now: context.loop.now) ?? false
    }
}
