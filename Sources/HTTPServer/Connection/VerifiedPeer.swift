import OpenSSL
import System

/// The client of a connection that showed a certificate, and whether it still counts. Confined to the connection's loop.
struct VerifiedPeer {
    /// What the listener made of the certificate.
    let identity: any AnyObject & Sendable
    /// Whether a client that showed the certificate now would be let in.
    private(set) var isCurrent = true
    /// The version of the listener's credentials that the certificate was verified by last.
    private var version: Int
    /// From when on the connection ends with its next response, so that it does not outlive the certificate.
    private let retirement: UInt64

    /// How long before its certificate a connection ends at most, nanoseconds: longer than it may be idle, so that
    /// whoever renews a certificate in time is never refused on a connection of before.
    private static let maximumMargin: UInt64 = 300_000_000_000

    /// - Parameters:
    ///   - version: Of the credentials that the certificate was verified by.
    ///   - now: The loop's time.
    init(
        _ certificate: PeerCertificate, identity: any AnyObject & Sendable, version: Int,
        now: UInt64
    ) {
        self.identity = identity
        self.version = version
        // The second that has begun is over for it.
        let left = max(0, min(certificate.notAfter - SystemClock.seconds() - 1, Int64(UInt32.max)))
        let nanoseconds = UInt64(left) * 1_000_000_000
        retirement = now + nanoseconds - min(nanoseconds / 10, VerifiedPeer.maximumMargin)
    }

    /// A request begins. Where the credentials are others than before, the certificate is verified again, by them.
    /// - Returns: Whether the connection is to end with the request's response, for the certificate's sake.
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
