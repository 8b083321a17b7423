import HTTPClient
import System
import Wire

/// Fetches an access token. Files are read each time, so that keys and subject tokens can be rotated.
struct GoogleTokenFetcher: Sendable {
    /// The maximum size of a credentials file, a subject token and an endpoint's response: 64 KiB.
    private static let maximumBytes = 64 * 1024

    let source: GoogleCredentials.Source
    let scope: String
    let environment: [BytewiseString: String]
    let pool: BlockingPool
    let observer: (any UpstreamObserver)?

    func fetch() async throws(ClientError) -> GoogleToken {
        switch source {
        case .file(let path): return try await fetch(file: path)
        case .metadataServer: return try await fetchFromMetadataServer()
        case .automatic:
            if let path = environment["GOOGLE_APPLICATION_CREDENTIALS"], !path.isEmpty {
                return try await fetch(file: path)
            }
            let directory =
                environment["CLOUDSDK_CONFIG"]
                ?? environment["HOME"].map { $0 + "/.config/gcloud" }
            if let path = directory.map({ $0 + "/application_default_credentials.json" }),
                let text = try? await read(path)
            {
                return try await fetch(GoogleAccount(text, file: path))
            }
            return try await fetchFromMetadataServer()
        case .anonymous, .emulatorOwner: throw ClientError(.unreachable, "these credentials need no token")
        }
    }

    private func fetch(file path: String) async throws(ClientError) -> GoogleToken {
        try await fetch(GoogleAccount(try await read(path), file: path))
    }

    private func fetch(_ account: GoogleAccount) async throws(ClientError) -> GoogleToken {
        switch account {
        case .service(let service):
            let now = SystemClock.seconds()
            return try await grant(
                service.tokenEndpoint,
                [
                    ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
                    ("assertion", try service.assertion(scope: scope, now: now)),
                ])
        case .user(let user):
            return try await grant(
                user.tokenEndpoint,
                [
                    ("grant_type", "refresh_token"), ("client_id", user.clientId),
                    ("client_secret", user.clientSecret), ("refresh_token", user.refreshToken),
                ])
        case .external(let external): return try await exchange(external)
        }
    }

    // MARK: Metadata server

    /// Fetches a token from the metadata server, on a machine or in a pod on Google Cloud.
    private func fetchFromMetadataServer() async throws(ClientError) -> GoogleToken {
        let host = environment["GCE_METADATA_HOST"].flatMap { $0.isEmpty ? nil : $0 }
        guard let origin = Origin("http://" + (host ?? "metadata.google.internal")) else {
            throw ClientError(.unreachable, "credentials: GCE_METADATA_HOST is not a host")
        }
        let path = "/computeMetadata/v1/instance/service-accounts/default/token"
        let request = ClientRequest("GET", "\(path)?scopes=\(PercentEncoding.encodeSegment(scope))")
        request.fields.append("metadata-flavor", "Google")
        let response = try await call(request, GoogleEndpoint(origin, request.target), quick: true)
        // A response without this field is from another server and must not be trusted.
        guard response.fields["metadata-flavor"] == "Google" else {
            throw ClientError(.unreachable, "credentials: \(origin) is not a metadata server of Google's")
        }
        return try token(response, from: origin)
    }

    // MARK: Workload identity federation

