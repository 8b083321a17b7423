import HTTPClient
import OpenSSL
import Wire

struct GoogleEndpoint: Sendable {
    let origin: Origin
    /// The path and query.
    let target: String

    init(_ origin: Origin, _ target: String) {
        self.origin = origin
        self.target = target
    }

    /// - Throws: ``ClientError`` unless the URL is `https`, or `http` on loopback or the metadata server.
    init(url: String, _ member: String, file: String) throws(ClientError) {
        guard let (origin, target) = Origin.cut(url)
        else {
            throw ClientError(.unreachable, "credentials: \(file): '\(member)' is not a URL")
        }
        let isLocal =
            origin.isLoopback
            || ["169.254.169.254", "metadata.google.internal"].contains(origin.host)
        guard origin.scheme == .https || isLocal else {
            throw ClientError(.unreachable, "credentials: \(file): '\(member)' must be https")
        }
        self.init(origin, target)
    }
}

enum GoogleAccount: Sendable {
    struct Service: Sendable {
        let email: String
        let keyId: String?
        let key: SigningKey
        let tokenEndpoint: GoogleEndpoint
        /// `aud`, exactly as in the file.
        let audience: String

        /// A JWT that requests an access token, valid for one hour (RFC 7523, section 2.1).
        /// - Parameter now: Seconds since 1970.
        func assertion(scope: String, now: Int64) throws(ClientError) -> String {
            var head = JSONWriter(reserving: 128)
            head.beginObject()
            head.member("alg", "RS256")
            head.member("typ", "JWT")
            if let keyId { head.member("kid", keyId) }
            head.endObject()
            var claims = JSONWriter(reserving: 512)
            claims.beginObject()
            claims.member("iss", email)
            claims.member("scope", scope)
            claims.member("aud", audience)
            claims.member("iat", now)
            claims.member("exp", now + 3600)
            claims.endObject()
            let message =
                Base64.encodeForURL(head.bytes) + "." + Base64.encodeForURL(claims.bytes)
            do throws(TLSError) {
                return message + "." + Base64.encodeForURL(try key.sign(Array(message.utf8)))
            } catch {
                throw ClientError(.unreachable, "credentials: \(error)")
            }
        }
    }

    struct User: Sendable {
        let clientId: String
        let clientSecret: String
        let refreshToken: String
        let tokenEndpoint: GoogleEndpoint
    }

    struct External: Sendable {
        enum Subject: Sendable {
            case file(String)
            case endpoint(GoogleEndpoint, fields: [(String, String)])
        }
        let audience: String
        let subjectTokenType: String
        let subject: Subject
        /// The member of a JSON text that holds the token; nil if the whole text is the token.
        let subjectField: String?
        let tokenEndpoint: GoogleEndpoint
        let impersonation: GoogleEndpoint?
        let impersonationSeconds: Int64
        let basicAuthorization: String?
    }

    case service(Service)
    case user(User)
    case external(External)

    /// Parses a credentials file.
    /// - Throws: ``ClientError`` that names the file and the error, and contains no secret.
    init(_ bytes: [UInt8], file: String) throws(ClientError) {
        guard let json = try? JSONReader.parse(bytes) else {
            throw ClientError(.unreachable, "credentials: \(file) is not JSON")
        }
        func text(_ member: String) throws(ClientError) -> String {
            guard let value = json[member]?.text, !value.isEmpty else {
                throw ClientError(.unreachable, "credentials: \(file): '\(member)' is missing")
            }
            return value
        }
        let defaultEndpoint = "https://oauth2.googleapis.com/token"
        switch json["type"]?.text {
        case "service_account":
            let audience = json["token_uri"]?.text ?? defaultEndpoint
            let pem = try text("private_key")
            let key: SigningKey
            do throws(TLSError) {
                key = try SigningKey(pem: pem)
            } catch {
                throw ClientError(.unreachable, "credentials: \(file): \(error)")
            }
            self = .service(
                Service(
                    email: try text("client_email"), keyId: json["private_key_id"]?.text, key: key,
                    tokenEndpoint: try GoogleEndpoint(url: audience, "token_uri", file: file), audience: audience))
        case "authorized_user":
            let url = json["token_uri"]?.text ?? defaultEndpoint
            self = .user(
                User(
                    clientId: try text("client_id"), clientSecret: try text("client_secret"),
                    refreshToken: try text("refresh_token"),
                    tokenEndpoint: try GoogleEndpoint(url: url, "token_uri", file: file)))
        case "external_account": self = .external(try External(json, file: file))
        case let other:
            let type = ASCII.plainWords(other ?? "none")
            throw ClientError(
                .unreachable,
                "credentials: \(file): type '\(type)' is not one of service_account, authorized_user, external_account")
        }
    }
}

extension GoogleAccount.External {
    fileprivate init(_ json: JSONValue, file: String) throws(ClientError) {
        func text(_ member: String) throws(ClientError) -> String {
            guard let value = json[member]?.text, !value.isEmpty else {
                throw ClientError(.unreachable, "credentials: \(file): '\(member)' is missing")
            }
            return value
        }
        audience = try text("audience")
        subjectTokenType = try text("subject_token_type")
        tokenEndpoint = try GoogleEndpoint(
            url: try text("token_url"), "token_url", file: file)
        let source = json["credential_source"]
        if let path = source?["file"]?.text {
            subject = .file(path)
        } else if let url = source?["url"]?.text {
            var fields: [(String, String)] = []
            if case .object(let members)? = source?["headers"] {
                for member in members {
                    let name = member.key.utf8.map(ASCII.lowercased)
                    guard let value = member.value.text, !name.isEmpty, name.allSatisfy(ASCII.isToken),
                        value.utf8.allSatisfy({ $0 == 0x20 || ASCII.isVisible($0) })
                    else {
                        throw ClientError(
                            .unreachable, "credentials: \(file): 'headers' has no header fields")
                    }
                    fields.append((String(decoding: name, as: UTF8.self), value))
                }
            }
            subject = .endpoint(try GoogleEndpoint(url: url, "credential_source.url", file: file), fields: fields)
        } else {
            throw ClientError(
                .unreachable,
                "credentials: \(file): 'credential_source' names neither a file nor a url")
        }
        let format = source?["format"]
        subjectField = format?["type"]?.text == "json" ? format?["subject_token_field_name"]?.text : nil
        if let url = json["service_account_impersonation_url"]?.text {
            impersonation = try GoogleEndpoint(url: url, "service_account_impersonation_url", file: file)
        } else {
            impersonation = nil
        }
        impersonationSeconds = json["service_account_impersonation"]?["token_lifetime_seconds"]?.integer ?? 3600
        if let id = json["client_id"]?.text, let secret = json["client_secret"]?.text {
            basicAuthorization = "Basic " + Base64.encode(Array("\(id):\(secret)".utf8))
        } else {
            basicAuthorization = nil
        }
    }
}
