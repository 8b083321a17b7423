import Buckets
import EventLoop
import Gateway
import HTTPClient
import HTTPServer
import Identity
import OpenSSL

extension Configuration {
    /// What verifies tokens.
    func authenticator(
        acceptsUnsigned: Bool, pool: BlockingPool, observer: any UpstreamObserver
    ) -> Authenticator {
        Authenticator(
            issuers: issuers.compactMap(\.tokenIssuer),
            staticTokens: tokens.compactMap(\.staticToken), acceptsUnsigned: acceptsUnsigned,
            pool: pool, observer: observer, environment: processEnvironment())
    }

    /// How callers are told from each other.
    /// - Throws: An error that names the file of keys.
    func callers(_ authenticator: Authenticator) throws -> Callers {
        Callers(
            authenticator: authenticator, limits: CallerLimits(callers),
            linkKeys: try linkKeys(),
            maximumLifetime: Int64(links.maximumLifetime / 1_000_000_000))
    }
}

extension Configuration.Clients {
    /// Makes of a client's certificate who it is; nil where none is asked for.
    var identify: (@Sendable (PeerCertificate) -> any AnyObject & Sendable)? {
        guard authorities != nil else { return nil }
        let name = ClientIdentity.Name(rawValue: uid) ?? .spiffe
        let group = group ?? Callers.certificateGroup
        return { ClientIdentity($0, uid: name, group: group) }
    }
}

extension Authenticator {
    /// Adds a check of the keys, and the numbers of tokens.
    func show(in registry: PrometheusRegistry, _ health: Health) {
        registry.addTokens(statistics)
        if !issuers.isEmpty {
            health.add("issuers") { [self] in
                let pending = pending
                if !pending.isEmpty {
                    throw MissingKeys(description: pending.joined(separator: "; "))
                }
            }
        }
        health.addNote("issuers") { [self] in
            let failures = failures
            return failures.isEmpty ? nil : failures.joined(separator: "\n")
        }
    }
}

/// Issuers whose tokens can't be verified yet.
private struct MissingKeys: Error, CustomStringConvertible {
    var description: String
}