    /// Exchanges an external token for one of Google's (RFC 8693), and that for a service account's if configured.
    private func exchange(_ account: GoogleAccount.External) async throws(ClientError)
        -> GoogleToken
    {
        let subject = try await subjectToken(account)
        let form = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("audience", account.audience), ("subject_token_type", account.subjectTokenType),
            ("subject_token", subject),
            (
                "scope",
                account.impersonation == nil
                    ? scope : "https://www.googleapis.com/auth/cloud-platform"
            ),
        ]
        let federated = try await grant(account.tokenEndpoint, form, authorization: account.basicAuthorization)
        guard let endpoint = account.impersonation else { return federated }
        var body = JSONWriter(reserving: 256)
        body.beginObject()
        body.key("scope")
        body.beginArray()
        body.string(scope)
        body.endArray()
        body.member("lifetime", "\(account.impersonationSeconds)s")
        body.endObject()
        let request = ClientRequest("POST", endpoint.target, body: .bytes(body.bytes), isRepeatable: true)
        request.fields.append("authorization", "Bearer \(federated.value)")
        request.fields.append("content-type", "application/json")
        let response = try await call(request, endpoint)
        let json = try parse(response, from: endpoint.origin)
        guard let value = json["accessToken"]?.text, isToken(value),
            let expiry = json["expireTime"]?.text.flatMap({ HTTPDate.parse(rfc3339: $0) })
        else {
            throw ClientError(.malformed, "credentials: \(endpoint.origin) gave no access token")
        }
        let seconds = max(1, min(expiry / 1000 - SystemClock.seconds(), 86_400))
        return GoogleToken(value: value, lifetime: UInt64(seconds) * 1_000_000_000)
    }

    private func subjectToken(_ account: GoogleAccount.External) async throws(ClientError)
        -> String
    {
        let bytes: [UInt8]
        let source: String
        switch account.subject {
        case .file(let path):
            bytes = try await read(path)
            source = path
        case .endpoint(let endpoint, let fields):
            source = "\(endpoint.origin)"
            let request = ClientRequest("GET", endpoint.target)
            for (name, value) in fields { request.fields.append(name: name, value) }
            bytes = try await call(request, endpoint).body
        }
        var text = String(decoding: bytes, as: UTF8.self)
        if let field = account.subjectField {
            guard let json = try? JSONReader.parse(bytes), let value = json[field]?.text else {
                throw ClientError(.malformed, "credentials: \(source) has no member '\(field)' with a token")
            }
            text = value
        }
        while text.utf8.last == 0x0a || text.utf8.last == 0x0d { text.unicodeScalars.removeLast() }
        guard !text.isEmpty else {
            throw ClientError(.malformed, "credentials: the subject token in \(source) is empty")
        }
        return text
    }

    // MARK: Requests

    /// Posts a form and parses the token in the response (RFC 6749, section 5).
    private func grant(
        _ endpoint: GoogleEndpoint, _ form: [(String, String)], authorization: String? = nil
    ) async throws(ClientError) -> GoogleToken {
        let body = form.map { "\($0)=\(PercentEncoding.encodeSegment($1))" }.joined(separator: "&")
        // Repeating a grant only returns another token.
        let request = ClientRequest("POST", endpoint.target, body: .bytes(Array(body.utf8)), isRepeatable: true)
        request.fields.append("content-type", "application/x-www-form-urlencoded")
        if let authorization { request.fields.append("authorization", authorization) }
        return try token(try await call(request, endpoint), from: endpoint.origin)
    }

    /// - Parameter quick: Uses short timeouts, for a server on the same machine that may not exist.
    private func call(_ request: ClientRequest, _ endpoint: GoogleEndpoint, quick: Bool = false)
        async throws(ClientError) -> CollectedResponse
    {
        var settings = UpstreamSettings(name: "google credentials", origin: endpoint.origin)
        settings.connectTimeout = quick ? 1_000_000_000 : 5_000_000_000
        settings.firstByteTimeout = quick ? 5_000_000_000 : 15_000_000_000
        settings.progressTimeout = 5_000_000_000
        settings.attempts = 3
        // With one request per hour, an idle connection is not worth keeping.
        let upstream = Upstream(settings, observer: observer)
        let outcome: Result<CollectedResponse, ClientError>
        do throws(ClientError) {
            outcome = .success(try await upstream.call(request, limit: Self.maximumBytes))
        } catch {
            outcome = .failure(
                ClientError(error.code, "credentials: \(endpoint.origin): \(error.cause)"))
        }
        await upstream.close()
        let response = try outcome.get()
        guard response.status == 200 else {
            throw ClientError(
                .unreachable, "credentials: \(endpoint.origin) responds with \(response.status)\(reason(response.body))"
            )
        }
        return response
    }

    /// The reason of a rejection in an endpoint's response (RFC 6749, section 5.2, or Google's error format).
    private func reason(_ body: [UInt8]) -> String {
        guard let json = try? JSONReader.parse(body) else { return "" }
        let words = [
            json["error"]?.text ?? json["error"]?["status"]?.text,
            json["error_description"]?.text ?? json["error"]?["message"]?.text,
        ].compactMap { $0 }
        return words.isEmpty ? "" : ": " + ASCII.plainWords(words.joined(separator: ": "))
    }

    private func parse(_ response: CollectedResponse, from origin: Origin) throws(ClientError)
        -> JSONValue
    {
        guard let json = try? JSONReader.parse(response.body) else {
            throw ClientError(.malformed, "credentials: \(origin) does not respond with JSON")
        }
        return json
    }

    private func token(_ response: CollectedResponse, from origin: Origin) throws(ClientError)
        -> GoogleToken
    {
        let json = try parse(response, from: origin)
        guard let value = json["access_token"]?.text, isToken(value),
            let seconds = json["expires_in"]?.integer, seconds > 0
        else { throw ClientError(.malformed, "credentials: \(origin) gave no access token") }
        return GoogleToken(value: value, lifetime: UInt64(min(seconds, 86_400)) * 1_000_000_000)
    }

    private func isToken(_ text: String) -> Bool {
        !text.isEmpty && text.utf8.allSatisfy(ASCII.isVisible)
    }

    private func read(_ path: String) async throws(ClientError) -> [UInt8] {
        do throws(SystemError) {
            return try await pool.run { () throws(SystemError) in try File.contents(of: path, limit: Self.maximumBytes)
            }
        } catch {
            throw ClientError(.unreachable, "credentials: \(path): \(error)")
        }
    }
}
