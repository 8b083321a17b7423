import OpenSSL
import Wire

/// The keys that sign webhooks (Standard Webhooks), newest first. Each request is signed with all of them, so that
/// receivers can change their key at another time than the gateway.
public struct WebhookKeys: Sendable {
    /// Why a key file is invalid. Never contains a part of a key.
    public struct Malformed: Error, CustomStringConvertible, Equatable {
        public var description: String
    }

    /// Each key is a signature of 47 bytes in every request.
    private static let maximum = 10
    private static let prefix = "whsec_"
    private static let sizes = 24...64
    private let keys: [HMAC]

    /// Parses lines of `whsec_` and base64 of 24 to 64 bytes. A `#` begins a comment.
    /// - Throws: ``Malformed`` with the number of the line.
    public init(text: String) throws(Malformed) {
        var keys: [HMAC] = []
        for (index, line) in text.split(separator: "\n", omittingEmptySubsequences: false).enumerated() {
            let words = line.prefix { $0 != "#" }.split { " \t\r".contains($0) }
            guard let word = words.first else { continue }
            guard words.count == 1, word.hasPrefix(WebhookKeys.prefix),
                let key = Base64.decode(Array(word.utf8.dropFirst(WebhookKeys.prefix.utf8.count))[...]),
                WebhookKeys.sizes.contains(key.count)
            else {
                throw Malformed(
                    description: "line \(index + 1): expected \(WebhookKeys.prefix) and base64 of 24 to 64 bytes")
            }
            keys.append(HMAC(key: key))
        }
        guard (1...WebhookKeys.maximum).contains(keys.count) else {
            throw Malformed(description: "expected 1 to \(WebhookKeys.maximum) keys, found \(keys.count)")
        }
        self.keys = keys
    }

    /// Makes a line with a new key of 32 bytes.
    public static func generate() -> String {
        prefix + Base64.encode((0..<32).map { _ in UInt8.random(in: 0 ... .max) })
    }

    /// The fields that identify and sign a request.
    /// - Parameter timestamp: Of the attempt, in seconds since 1970. Receivers refuse a request that is some minutes old.
    package func fields(id: String, timestamp: Int64, body: [UInt8]) -> HeaderFields {
        var fields = WebhookKeys.unsigned(id: id, timestamp: timestamp)
        let message = Array("\(id).\(timestamp).".utf8) + body
        let signatures = keys.map { "v1,\(Base64.encode($0.code(of: message.span.bytes)))" }
        fields.append("webhook-signature", signatures.joined(separator: " "))
        return fields
    }

    /// The fields that identify a request without keys.
    package static func unsigned(id: String, timestamp: Int64) -> HeaderFields {
        var fields = HeaderFields()
        fields.append("webhook-id", id)
        fields.append("webhook-timestamp", "\(timestamp)")
        return fields
    }
}
