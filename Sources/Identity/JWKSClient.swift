import HTTPClient
import System
import Wire

struct FetchedKeys: Sendable {
    /// `iss` of the issuer's tokens.
    let issuer: String
    let text: [UInt8]
    /// The lifetime in seconds (RFC 9111, section 5.2.2.1), if the server reports one.
    let maximumAge: UInt64?
    /// The state of the key file, if the keys are in a file.
    let stamp: FileStamp?
}

struct JWKSClient: Sendable {
    /// The maximum size of a key set or a discovery document: 1 MiB.
    private static let maximumBytes = 1 << 20
    private static let accountDirectory = "/var/run/secrets/kubernetes.io/serviceaccount"

    let issuer: TokenIssuer
    let pool: BlockingPool
    /// `KUBERNETES_SERVICE_HOST` and `…_PORT`, or the URL `SLUICE_KUBERNETES_API` instead; `SLUICE_KUBERNETES_ACCOUNT`,
    /// the directory of the pod's account.
    let environment: [BytewiseString: String]
    let observer: (any UpstreamObserver)?

    /// Fetches the keys; nil if the file still has the state `stamp`.
    func fetch(unless stamp: FileStamp?) async throws(KeyFailure) -> FetchedKeys? {
        if let fault = issuer.fault { throw KeyFailure(fault) }
        switch issuer.keys {
        case .file(let path): return try await read(path, unless: stamp)
        case .url(let url): return try await keys(from: try endpoint(url))
        case .discovery:
            let configured = issuer.issuer ?? ""
            let base = configured.hasSuffix("/") ? String(configured.dropLast()) : configured
            let endpoint = try endpoint(base + "/.well-known/openid-configuration")
            let document = Document(try await get(endpoint).body)
            guard let issuer = document.issuer, BytewiseString.areEqual(issuer, configured) else {
                throw KeyFailure("\(endpoint.origin): the discovery document is of another issuer")
            }
            guard let url = document.keys, let keys = Origin.cut(url),
                keys.origin.scheme == .https || keys.origin == endpoint.origin
            else {
                throw KeyFailure(
                    "\(endpoint.origin): the discovery document has no jwks_uri of https")
            }
            return try await self.keys(from: keys)
        case .cluster: return try await fetchFromCluster()
        }
    }

    // MARK: Kubernetes

    /// Fetches from the API server with the pod's service account. Its token and certificate authority may rotate.
    private func fetchFromCluster() async throws(KeyFailure) -> FetchedKeys {
        let origin = try clusterOrigin()
        let directory = environment["SLUICE_KUBERNETES_ACCOUNT"] ?? JWKSClient.accountDirectory
        let token = ASCII.trimmed(Array(try await contents(directory + "/token").split(separator: 0x0a).joined())[...])
        guard !token.isEmpty, token.allSatisfy(ASCII.isVisible) else {
            throw KeyFailure("\(directory)/token has no token")
        }
        var fields = HeaderFields()
        fields.append("authorization", "Bearer " + String(decoding: token, as: UTF8.self))
        let authorities = directory + "/ca.crt"
        var name = issuer.issuer
        if name == nil {
            let endpoint = (origin, "/.well-known/openid-configuration")
            name = Document(try await get(endpoint, fields, authorities).body).issuer
        }
        guard let name, !name.isEmpty else {
            throw KeyFailure("\(origin): the discovery document names no issuer")
        }
        let response = try await get((origin, "/openid/v1/jwks"), fields, authorities)
        return FetchedKeys(issuer: name, text: response.body, maximumAge: maximumAge(response.fields), stamp: nil)
    }

    private func clusterOrigin() throws(KeyFailure) -> Origin {
        if let url = environment["SLUICE_KUBERNETES_API"] {
            guard let origin = Origin(url), origin.scheme == .https || origin.isLoopback else {
                throw KeyFailure("SLUICE_KUBERNETES_API is not a URL of https")
            }
            return origin
        }
        guard let host = environment["KUBERNETES_SERVICE_HOST"], let port = environment["KUBERNETES_SERVICE_PORT"]
        else { throw KeyFailure("this is no pod: KUBERNETES_SERVICE_HOST is not set") }
        let name = host.utf8.contains(UInt8(ascii: ":")) ? "[\(host)]" : host
        guard let origin = Origin("https://\(name):\(port)") else {
            throw KeyFailure("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are no address")
        }
        return origin
    }

