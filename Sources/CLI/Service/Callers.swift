import Buckets
import Configuration
import Gateway
import HTTPClient
import HTTPServer
import Identity
import OpenSSL
import System
import Telemetry
import Wire

extension Configuration {
    /// The verifier of callers' tokens.
    func authenticator(
        acceptsUnsigned: Bool, pool: BlockingPool, observer: any UpstreamObserver
    ) -> Authenticator {
        Authenticator(
            issuers: issuers.compactMap(\.tokenIssuer), staticTokens: tokens.compactMap(\.staticToken),
            acceptsUnsigned: acceptsUnsigned, pool: pool, observer: observer, environment: Environment.variables())
    }

    /// The gateway's view of callers: authentication, limits and signed links.
    /// - Throws: An error with the name of the key file.
    /// - Parameter s3Verifier: nil if S3 clients are not served.
    func callers(_ authenticator: Authenticator, _ s3Verifier: S3Verifier?) throws -> Callers {
        Callers(
            authenticator: authenticator, limits: CallerLimits(callers),
            linkKeys: try linkKeys(),
            maximumLifetime: Int64(links.maximumLifetime / 1_000_000_000), s3: s3Verifier)
    }
}

extension Configuration.Clients {
    /// Maps a client certificate to an identity; nil if client certificates are not requested.
    var identify: (@Sendable (PeerCertificate) -> any AnyObject & Sendable)? {
        guard authorities != nil else { return nil }
        let name = ClientIdentity.Name(rawValue: uid) ?? .spiffe
        let group = group ?? Callers.certificateGroup
        return { ClientIdentity($0, uid: name, group: group) }
    }
}

extension Authenticator {
    /// Registers the metrics of tokens and keys, and the readiness check of the issuers' keys.
    func show(in registry: PrometheusRegistry, _ health: Health) {
        registry.addTokens(statistics)
        registry.addIssuerKeys(self)
        if !issuers.isEmpty {
            health.add("issuers") { [self] in
                let pending = pending
                if !pending.isEmpty {
                    throw MissingKeys(description: pending.joined(separator: "; "))
                }
            }
        }
        health.addNote("issuers") { [self] in
            let failures = failures + warnings
            return failures.isEmpty ? nil : failures.joined(separator: "\n")
        }
    }
}

/// Issuers whose keys have not been loaded, so their tokens can't be verified yet.
private struct MissingKeys: Error, CustomStringConvertible {
    var description: String
}
