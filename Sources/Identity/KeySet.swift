import OpenSSL
import Synchronization
import Wire

/// A key that an issuer has published (RFC 7517, section 4), and what it may be used for.
final class IssuerKey: Sendable {
    let keyID: String?
    let algorithms: [SignatureAlgorithm]
    private let key: PublicKey
    /// Everything above in one text, to know the key again.
    fileprivate let identity: String
    /// Whether the issuer has withdrawn it: what it has signed counts no longer.
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

/// The keys of one issuer. Only those that verify signatures of tokens: others are left out.
struct KeySet: Sendable {
    /// Keys of a set that are used at most; further ones are left out, which ``warning`` says.
    static let maximumKeys = 100

    let keys: [IssuerKey]
    /// How many elements of the set stand behind the last key that is used.
    private let ignored: Int

    /// Reads a set (RFC 7517, section 5). A set without elements withdraws all keys of the one before.
    /// - Parameter known: The set before; keys that are in both stay the same objects.
    /// - Throws: ``KeyFailure`` where there is not one key that can be used, unless an empty set follows another.
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
                    ? "the key set is empty"
                    : "none of \(elements.count) keys is one to verify tokens with")
        }
        self.keys = keys
        self.ignored = ignored
    }

    /// What the operator should know of the set; nil where there is nothing.
    var warning: String? {
        if keys.isEmpty { return "its key set is empty: no token of it is accepted" }
        if ignored == 0 { return nil }
        return
            "its key set has more than \(KeySet.maximumKeys) keys: the last \(ignored) are not used"
    }

    /// The keys that may have signed: those of the `kid`; without one, the only key that fits the algorithm.
    func candidates(_ keyID: String?, _ algorithm: SignatureAlgorithm) -> [IssuerKey] {
        let fitting = keys.filter { key in
            guard key.algorithms.contains(algorithm) else { return false }
            guard let keyID else { return true }
            return key.keyID.map { BytewiseString.areEqual($0, keyID) } ?? false
        }
        return keyID == nil && fitting.count > 1 ? [] : fitting
    }

    /// Whether there is a key of this `kid`.
    func hasKey(_ keyID: String) -> Bool {
        keys.contains { $0.keyID.map { BytewiseString.areEqual($0, keyID) } ?? false }
    }

    /// Notes which keys are not in the set that follows this one.
    func withdraw(allBut next: KeySet) {
        for key in keys where !next.keys.contains(where: { $0 === key }) {
            key.isWithdrawn.store(true, ordering: .relaxed)
        }
    }

    /// How a key is made, and what it is known by; nil where its owner wants it used for something else, or it is of a
    /// type that is not used here. The private parts of a key, where somebody has published them, are not looked at.
    private static func read(_ json: JSONValue) -> (make: () -> IssuerKey?, identity: String)? {
        if let use = json["use"], use.text != "sig" { return nil }
        if let operations = json["key_ops"] {
            guard let operations = operations.elements, operations.contains(.string("verify"))
            else { return nil }
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
        // Base64url and the names have no space; what comes last may have.
        let identity = ([type ?? "", curve ?? "", pinned?.text ?? ""] + parts + [keyID ?? " "])
            .joined(separator: " ")
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

/// Why there are no new keys, in words for the operator.
struct KeyFailure: Error, Sendable, Equatable {
    var cause: String

    init(_ cause: String) { self.cause = cause }
}