    // MARK: Files

    private func read(_ path: String, unless stamp: FileStamp?) async throws(KeyFailure)
        -> FetchedKeys?
    {
        let file = try await file(path) { path throws(SystemError) in
            try File.contents(of: path, limit: JWKSClient.maximumBytes, unless: stamp)
        }
        guard let file else { return nil }
        return FetchedKeys(issuer: issuer.issuer ?? "", text: file.bytes, maximumAge: nil, stamp: file.stamp)
    }

    private func contents(_ path: String) async throws(KeyFailure) -> [UInt8] {
        try await file(path) { path throws(SystemError) in
            try File.contents(of: path, limit: JWKSClient.maximumBytes)
        }
    }

    private func file<Contents: Sendable>(
        _ path: String, _ read: @escaping @Sendable (String) throws(SystemError) -> Contents
    ) async throws(KeyFailure) -> Contents {
        do throws(SystemError) {
            return try await pool.run { () throws(SystemError) in try read(path) }
        } catch {
            throw KeyFailure("\(path): \(error)")
        }
    }

    // MARK: Requests

    private typealias Endpoint = (origin: Origin, target: String)

    private struct Document {
        let issuer: String?
        let keys: String?

        init(_ text: [UInt8]) {
            let json = try? JSONReader.parse(text)
            issuer = json?["issuer"]?.text
            keys = json?["jwks_uri"]?.text
        }
    }

    private func endpoint(_ url: String) throws(KeyFailure) -> Endpoint {
        guard let endpoint = Origin.cut(url) else { throw KeyFailure("its URL is not one") }
        return endpoint
    }

    private func keys(from endpoint: Endpoint) async throws(KeyFailure) -> FetchedKeys {
        let response = try await get(endpoint)
        return FetchedKeys(
            issuer: issuer.issuer ?? "", text: response.body, maximumAge: maximumAge(response.fields), stamp: nil)
    }

    /// Requires status 200. Redirects are not followed, because the keys are at the configured URL.
    private func get(
        _ endpoint: Endpoint, _ fields: HeaderFields = HeaderFields(), _ authorities: String? = nil
    ) async throws(KeyFailure) -> CollectedResponse {
        var settings = UpstreamSettings(name: "keys of \(issuer.name)", origin: endpoint.origin)
        settings.connectTimeout = 5_000_000_000
        settings.firstByteTimeout = 10_000_000_000
        settings.progressTimeout = 5_000_000_000
        // The caller repeats the request itself, with pauses.
        settings.attempts = 1
        settings.certificateAuthorities = authorities ?? issuer.certificateAuthorities
        // With one request per hour, an idle connection is not worth keeping.
        let upstream = Upstream(settings, observer: observer)
        let request = ClientRequest("GET", endpoint.target, fields: fields)
        request.fields.append("accept", "application/jwk-set+json, application/json")
        let outcome: Result<CollectedResponse, ClientError>
        do throws(ClientError) {
            outcome = .success(try await upstream.call(request, limit: JWKSClient.maximumBytes))
        } catch {
            outcome = .failure(error)
        }
        await upstream.close()
        switch outcome {
        case .success(let response) where response.status == 200: return response
        case .success(let response): throw KeyFailure("\(endpoint.origin) responds with \(response.status)")
        case .failure(let error): throw KeyFailure("\(endpoint.origin): \(error.cause)")
        }
    }

    private func maximumAge(_ fields: HeaderFields) -> UInt64? {
        guard let text = fields.list("cache-control") else { return nil }
        var age: UInt64?
        for directive in text.utf8.split(separator: UInt8(ascii: ",")) {
            let word = ASCII.trimmed(Array(directive).map(ASCII.lowercased)[...])
            if word.elementsEqual("no-store".utf8) || word.elementsEqual("no-cache".utf8) {
                return 0
            }
            if word.starts(with: "max-age=".utf8) {
                age = Decimal.saturating(word.dropFirst(8).filter { $0 != 0x22 }[...])
            }
        }
        return age
    }
}
