import Identity
import OpenSSL
import Wire

@testable import Gateway

/// The credentials and the time of AWS's examples.
enum Example {
    static let id = "AKIAIOSFODNN7EXAMPLE"
    static let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    /// 20130524T000000Z.
    static let time: Int64 = 1_369_353_600
    static let emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

    static func verifier(
        region: String? = nil, keys: String = "\(id) \(secret) alice", sessionKeys: S3SessionKeys? = nil,
        isConfigured: @escaping @Sendable (Principal) -> Bool = { _ in true }
    ) throws -> S3Verifier {
        S3Verifier(
            region: region, keys: try AccessKeys(text: keys), sessionKeys: sessionKeys, isConfigured: isConfigured)
    }
}

/// Signs requests as the specification says, from texts that a test writes in canonical form. It shares nothing with
/// the verifier.
struct RequestSigner {
    var id = Example.id
    var secret = Example.secret
    var stamp = "20130524T000000Z"
    /// By default that of the stamp.
    var day: String?
    var region = "us-east-1"
    var service = "s3"

    var scope: String { "\(day ?? String(stamp.prefix(8)))/\(region)/\(service)/aws4_request" }

    static func sha256(_ text: String) -> String {
        let digest = Digest(.sha256)
        digest.update(Array(text.utf8).span.bytes)
        return Hexadecimal.encode(digest.finish())
    }

    var key: [UInt8] {
        var key = Array("AWS4\(secret)".utf8)
        for part in scope.split(separator: "/") { key = HMAC.sha256(key: key, Array(part.utf8).span.bytes) }
        return key
    }

    func signature(of text: String) -> String {
        Hexadecimal.encode(HMAC.sha256(key: key, Array(text.utf8).span.bytes))
    }

    func signature(canonical: String) -> String {
        signature(of: "AWS4-HMAC-SHA256\n\(stamp)\n\(scope)\n\(Self.sha256(canonical))")
    }

    /// A request with a signature in `Authorization`.
    /// - Parameters:
    ///   - target: As sent.
    ///   - path: In canonical form; by default the path of `target`.
    ///   - query: In canonical form; by default the query of `target`.
    ///   - fields: Names in lower case, ordered, values in canonical form. Host, date and hash are added.
    ///   - unsigned: Fields that are not signed.
    func request(
        _ method: String, _ target: String, path: String? = nil, query: String? = nil,
        host: String = "examplebucket.s3.amazonaws.com", fields: [(String, String)] = [],
        unsigned: [(String, String)] = [], hash: String = Example.emptyHash
    ) -> S3SignedRequest {
        let parts = target.split(separator: "?", maxSplits: 1)
        let all =
            ([("host", host), ("x-amz-content-sha256", hash), ("x-amz-date", stamp)] + fields).sorted { $0.0 < $1.0 }
        let names = all.map(\.0).joined(separator: ";")
        let lines = all.map { "\($0.0):\($0.1)\n" }.joined()
        let canonical =
            "\(method)\n\(path ?? String(parts[0]))\n\(query ?? (parts.count > 1 ? String(parts[1]) : ""))\n"
            + "\(lines)\n\(names)\n\(hash)"
        var header = HeaderFields()
        header.append(
            "authorization",
            "AWS4-HMAC-SHA256 Credential=\(id)/\(scope), SignedHeaders=\(names), "
                + "Signature=\(signature(canonical: canonical))")
        for (name, value) in all + unsigned where name != "host" { header.append(name: name, value) }
        return S3SignedRequest(method: method, target: RequestTarget(target), authority: host, fields: header)
    }

    /// A presigned URL's request.
    /// - Parameters:
    ///   - more: Further parameters, in canonical form.
    ///   - fields: Signed fields besides the host, ordered.
    func presigned(
        _ method: String = "GET", _ path: String = "/test.txt", expires: String = "86400",
        more: [(String, String)] = [], fields: [(String, String)] = [], unsigned: [(String, String)] = [],
        host: String = "examplebucket.s3.amazonaws.com", hash: String = "UNSIGNED-PAYLOAD"
    ) -> S3SignedRequest {
        let all = ([("host", host)] + fields).sorted { $0.0 < $1.0 }
        let names = all.map(\.0).joined(separator: ";")
        let pairs =
            [
                ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
                ("X-Amz-Credential", "\(id)/\(scope)".split(separator: "/").joined(separator: "%2F")),
                ("X-Amz-Date", stamp), ("X-Amz-Expires", expires),
                ("X-Amz-SignedHeaders", names.split(separator: ";").joined(separator: "%3B")),
            ] + more
        let query = pairs.sorted { $0.0 < $1.0 }.map { "\($0.0)=\($0.1)" }.joined(separator: "&")
        let lines = all.map { "\($0.0):\($0.1)\n" }.joined()
        let signature = signature(canonical: "\(method)\n\(path)\n\(query)\n\(lines)\n\(names)\n\(hash)")
        var header = HeaderFields()
        for (name, value) in fields + unsigned { header.append(name: name, value) }
        return S3SignedRequest(
            method: method, target: RequestTarget("\(path)?\(query)&X-Amz-Signature=\(signature)"), authority: host,
            fields: header)
    }
}

extension S3SignedRequest {
    /// The request with its fields changed by a function of each pair; nil leaves it out.
    func changing(_ change: (String, String) -> String?) -> S3SignedRequest {
        var request = self
        request.fields = HeaderFields()
        fields.read { reader in
            while let (name, value) = reader.next() {
                let name = String(decoding: name, as: UTF8.self)
                guard let value = change(name, String(decoding: value, as: UTF8.self)) else { continue }
                request.fields.append(name: name, value)
            }
        }
        return request
    }

    func adding(_ name: String, _ value: String) -> S3SignedRequest {
        var request = self
        request.fields.append(name: name, value)
        return request
    }

    func with(target: String) -> S3SignedRequest {
        var request = self
        request.target = RequestTarget(target)
        request.query = S3Query(request.target.query)
        return request
    }
}

extension S3Authentication {
    var uid: String? {
        switch signer {
        case .accessKey(let principal): principal.uid
        case .session(let caller): caller.principal.uid
        case .anonymous, .bearer: nil
        }
    }
}

/// The error's status, code, message and members; nil without an error.
struct Refusal: Equatable {
    var status: Int
    var code: String
    var detail: String
    var members: [String: String] = [:]
    var cause = ""

    static func of<Value>(_ body: () throws -> Value) -> Refusal? {
        do {
            _ = try body()
            return nil
        } catch {
            guard let problem = error as? Problem else { return Refusal(status: 0, code: "\(error)", detail: "") }
            let members = (problem.dialect?.members ?? []).map { ("\($0.name)", $0.value) }
            return Refusal(
                status: problem.dialect?.status ?? problem.code.status,
                code: problem.dialect.map { "\($0.code)" } ?? problem.code.rawValue, detail: problem.detail,
                members: Dictionary(uniqueKeysWithValues: members), cause: problem.cause ?? "")
        }
    }
}

extension S3SignedRequest {
    init(method: String, target: RequestTarget, authority: String?, fields: HeaderFields) {
        self.init(
            method: method, target: target, authority: authority, fields: fields, query: S3Query(target.query))
    }
}
