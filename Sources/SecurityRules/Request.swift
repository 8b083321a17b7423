/// What is known of one property of an object.
public enum Fact: Sendable, Hashable {
    /// Its value; null for an optional property that is not set.
    case known(Value)
    /// Nobody knows it yet, as the hash of a body that is still arriving; it will be a value.
    case unknown
    /// The object has no such property: to read it is an error, as it is in the hosted service.
    case absent
}

/// What is known of an object: `resource`, or `request.resource`.
///
/// It begins without any property. `init(name:bucket:)` sets the optional ones to what the hosted service gives where
/// nothing was sent: null, and an empty map of custom metadata.
public struct ObjectFacts: Sendable {
    private(set) var fields: [Datum?]
    private(set) var others: [MapEntry] = []

    /// An object without properties.
    public init() { fields = Array(repeating: nil, count: ObjectField.allCases.count) }

    /// An object of this name, its optional properties not set.
    public init(name: String, bucket: String) {
        self.init()
        set(.name, .known(.string(name)))
        set(.bucket, .known(.string(bucket)))
        for field in [
            ObjectField.contentDisposition, .contentEncoding, .contentLanguage, .contentType,
        ] {
            set(field, .known(.null))
        }
        set(.metadata, .known([:]))
    }

    /// Sets one property.
    public mutating func set(_ field: ObjectField, _ fact: Fact) {
        switch fact {
        case .known(let value): fields[Int(field.rawValue)] = Datum(value)
        case .unknown:
            fields[Int(field.rawValue)] = .unknown(Unknown(bits: InputBits(field), mayFail: false))
        case .absent: fields[Int(field.rawValue)] = nil
        }
    }

    /// Sets a property by its name in the rules, also one that objects do not have: mocks may.
    public mutating func set(property name: String, _ value: Value) {
        let key = Text(name)
        if let field = ObjectField(key: key) { return set(field, .known(value)) }
        others.removeAll { $0.key == key }
        others.append(MapEntry(key: key, value: Datum(value)))
    }

    func value(_ code: FieldCode, _ key: Text) -> Datum? {
        if let field = code.object { return fields[Int(field.rawValue)] }
        return others.isEmpty ? nil : others.first { $0.key == key }?.value
    }

    /// All properties as a map; what is unknown instead where one is.
    var whole: Datum {
        var entries = others
        var bits: InputBits = []
        for (index, value) in fields.enumerated() {
            guard let value else { continue }
            if case .unknown(let unknown) = value { bits.formUnion(unknown.bits) }
            entries.append(MapEntry(key: ObjectField.keys[index], value: value))
        }
        return bits.isEmpty ? .makeMap(entries) : .unknown(Unknown(bits: bits, mayFail: false))
    }
}

/// The caller: `request.auth`.
public struct Caller: Sendable {
    let value: Datum

    /// A caller by the user's id and the claims of its token.
    public init(uid: String, token: [String: Value] = [:]) {
        self.init(properties: ["uid": .string(uid), "token": .map(token)])
    }

    /// A caller with exactly these properties of `request.auth`.
    public init(properties: [String: Value]) { self.init(Datum(.map(properties))) }

    init(_ value: Datum) { self.value = value }
}

/// What came of looking for a document.
public enum Lookup: Sendable, Hashable {
    /// It is there, with these fields.
    case present([String: Value])
    /// There is none.
    case absent
    /// The service did not answer: an error in the rules.
    case failed
}

/// One request, as far as it is known: the input of a decision.
///
/// Making one converts what it is given; deciding about it then allocates nothing in the common case.
public struct Request: Sendable {
    /// What is known of the object that is there already.
    public enum Existing: Sendable {
        /// Nobody has looked yet.
        case unknown
        /// There is none: `resource` is null.
        case absent
        /// This one.
        case object(ObjectFacts)
    }

    /// Shared by copies of a request, and copied before it is changed.
    private(set) var state: RequestState

