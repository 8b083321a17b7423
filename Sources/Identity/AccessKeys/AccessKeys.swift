import Wire

/// A key that signs requests (AWS Signature Version 4), and the caller that it identifies.
public final class AccessKey: Sendable {
    /// Sent with each request.
    public let id: String
    /// The bytes that sign. They are never sent, logged or reported.
    package let secret: [UInt8]
    /// Its caller. It has no claims and never expires.
    public let principal: Principal

    init(id: String, secret: [UInt8], uid: String, group: String) {
        self.id = id
        self.secret = secret
        principal = Principal(kind: .accessKey, uid: uid, source: AccessKeys.source, group: group, expires: .max)
    }
}

/// The access keys of a key file. A signature can only be verified with the secret itself, so the file has it in clear.
public struct AccessKeys: Sendable {
    /// Why a key file is invalid. Never contains a part of a secret.
    public struct Malformed: Error, CustomStringConvertible, Equatable {
        public var description: String
    }

    /// The ``Principal/source`` of callers with an access key, and the default group.
    public static let source = "s3"
    /// The maximum number of keys in a file.
    public static let maximum = 10_000
    private static let idBytes = 1...128
    private static let secretBytes = 16...256

    private let keys: [BytewiseString: AccessKey]
    private let uids: Set<BytewiseString>

    /// No keys.
    public init() {
        keys = [:]
        uids = []
    }

    /// Parses lines `ID SECRET UID [GROUP]`. Words are separated by spaces or tabs; a word that begins with `#` begins a
    /// comment. A uid may have several keys. An empty file has no keys.
    /// - Throws: ``Malformed`` with the number of the line.
    public init(text: String) throws(Malformed) {
        var keys: [BytewiseString: AccessKey] = [:]
        for (index, line) in text.split(separator: "\n", omittingEmptySubsequences: false).enumerated() {
            let words = AccessKeys.words(line)
            if words.isEmpty { continue }
            do throws(Malformed) {
                let key = try AccessKeys.key(words)
                guard keys[key.id] == nil else { throw Malformed(description: "a second key with this id") }
                keys[key.id] = key
            } catch {
                throw Malformed(description: "line \(index + 1): \(error.description)")
            }
            guard keys.count <= AccessKeys.maximum else {
                throw Malformed(description: "line \(index + 1): more than \(AccessKeys.maximum) keys")
            }
        }
        self.keys = keys
        uids = Set(keys.values.map { BytewiseString($0.principal.uid) })
    }

    private static func words(_ line: Substring) -> [String] {
        let words = line.utf8.split { $0 == 0x20 || $0 == 0x09 || $0 == 0x0d }
        return words.prefix { $0.first != UInt8(ascii: "#") }.map { String(Substring($0)) }
    }

    private static func key(_ words: [String]) throws(Malformed) -> AccessKey {
        guard (3...4).contains(words.count) else {
            throw Malformed(description: "expected ID SECRET UID [GROUP], found \(words.count) words")
        }
        // The id is part of a credential's path and of a list. It is not shown: it may be a misplaced secret.
        guard idBytes.contains(words[0].utf8.count), words[0].utf8.allSatisfy(isIDByte) else {
            throw Malformed(description: "the id has 1 to 128 of a-z, A-Z, 0-9, '-', '_' and '.'")
        }
        guard secretBytes.contains(words[1].utf8.count), words[1].utf8.allSatisfy(ASCII.isVisible) else {
            throw Malformed(description: "the secret has 16 to 256 visible characters of ASCII")
        }
        guard Principal.uidBytes.contains(words[2].utf8.count), !words[2].utf8.contains(where: ASCII.isControl) else {
            throw Malformed(description: "the uid has 1 to 2048 bytes without control characters")
        }
        let group = words.count > 3 ? words[3] : source
        guard (1...64).contains(group.utf8.count), group.utf8.allSatisfy(isIDByte) else {
            throw Malformed(description: "the group has 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.'")
        }
        return AccessKey(id: words[0], secret: Array(words[1].utf8), uid: words[2], group: group)
    }

    private static func isIDByte(_ byte: UInt8) -> Bool {
        ASCII.isLetter(byte) || ASCII.isDigit(byte) || byte == 0x2d || byte == 0x2e || byte == 0x5f
    }

    /// The number of keys.
    public var count: Int { keys.count }

    /// The caller groups of the keys.
    public var groups: Set<BytewiseString> { Set(keys.values.map { BytewiseString($0.principal.group) }) }

    /// The key with this id.
    public func find(_ id: String) -> AccessKey? { keys[id] }

    /// Whether a key of this principal's uid is configured. True only for principals of access keys.
    public func isConfigured(_ principal: Principal) -> Bool {
        principal.kind == .accessKey && uids.contains(principal.uid)
    }

    // MARK: New keys

    private static let base32 = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567".utf8)

    /// Makes a line with a new key: an id of 70 random bits, and a secret of 240.
    /// - Parameter group: nil for the default.
    /// - Throws: ``Malformed`` if the uid or group is invalid.
    public static func generate(uid: String, group: String? = nil) throws(Malformed) -> String {
        var generator = SystemRandomNumberGenerator()
        let secret = (0..<30).map { _ in UInt8.random(in: 0 ... .max, using: &generator) }
        let line = "\(randomID("SLUICE", digits: 14)) \(Base64.encodeForURL(secret)) \(uid)"
        let whole = group.map { "\(line) \($0)" } ?? line
        let parsed = words(whole[...])
        guard parsed.count == (group == nil ? 3 : 4) else {
            throw Malformed(description: "the uid and the group are words, and '#' does not begin them")
        }
        guard !whole.utf8.contains(0x0a) else { throw Malformed(description: "a line end in the uid or the group") }
        _ = try key(parsed)
        return whole
    }

    /// A random id: the prefix and `digits` digits of base32 (RFC 4648, section 6), 5 bits each.
    package static func randomID(_ prefix: String, digits: Int) -> String {
        var generator = SystemRandomNumberGenerator()
        let random = (0..<digits).map { _ in base32[Int.random(in: 0..<32, using: &generator)] }
        return prefix + String(decoding: random, as: UTF8.self)
    }
}
