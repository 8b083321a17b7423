import Glibc
import HTTPClient
import System
import Wire
import XML

/// Fetches credentials from one source, or from the first standard source that has any.
package final class AWSCredentialFetcher: Sendable {
    /// The addresses of container agents (ECS, EKS) that may be called in clear text, besides loopback.
    private static let agents = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"]
    /// The maximum size of a file or a response in bytes.
    private static let limit = 1 << 20

    private let source: AWSCredentialSource
    private let region: String
    private let pool: BlockingPool
    private let environment: [BytewiseString: String]
    private let upstreams = Lock<[Origin: Upstream]>([:])

    /// - Parameter environment: The environment variables to use.
    package init(
        _ source: AWSCredentialSource, region: String, pool: BlockingPool,
        environment: [BytewiseString: String] = AWSCredentialFetcher.systemEnvironment()
    ) {
        self.source = source
        self.region = region
        self.pool = pool
        self.environment = environment
    }

    /// The relevant variables of this process. An empty variable counts as unset.
    package static func systemEnvironment() -> [BytewiseString: String] {
        Environment.variables().filter { name, value in
            !value.isEmpty && (name.text.hasPrefix("AWS_") || name == "HOME")
        }
    }

    /// Fetches the current credentials of the source.
    package func fetch() async -> Result<AWSCredentials, AWSCredentialsError> {
        do throws(AWSCredentialsError) {
            guard source == .standard else {
                guard let found = try await fetch(source) else {
                    throw AWSCredentialsError(cause: "there are no credentials: \(name(source))")
                }
                return .success(found)
            }
            // Use the first configured source, even if it fails: silently using other permissions would be a surprise.
            for source: AWSCredentialSource in [
                .environment, .webIdentity, .profile(nil), .container, .instance,
            ] {
                if let found = try await fetch(source) { return .success(found) }
            }
            throw AWSCredentialsError(
                cause: "there are no credentials in the environment, the shared files, a container's "
                    + "agent or the instance's metadata")
        } catch {
            return .failure(error)
        }
    }

    private func name(_ source: AWSCredentialSource) -> String {
        switch source {
        case .anonymous, .fixed, .standard: "not configured"
        case .environment: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"
        case .profile(let name): "the shared files have no keys for profile '\(profileName(name))'"
        case .file(let path, let name): "\(path) has no keys for profile '\(profileName(name))'"
        case .webIdentity: "AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN are not set"
        case .container: "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and …_FULL_URI are not set"
        case .instance: "the instance's metadata service has none"
        }
    }

    /// nil if the source is not configured.
    private func fetch(_ source: AWSCredentialSource) async throws(AWSCredentialsError)
        -> AWSCredentials?
    {
        switch source {
        case .anonymous, .standard: nil
        case .fixed(let credentials): credentials
        case .environment: keys(environment.mapKeys { $0.asciiLowercased() })
        case .profile(let name): try await profile(profileName(name))
        case .file(let path, let name):
            keys(
                AWSConfigurationFile(try await read(path, required: true) ?? "")
                    .profile(profileName(name), inConfiguration: false))
        case .webIdentity:
            try await webIdentity(
                tokenFile: value("AWS_WEB_IDENTITY_TOKEN_FILE"), role: value("AWS_ROLE_ARN"),
                session: value("AWS_ROLE_SESSION_NAME"))
        case .container: try await container()
        case .instance: try await instance()
        }
    }

    private func value(_ name: String) -> String? {
        guard let value = environment[name], !value.isEmpty else { return nil }
        return value
    }

    private func profileName(_ name: String?) -> String {
        name ?? value("AWS_PROFILE") ?? value("AWS_DEFAULT_PROFILE") ?? "default"
    }

    private func keys(_ values: [BytewiseString: String]) -> AWSCredentials? {
        guard let key = values["aws_access_key_id"], let secret = values["aws_secret_access_key"],
            !key.isEmpty, !secret.isEmpty
        else { return nil }
        let token = values["aws_session_token"].flatMap { $0.isEmpty ? nil : $0 }
        return AWSCredentials(accessKey: key, secretKey: secret, sessionToken: token)
    }

    private func profile(_ name: String) async throws(AWSCredentialsError) -> AWSCredentials? {
        let home = value("HOME") ?? ""
        let shared = value("AWS_SHARED_CREDENTIALS_FILE") ?? home + "/.aws/credentials"
        let configuration = value("AWS_CONFIG_FILE") ?? home + "/.aws/config"
        let sharedText = try await read(shared, required: false) ?? ""
        let first = AWSConfigurationFile(sharedText).profile(name, inConfiguration: false)
        if let found = keys(first) { return found }
        let text = try await read(configuration, required: false) ?? ""
        let second = AWSConfigurationFile(text).profile(name, inConfiguration: true)
        if let file = second["web_identity_token_file"] {
            return try await webIdentity(
                tokenFile: file, role: second["role_arn"], session: second["role_session_name"])
        }
        if let found = keys(second) { return found }
        let other = ["role_arn", "sso_session", "sso_account_id", "credential_process"]
        if let unsupported = other.first(where: { second[$0] ?? first[$0] != nil }) {
            throw AWSCredentialsError(cause: "profile '\(name)' has \(unsupported), which is not supported")
        }
        let isThere =
            AWSConfigurationFile(sharedText).hasProfile(name, inConfiguration: false)
            || AWSConfigurationFile(text).hasProfile(name, inConfiguration: true)
        // A configured name must exist: silently using other permissions would be a surprise.
        guard isThere || (value("AWS_PROFILE") ?? value("AWS_DEFAULT_PROFILE")) == nil else {
            throw AWSCredentialsError(cause: "the shared files have no profile '\(name)'")
        }
        return nil
    }

    // MARK: Services

    /// The domain of AWS's services in a region. China has its own.
    package static func domain(of region: String) -> String {
        region.hasPrefix("cn-") ? "amazonaws.com.cn" : "amazonaws.com"
    }

    private func webIdentity(tokenFile: String?, role: String?, session: String?)
        async throws(AWSCredentialsError) -> AWSCredentials?
    {
        guard let tokenFile, let role else { return nil }
        // A hand-written file may end with a line break.
        let text = try await read(tokenFile, required: true) ?? ""
        let token = ASCII.trimmed(Array(text.utf8.filter { $0 != 10 && $0 != 13 })[...])
        let url =
            value("AWS_ENDPOINT_URL_STS") ?? value("AWS_ENDPOINT_URL")
            ?? "https://sts.\(region).\(AWSCredentialFetcher.domain(of: region))"
        guard let origin = Origin(url), origin.scheme == .https || origin.isLoopback else {
            throw AWSCredentialsError(cause: "the endpoint of STS must be https://…")
        }
        let form = [
            ("Action", "AssumeRoleWithWebIdentity"), ("Version", "2011-06-15"), ("RoleArn", role),
            ("RoleSessionName", session ?? "sluice-\(getpid())"),
            ("WebIdentityToken", String(decoding: token, as: UTF8.self)),
        ].map { "\($0)=\(PercentEncoding.encodeSegment($1))" }.joined(separator: "&")
        let request = ClientRequest("POST", "/", body: .bytes(Array(form.utf8)), isRepeatable: true)
        request.fields.append("content-type", "application/x-www-form-urlencoded")
        request.fields.append("accept", "application/xml")
        let response = try await ask(origin, request, "STS")
        guard response.status == 200 else {
            let code = XMLReader.first("Code", in: response.body) ?? "status \(response.status)"
            throw AWSCredentialsError(cause: "STS refuses the web identity: \(code)")
        }
        var values: [BytewiseString: String] = [:]
        try? XMLReader.read(response.body) { parent, name, text in
            if parent == "Credentials" { values[name] = text }
        }
        return try temporary("STS") { values[$0 == "Token" ? "SessionToken" : $0] }
    }

    private func container() async throws(AWSCredentialsError) -> AWSCredentials? {
        let origin: Origin?
        let target: String
        if let relative = value("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
            (origin, target) = (Origin("http://169.254.170.2"), relative)
        } else if let full = value("AWS_CONTAINER_CREDENTIALS_FULL_URI") {
            let path = full.dropFirst(8).firstIndex(of: "/") ?? full.endIndex
            origin = Origin(String(full[..<path]))
            target = path == full.endIndex ? "/" : String(full[path...])
        } else {
            return nil
        }
        guard let origin, target.hasPrefix("/"), target.utf8.allSatisfy(ASCII.isVisible),
            origin.scheme == .https || origin.isLoopback || Self.agents.contains(origin.host)
        else {
            throw AWSCredentialsError(
                cause:
                    "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https://… nor of this host's agent"
            )
        }
        var token = value("AWS_CONTAINER_AUTHORIZATION_TOKEN")
        if let file = value("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
            token = try await read(file, required: true)
        }
        let request = ClientRequest("GET", target)
        request.fields.append("accept", "application/json")
        if let token {
            let trimmed = ASCII.trimmed(Array(token.utf8.filter { $0 != 10 && $0 != 13 })[...])
            guard trimmed.allSatisfy({ ASCII.isVisible($0) || $0 == 0x20 }) else {
                throw AWSCredentialsError(cause: "the container's authorization token is no field")
            }
            request.fields.append("authorization", String(decoding: trimmed, as: UTF8.self))
        }
        return try credentials(try await ask(origin, request, "the container's agent"), "the agent")
    }

    private func instance() async throws(AWSCredentialsError) -> AWSCredentials? {
        if value("AWS_EC2_METADATA_DISABLED")?.asciiLowercased() == "true" { return nil }
        let isIPv6 = value("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE")?.asciiLowercased() == "ipv6"
        let url =
            value("AWS_EC2_METADATA_SERVICE_ENDPOINT")
            ?? (isIPv6 ? "http://[fd00:ec2::254]" : "http://169.254.169.254")
        guard let origin = Origin(url) else {
            throw AWSCredentialsError(cause: "AWS_EC2_METADATA_SERVICE_ENDPOINT is no origin")
        }
        let what = "the instance's metadata service"
        let request = ClientRequest("PUT", "/latest/api/token", isRepeatable: true)
        request.fields.append("x-aws-ec2-metadata-token-ttl-seconds", "21600")
        let session = try await ask(origin, request, what)
        guard session.status == 200 else {
            throw AWSCredentialsError(cause: "\(what) gives no session: status \(session.status)")
        }
        let path = "/latest/meta-data/iam/security-credentials/"
        func get(_ target: String) async throws(AWSCredentialsError) -> CollectedResponse {
            let request = ClientRequest("GET", target)
            request.fields.append("x-aws-ec2-metadata-token", String(decoding: session.body, as: UTF8.self))
            return try await ask(origin, request, what)
        }
        let roles = try await get(path)
        let role = String(decoding: roles.body, as: UTF8.self).split(whereSeparator: \.isNewline)
        guard roles.status == 200, let role = role.first else { return nil }
        var found = try credentials(try await get(path + PercentEncoding.encodePath(String(role))), what)
        found.mayOutliveExpiry = true
        return found
    }

    private func ask(_ origin: Origin, _ request: ClientRequest, _ what: String)
        async throws(AWSCredentialsError) -> CollectedResponse
    {
        let upstream = upstreams.withLock { upstreams in
            if let upstream = upstreams[origin] { return upstream }
            var settings = UpstreamSettings(name: "credentials from \(what)", origin: origin)
            // On a host without the service, nothing responds.
            settings.connectTimeout = 2_000_000_000
            settings.firstByteTimeout = 10_000_000_000
            settings.attempts = 3
            let upstream = Upstream(settings)
            upstreams[origin] = upstream
            return upstream
        }
        do throws(ClientError) {
            return try await upstream.call(request, limit: Self.limit)
        } catch {
            throw AWSCredentialsError(cause: "\(what): \(error)")
        }
    }

    private func credentials(_ response: CollectedResponse, _ what: String)
        throws(AWSCredentialsError) -> AWSCredentials
    {
        guard response.status == 200, let json = try? JSONReader.parse(response.body) else {
            throw AWSCredentialsError(cause: "\(what) gives none: status \(response.status)")
        }
        if let code = json["Code"]?.text, code != "Success" {
            throw AWSCredentialsError(cause: "\(what) gives none: \(code.prefix(64))")
        }
        return try temporary(what) { json[$0]?.text }
    }

    private func temporary(_ what: String, _ value: (String) -> String?)
        throws(AWSCredentialsError) -> AWSCredentials
    {
        guard let key = value("AccessKeyId"), let secret = value("SecretAccessKey") else {
            throw AWSCredentialsError(cause: "\(what) gives a response without keys")
        }
        return AWSCredentials(
            accessKey: key, secretKey: secret, sessionToken: value("Token"),
            expires: value("Expiration").flatMap { AWSTime.parse($0) })
    }

    /// - Returns: nil if the file does not exist and is not required.
    private func read(_ path: String, required: Bool) async throws(AWSCredentialsError) -> String? {
        let limit = Self.limit
        let outcome: Result<[UInt8], SystemError> = await pool.run {
            Result { () throws(SystemError) in
                let descriptor = try SystemError.check("open") { open(path, O_RDONLY | O_CLOEXEC) }
                defer { Glibc.close(descriptor) }
                var bytes = [UInt8](repeating: 0, count: limit)
                var count = 0
                while count < limit {
                    let got = try SystemError.check("read") {
                        bytes.withUnsafeMutableBytes {
                            Glibc.read(descriptor, $0.baseAddress! + count, limit - count)
                        }
                    }
                    if got == 0 { break }
                    count += got
                }
                return Array(bytes[..<count])
            }
        }
        switch outcome {
        case .success(let bytes): return String(decoding: bytes, as: UTF8.self)
        case .failure(let error):
            if !required, error.code == ENOENT || error.code == ENOTDIR { return nil }
            throw AWSCredentialsError(cause: "\(path): \(error)")
        }
    }

    /// Closes the connections.
    package func close() async {
        let open = upstreams.withLock { upstreams in
            defer { upstreams = [:] }
            return Array(upstreams.values)
        }
        for upstream in open { await upstream.close() }
    }
}

extension [BytewiseString: String] {
    fileprivate func mapKeys(_ change: (String) -> String) -> [BytewiseString: String] {
        [BytewiseString: String](map { (BytewiseString(change($0.text)), $1) }) { first, _ in first
        }
    }
}