    /// A request for an object, or for a prefix where objects are listed (without its trailing slash; empty for all).
    ///
    /// A name with an empty segment, such as `a//b`, is one that no rule can allow.
    public init(
        _ method: Method, bucket: String, object: String, caller: Caller? = nil, time: Timestamp,
        existing: Existing = .unknown, incoming: ObjectFacts? = nil
    ) {
        var path: [UInt8] = []
        path.reserveCapacity(bucket.utf8.count + object.utf8.count + 5)
        path.append(contentsOf: "b/".utf8)
        path.append(contentsOf: bucket.utf8)
        path.append(contentsOf: "/o".utf8)
        if !object.isEmpty {
            path.append(UInt8(ascii: "/"))
            path.append(contentsOf: object.utf8)
        }
        state = RequestState(
            method: method, path: Self.segments(path), time: time,
            auth: caller?.value ?? .null, existing: existing, incoming: incoming)
    }

    /// A request by its whole path, such as `/b/photos/o/users/alice.png`; one slash at the end counts for nothing.
    public init(
        _ method: Method, path: String, caller: Caller? = nil, time: Timestamp,
        existing: Existing = .unknown, incoming: ObjectFacts? = nil
    ) {
        var bytes = Array(path.utf8)
        if bytes.first == UInt8(ascii: "/") { bytes.removeFirst() }
        if bytes.last == UInt8(ascii: "/") { bytes.removeLast() }
        state = RequestState(
            method: method, path: Self.segments(bytes), time: time, auth: caller?.value ?? .null,
            existing: existing, incoming: incoming)
    }

    private static func segments(_ bytes: [UInt8]) -> [Text]? {
        let whole = Text(bytes)
        var segments: [Text] = []
        segments.reserveCapacity(bytes.count { $0 == UInt8(ascii: "/") } + 1)
        var start = 0
        for index in 0...bytes.count where index == bytes.count || bytes[index] == UInt8(ascii: "/")
        {
            guard index > start else { return nil }
            segments.append(whole.slice(start..<index))
            start = index + 1
        }
        return segments
    }

    // MARK: What becomes known

    /// What is done.
    public var method: Method { state.method }

    /// When the request came.
    public var time: Timestamp { state.time }

    /// What is there already; unknown at first. Unknown is null in the rules where objects are listed.
    public var existing: Existing {
        get { state.existing }
        set { change { $0.existing = newValue } }
    }

    /// What is written, for create and update; nil, and null in the rules, for the others.
    public var incoming: ObjectFacts? {
        get { state.incoming }
        set { change { $0.incoming = newValue } }
    }

    /// The caller; nil, and null in the rules, for none.
    public mutating func setCaller(_ caller: Caller?) {
        change { $0.auth = caller?.value ?? .null }
    }

    /// The parameters of the query: `request.params`.
    public mutating func setParameters(_ parameters: [String: Value]) {
        change { $0.params = Datum(.map(parameters)) }
    }

    /// What came of looking for the document that `Needs.documents` names.
    public mutating func setDocument(_ path: String, _ lookup: Lookup) {
        change { $0.documents[Text(path)] = lookup }
    }

    private mutating func change(_ body: (RequestState) -> Void) {
        if !isKnownUniquelyReferenced(&state) { state = RequestState(copying: state) }
        body(state)
    }
}

/// What a request holds, behind one reference.
///
/// Safety: it is changed only by a `Request` that alone refers to it.
final class RequestState: @unchecked Sendable {
    let method: Method
    /// The segments of `/b/<bucket>/o/<object>`; nil where one is empty.
    let path: [Text]?
    let time: Timestamp
    fileprivate(set) var auth: Datum
    fileprivate(set) var params: Datum = .map([])
    fileprivate(set) var existing: Request.Existing
    fileprivate(set) var incoming: ObjectFacts?
    fileprivate(set) var documents: [Text: Lookup] = [:]

    fileprivate init(
        method: Method, path: [Text]?, time: Timestamp, auth: Datum, existing: Request.Existing,
        incoming: ObjectFacts?
    ) {
        self.method = method
        self.path = path
        self.time = time
        self.auth = auth
        self.existing = existing
        self.incoming = incoming
    }

    fileprivate init(copying other: RequestState) {
        method = other.method
        path = other.path
        time = other.time
        auth = other.auth
        params = other.params
        existing = other.existing
        incoming = other.incoming
        documents = other.documents
    }
}
