import OpenSSL
import Synchronization
import Wire

/// A key that an issuer has published (RFC 7517, section 4), and its permitted use.
final class IssuerKey: Sendable {
    let keyID: String?
    let algorithms: [SignatureAlgorithm]
    private let key: PublicKey
    /// All properties above in one text.
    fileprivate let identity: String
    /// Whether the issuer has withdrawn the key. Its signatures are then invalid.
    let isWithdrawn = Atomic(false)

    fileprivate init(
        _ keyID: String?, _ algorithms: [SignatureAlgorithm], _ key: PublicKey, identity: String
    ) {
        self.keyID = keyID
        self.algorithms = algorithms
        self.key = key
        self.identity = identity
    }

    func verifies(_ message: RawSpan, _ signature: [UInt8], _ algorithm: SignatureAlgorithm)
        -> Bool
    {
        algorithms.contains(algorithm) && key.verifies(message, signature, algorithm)
    }
}

/// The keys of one issuer that can verify tokens.
struct KeySet: Sendable {
    /// The maximum number of keys in use. ``warning`` reports further keys, which are ignored.
    static let maximumKeys = 100

    let keys: [IssuerKey]
    /// The number of elements of the set after the last key in use.
    private let ignored: Int

    /// Parses a set (RFC 7517, section 5). An empty set withdraws all keys of the previous one.
    /// - Parameter known: The previous set. Keys in both sets keep their objects.
    /// - Throws: ``KeyFailure`` if no key can be used, unless the set is empty and not the first.
    init(_ text: [UInt8], known: KeySet? = nil) throws(KeyFailure) {
        guard let json = try? JSONReader.parse(text), let elements = json["keys"]?.elements else {
            throw KeyFailure("it is not a JSON Web Key Set")
        }
        var keys: [IssuerKey] = []
        var ignored = 0
        for element in elements {
            if keys.count == KeySet.maximumKeys {
                ignored += 1
                continue
            }
            guard let (key, identity) = KeySet.read(element) else { continue }
            let before = known?.keys.first { BytewiseString.areEqual($0.identity, identity) }
            if let key = before ?? key() { keys.append(key) }
        }
        guard !keys.isEmpty || (elements.isEmpty && known != nil) else {
            throw KeyFailure(
                elements.isEmpty
                    ? "the key set is empty" : "none of \(elements.count) keys is one to verify tokens with")
        }
        self.keys = keys
        self.ignored = ignored
    }

    var warning: String? {
        if keys.isEmpty { return "its key set is empty: no token of it is accepted" }
        if ignored == 0 { return nil }
        return "its key set has more than \(KeySet.maximumKeys) keys: the last \(ignored) are not used"
    }

    /// The candidates for a signature: the keys with the `kid`, or without a `kid` the only key for the algorithm.
    func candidates(_ keyID: String?, _ algorithm: SignatureAlgorithm) -> [IssuerKey] {
        let fitting = keys.filter { key in
            guard key.algorithms.contains(algorithm) else { return false }
            guard let keyID else { return true }
            return key.keyID.map { BytewiseString.areEqual($0, keyID) } ?? false
        }
        return keyID == nil && fitting.count > 1 ? [] : fitting
    }

    func hasKey(_ keyID: String) -> Bool {
        keys.contains { $0.keyID.map { BytewiseString.areEqual($0, keyID) } ?? false }
    }

    /// Marks the keys that are not in the next set as withdrawn.
    func withdraw(allBut next: KeySet) {
        for key in keys where !next.keys.contains(where: { $0 === key }) {
            key.isWithdrawn.store(true, ordering: .relaxed)
        }
    }

    /// Parses a key. Returns how to create it, and its identifying text; nil if the key is meant for another use or has
    /// an unsupported type. Private parts of a key are ignored if they are published.
    private static func read(_ json: JSONValue) -> (make: () -> IssuerKey?, identity: String)? {
        if let use = json["use"], use.text != "sig" { return nil }
        if let operations = json["key_ops"] {
            guard let operations = operations.elements, operations.contains(.string("verify")) else { return nil }
        }
        if let keyID = json["kid"], keyID.text == nil { return nil }
        var parts: [String] = []
        func bytes(_ member: String) -> [UInt8]? {
            guard let text = json[member]?.text else { return nil }
            parts.append(text)
            return Base64.decodeForURL(Array(text.utf8)[...])
        }
        let make: () -> PublicKey?
        let type = json["kty"]?.text
        let curve = json["crv"]?.text
        switch type {
        case "RSA":
            guard let n = bytes("n"), let e = bytes("e") else { return nil }
            make = { PublicKey(rsaModulus: n, exponent: e) }
        case "EC":
            guard let curve = curve.flatMap(PublicKey.Curve.init), let x = bytes("x"),
                let y = bytes("y")
            else { return nil }
            make = { PublicKey(curve, x: x, y: y) }
        case "OKP":
            guard curve == "Ed25519", let x = bytes("x") else { return nil }
            make = { PublicKey(ed25519: x) }
        default: return nil
        }
        let keyID = json["kid"]?.text
        let pinned = json["alg"]
        // Base64url and the names contain no space; the last part may.
        let identity = ([type ?? "", curve ?? "", pinned?.text ?? ""] + parts + [keyID ?? " "]).joined(separator: " ")
        return (
            {
                guard let key = make() else { return nil }
                guard let pinned else {
                    return IssuerKey(keyID, key.algorithms, key, identity: identity)
                }
                guard let algorithm = pinned.text.flatMap(SignatureAlgorithm.init),
                    key.algorithms.contains(algorithm)
                else { return nil }
                return IssuerKey(keyID, [algorithm], key, identity: identity)
            }, identity
        )
    }
}

/// Why there are no new keys, for the operator.
struct KeyFailure: Error, Sendable, Equatable {
    var cause: String

    init(_ cause: String) { self.cause = cause }
}
