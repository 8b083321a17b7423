import Identity
import OpenSSL
import SecurityRules
import Wire

/// The claim that only the gateway sets. A token's own claim with this name is left out.
private let certificateClaim = "certificate"

extension Principal {
    /// `request.auth`. It is converted once for each principal, on first use.
    var auth: SecurityRules.Caller {
        derived.kept {
            if let claims {
                return SecurityRules.Caller(uid: uid, token: SlicedValue(claims: claims))
            }
            return SecurityRules.Caller(
                uid: uid, token: certificate.map { [BytewiseString(certificateClaim): Value($0)] } ?? [:])
        }
    }
}

extension ClientIdentity {
    /// `request.auth.token.certificate`. It is converted once for each connection, on first use.
    private var value: Value { derived.kept { Value(certificate) } }

    /// Returns the caller with the certificate added to its token, if the connection has shown both.
    func added(to caller: SecurityRules.Caller) -> SecurityRules.Caller {
        caller.adding(certificateClaim, value)
    }
}

/// An object that holds a derived value.
private final class Kept<Value: Sendable>: Sendable {
    let value: Value

    init(_ value: Value) { self.value = value }
}

extension DerivedValue {
    /// The kept value. If there is none yet, it is made.
    fileprivate func kept<Value: Sendable>(_ make: () -> Value) -> Value {
        if let kept = object as? Kept<Value> { return kept.value }
        let made = Kept(make())
        return (keep(made) as? Kept<Value> ?? made).value
    }
}

extension Value {
    fileprivate init(_ certificate: PeerCertificate) {
        self = .map([
            "subject": .string(certificate.subject), "issuer": .string(certificate.issuer),
            "serial": .string(Hexadecimal.encode(certificate.serial)),
            "fingerprint": .string(Hexadecimal.encode(certificate.fingerprint)),
            "uris": .list(certificate.uris.map(Value.string)), "dns": .list(certificate.dnsNames.map(Value.string)),
        ])
    }
}

extension SlicedValue {
    /// The claims of a token. Whole numbers are integers and others are floats, as in the hosted service.
    fileprivate init(claims: JSONDocument) {
        self.init(claims, 0, SlicedValue.Source(claims.bytes)) { claims.has($0, certificateClaim) }
    }

    /// A value of a document.
    init(_ document: JSONDocument, _ index: Int) {
        self.init(document, index, SlicedValue.Source(document.bytes))
    }

    private init(
        _ document: JSONDocument, _ index: Int, _ source: Source,
        isLeftOut: (Int) -> Bool = { _ in false }
    ) {
        switch document.kind(index) {
        case .null: self.init(.null)
        case .false: self.init(.bool(false))
        case .true: self.init(.bool(true))
        case .number:
            let text = document.text(index)
            self.init(Int64(text).map(Value.int) ?? Value(number: Double(text) ?? .nan))
        case .string: self.init(document.range(index), of: source)
        case .array:
            let elements = document.children(of: index)
            var list = List(capacity: elements.count)
            for element in elements { list.append(SlicedValue(document, element, source)) }
            self.init(list)
        case .object:
            let names = document.children(of: index)
            var map = Map(capacity: names.count)
            for name in names where !isLeftOut(name) {
                map.append(document.range(name), of: source, SlicedValue(document, name + 1, source))
            }
            self.init(map)
        }
    }
}
