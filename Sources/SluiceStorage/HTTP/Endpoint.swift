import Foundation
import Wire

/// The addresses of a bucket at a gateway.
struct Endpoint: Sendable, Equatable {
    /// `http://HOST:PORT`, possibly with a path, without a slash at its end; nil if the URL is not valid.
    private let base: String?
    private let bucket: String

    init(url: String, bucket: String) {
        self.bucket = bucket
        let parsed = URL(string: url)
        let isValid =
            ["http", "https"].contains { parsed?.scheme == $0 } && parsed?.host?.isEmpty == false
            && parsed?.query == nil && parsed?.fragment == nil && parsed?.user == nil && !bucket.isEmpty
        var text = url
        while text.hasSuffix("/") { text.removeLast() }
        base = isValid ? text : nil
    }

    /// Whether both are at one address.
    func isAtGateway(of other: Endpoint) -> Bool { base == other.base }

    /// Whether the URL is valid.
    var isValid: Bool { base != nil }

    /// The URL of an object, which must not be the root.
    func object(_ path: String, _ query: String = "") throws(StorageError) -> URL {
        guard !path.isEmpty else {
            throw StorageError(.pathError, "The root of a bucket is not an object.")
        }
        // A client resolves such segments before it sends the request, which would be about another object.
        for segment in path.split(separator: "/") where segment == "." || segment == ".." {
            throw StorageError(.pathError, "The name of an object has no segment '\(segment)'.")
        }
        return try url("o/" + PercentEncoding.encodePath(path) + query)
    }

    /// The URL of a list.
    func list(_ query: String) throws(StorageError) -> URL { try url("o?" + query) }

    /// The URL of an upload session. Only the token of its location counts, so that no credential is sent elsewhere.
    /// - Parameter location: As the gateway returned it, or as it was saved.
    func session(_ location: String) throws(StorageError) -> URL {
        let token = location.utf8.split(separator: UInt8(ascii: "/")).last.map(Array.init) ?? []
        guard !token.isEmpty, Base64.decodeForURL(token[...]) != nil else {
            throw StorageError(.internalError, "The location of an upload session is malformed.")
        }
        return try url("u/" + String(decoding: token, as: UTF8.self))
    }

    /// The URL of an upload in parts. Only the token of its location counts.
    /// - Parameter path: The object's.
    func parts(_ location: String, of path: String) throws(StorageError) -> URL {
        let token = location.utf8.split(separator: UInt8(ascii: "=")).last.map(Array.init) ?? []
        guard !token.isEmpty, Base64.decodeForURL(token[...]) != nil else {
            throw StorageError(.internalError, "The location of an upload in parts is malformed.")
        }
        return try object(path, "?parts=" + String(decoding: token, as: UTF8.self))
    }

    /// The URL with another parameter in its query, which is not empty.
    func adding(_ parameter: String, to url: URL) throws(StorageError) -> URL {
        guard let url = URL(string: "\(url.absoluteString)&\(parameter)") else { throw invalid }
        return url
    }

    /// The URL of a path of the gateway, which begins with a slash.
    func absolute(_ path: String) throws(StorageError) -> URL {
        guard let base, path.hasPrefix("/"), let url = URL(string: base + path) else {
            throw invalid
        }
        return url
    }

    private func url(_ rest: String) throws(StorageError) -> URL {
        try absolute("/b/\(PercentEncoding.encodeSegment(bucket))/\(rest)")
    }

    private var invalid: StorageError {
        StorageError(.invalidArgument, "The gateway's URL is not valid, or there is no name of a bucket.")
    }

    // MARK: URLs of objects

    private static let hosted = "https://firebasestorage.googleapis.com"

    /// - Parameter isEncoded: Whether the path of `gs://BUCKET/PATH` is percent-encoded.
    static func reference(_ text: String, _ storage: Storage, isEncoded: Bool = false)
        throws(StorageError) -> StorageReference
    {
        let (bucket, path) = try parse(text, storage.endpoint.base, isEncoded)
        guard bucket == storage.bucket else {
            throw StorageError(.bucketMismatch, "The URL is of the bucket '\(bucket)', not '\(storage.bucket)'.")
        }
        return storage.reference(withPath: path)
    }

    private static func parse(_ text: String, _ base: String?, _ isEncoded: Bool)
        throws(StorageError) -> (bucket: String, path: String)
    {
        let malformed = StorageError(
            .invalidArgument, "The URL is neither gs://BUCKET/PATH nor the URL of an object here.")
        if text.hasPrefix("gs://") {
            let rest = text.utf8.dropFirst(5)
            let bucket = rest.prefix { $0 != UInt8(ascii: "/") }
            guard !bucket.isEmpty else { throw malformed }
            let path = Array(rest.dropFirst(bucket.count + 1))
            let name = isEncoded ? decoded(path[...]) : String(decoding: path, as: UTF8.self)
            guard let name else { throw malformed }
            return (String(decoding: bucket, as: UTF8.self), name)
        }
        // Download URLs of the hosted service stay valid references after a move.
        guard
            let base = [base, hosted].compactMap(\.self).first(where: { text.hasPrefix($0 + "/") })
        else { throw malformed }
        let end = [UInt8(ascii: "?"), UInt8(ascii: "#")]
        var rest = Array(text.utf8.dropFirst(base.utf8.count).prefix { !end.contains($0) })[...]
        if rest.starts(with: "/v0/".utf8) { rest = rest.dropFirst(3) }
        guard rest.starts(with: "/b/".utf8) else { throw malformed }
        rest = rest.dropFirst(3)
        let name = rest.prefix { $0 != UInt8(ascii: "/") }
        rest = rest.dropFirst(name.count)
        guard rest.starts(with: "/o".utf8), rest.count == 2 || rest.dropFirst(2).first == 0x2f,
            let bucket = decoded(name), let path = decoded(rest.dropFirst(3))
        else { throw malformed }
        return (bucket, path)
    }

    private static func decoded(_ text: ArraySlice<UInt8>) -> String? {
        (try? PercentEncoding.decode(text)).flatMap { String(validating: $0, as: UTF8.self) }
    }
}
