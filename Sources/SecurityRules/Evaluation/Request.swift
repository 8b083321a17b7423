import Wire

/// The knowledge about one property of an object.
public enum Fact: Sendable, Hashable {
    /// The value; null for an optional property that is not set.
    case known(Value)
    /// The value is not known yet, such as the hash of a body that is still arriving. It will have a value.
    case unknown
    /// The object has no such property. Reading it is an error, as in the hosted service.
    case absent
}

/// The known properties of an object, which rules see as `resource` or `request.resource`.
///
/// ``init()`` sets no properties. ``init(name:bucket:)`` sets the optional ones, including custom metadata, to null, as
/// the hosted service does for properties that were not sent.
public struct ObjectFacts: Sendable {
    private(set) var fields: [Datum?]
    private(set) var others: [MapEntry] = []

    /// An object without properties.
    public init() { fields = Array(repeating: nil, count: ObjectField.allCases.count) }

    /// An object with this name. Its optional properties are null.
    public init(name: String, bucket: String) {
        self.init()
        set(.name, .known(.string(name)))
        set(.bucket, .known(.string(bucket)))
        for field in [
            ObjectField.contentDisposition, .contentEncoding, .contentLanguage, .contentType,
            .cacheControl, .storageClass, .metadata,
        ] {
            set(field, .known(.null))
        }
    }

    /// The properties that an upload only gets when it is stored, and that may be null.
    static let ofStored = [ObjectField.generation, .metageneration, .etag]

    /// Sets the properties that an upload only gets when it is stored to null: generation, metageneration and etag.
    public mutating func setNotStored() {
        for field in Self.ofStored { set(field, .known(.null)) }
    }

    /// Sets one property.
    public mutating func set(_ field: ObjectField, _ fact: Fact) {
        switch fact {
        case .known(let value): fields[Int(field.rawValue)] = Datum(value)
        case .unknown: fields[Int(field.rawValue)] = .unknown(Unknown(bits: InputBits(field), mayFail: false))
        case .absent: fields[Int(field.rawValue)] = nil
        }
    }

    /// Sets a property by its name in the rules. Mocks may have properties that objects do not have.
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

    /// All properties as a map; unknown if any of them is.
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

    /// A caller with this user ID and these token claims.
    public init(uid: String, token: [Value.Key: Value] = [:]) {
        self.init(properties: ["uid": .string(uid), "token": .map(token)])
    }

    /// A caller with exactly these properties of `request.auth`.
    public init(properties: [Value.Key: Value]) { self.init(Datum(.map(properties))) }

    init(_ value: Datum) { self.value = value }
}

/// The result of looking up a document.
public enum Lookup: Sendable, Hashable {
    /// The document exists and has these fields.
    case present([Value.Key: Value])
    /// The document does not exist.
    case absent
    /// The lookup failed, which is an error in the rules.
    case failed
}

/// A request with the facts known so far: the input of a decision.
///
/// Creating a request converts its inputs. A decision then needs no allocation in the common case.
public struct Request: Sendable {
    /// The known properties of the existing object.
    public enum Existing: Sendable {
        /// The object has not been looked up.
        case unknown
        /// No object exists: `resource` is null.
        case absent
        /// The object exists and has these properties.
        case object(ObjectFacts)
    }

    /// Shared by copies of a request. Copied on write.
    private(set) var state: RequestState

    /// Creates a request for an object. For `list`, `object` is a prefix without its final slash; empty for all.
    ///
    /// No rule can allow a name with an empty segment, such as `a//b`.
    public init(
        _ method: Method, bucket: String, object: String, caller: Caller? = nil, time: Timestamp,
        existing: Existing = .unknown, incoming: ObjectFacts? = nil
    ) {
        var path: [UInt8] = []
        path.reserveCapacity(bucket.utf8.count + object.utf8.count + 5)
        path.append(UInt8(ascii: "b"))
        path.append(UInt8(ascii: "/"))
        path.append(contentsOf: bucket.utf8)
        path.append(UInt8(ascii: "/"))
        path.append(UInt8(ascii: "o"))
        if !object.isEmpty {
            path.append(UInt8(ascii: "/"))
            path.append(contentsOf: object.utf8)
        }
        state = RequestState(
            method: method, path: Self.segments(path), time: time,
            auth: caller?.value ?? .null, existing: existing, incoming: incoming)
    }

    /// Creates a request by its full path, such as `/b/photos/o/users/alice.png`. One trailing slash is ignored.
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
        for index in 0...bytes.count where index == bytes.count || bytes[index] == UInt8(ascii: "/") {
            guard index > start else { return nil }
            segments.append(whole.slice(start..<index))
            start = index + 1
        }
        return segments
    }

    // MARK: Facts that become known

    /// The operation that the request performs.
    public var method: Method { state.method }

    /// The time of the request.
    public var time: Timestamp { state.time }

    /// Makes `request.time` a period that starts at `time`. A request is then allowed only if it is allowed at every
    /// moment of the period. Comparing `request.time` with a timestamp by `<`, `<=`, `>` or `>=` gives a result if it
    /// is the same throughout. Everything else that reads it is unknown (`Needs.time`).
    /// - Parameter last: The end of the period, inclusive.
    public mutating func setTime(through last: Timestamp) { change { $0.lastTime = last } }

    /// The existing object. Initially unknown. For `list`, unknown means null in the rules.
    public var existing: Existing {
        get { state.existing }
        set { change { $0.existing = newValue } }
    }

    /// The object to be written, for create and update. For other methods nil, which is null in the rules.
    public var incoming: ObjectFacts? {
        get { state.incoming }
        set { change { $0.incoming = newValue } }
    }

    /// Sets the caller. nil, which is null in the rules, means that the request is anonymous.
    public mutating func setCaller(_ caller: Caller?) {
        change { $0.auth = caller?.value ?? .null }
    }

    /// Sets the query parameters: `request.params`.
    public mutating func setParameters(_ parameters: [Value.Key: Value]) {
        change { $0.params = Datum(.map(parameters)) }
    }

    /// Sets the result of looking up a document that `Needs.documents` lists.
    public mutating func setDocument(_ path: DocumentPath, _ lookup: Lookup) {
        change { $0.documents[path] = lookup }
    }

    private mutating func change(_ body: (RequestState) -> Void) {
        if !isKnownUniquelyReferenced(&state) { state = RequestState(copying: state) }
        body(state)
    }
}

/// The contents of a request, behind one reference.
///
/// Safety: changed only by a `Request` that holds the only reference.
final class RequestState: @unchecked Sendable {
    let method: Method
    /// The segments of `/b/<bucket>/o/<object>`; nil if one of them is empty.
    let path: [Text]?
    let time: Timestamp
    /// The end of the period that starts at `time`; nil if `time` is a single moment.
    fileprivate(set) var lastTime: Timestamp?
    fileprivate(set) var auth: Datum
    fileprivate(set) var params: Datum = .map([])
    fileprivate(set) var existing: Request.Existing
    fileprivate(set) var incoming: ObjectFacts?
    fileprivate(set) var documents: [DocumentPath: Lookup] = [:]

    fileprivate init(
        method: Method, path: [Text]?, time: Timestamp, auth: Datum, existing: Request.Existing, incoming: ObjectFacts?
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
        lastTime = other.lastTime
        auth = other.auth
        params = other.params
        existing = other.existing
        incoming = other.incoming
        documents = other.documents
    }
}
