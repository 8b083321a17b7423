import Buckets
import Wire

/// The properties of the request that created a session, for the decision at its end. Stored with it as JSON.
struct UploadContext {
    let dialect: UploadDialect
    /// The caller whose limits apply.
    let owner: CallerLimits.Key
    /// The creator; nil if it was anonymous or used a signed link.
    var caller: SavedCaller?
    /// The signed link that allowed the creation.
    var link: LinkGrant?
    /// ``LinkKey/fingerprint`` of the link's key; nil if there is no link, or an earlier version has begun the session.
    var linkKey: String?
    /// The query parameters of the creation, for the rules.
    var parameters: [BytewiseString: String] = [:]
    /// The preconditions of the commit.
    var conditions = Preconditions()
    /// The expected digests of the whole body, checked before the commit.
    var digests = ExpectedDigests()
    /// ``SessionCreation/metadata``.
    var metadata: String?

    init(_ dialect: UploadDialect, owner: CallerLimits.Key, caller: SavedCaller?) {
        self.dialect = dialect
        self.owner = owner
        self.caller = caller
    }

}

// MARK: Writing

extension UploadContext {
    var json: [UInt8] {
        var json = JSONWriter(reserving: 1024)
        json.beginObject()
        json.member("dialect", dialect.name)
        json.member("group", owner.group)
        json.member("source", owner.source)
        json.member("caller", owner.caller)
        if let caller { json.member(key: "principal", json: caller.json) }
        if let link {
            json.key("link")
            json.write(link)
        }
        if let linkKey { json.member("linkKey", linkKey) }
        if !parameters.isEmpty {
            json.key("parameters")
            json.beginObject()
            for (name, value) in parameters.sorted(by: { $0.key < $1.key }) {
                json.member(key: name.text, value)
            }
            json.endObject()
        }
        if !conditions.isEmpty {
            json.key("conditions")
            json.write(conditions)
        }
        if !digests.isEmpty {
            json.key("digests")
            json.write(digests)
        }
        if let metadata { json.member("metadata", metadata) }
        json.endObject()
        return json.bytes
    }
}

extension JSONWriter {
    fileprivate mutating func write(_ grant: LinkGrant) {
        let link = grant.link
        beginObject()
        member("key", grant.key)
        member("issued", link.issued)
        member("expires", link.expires)
        if let size = link.size { member("size", String(size)) }
        if let type = link.contentType { member("type", type) }
        if let pin = link.pin { member("pin", "\(pin)") }
        if link.isDeadline { member("deadline", "true") }
        endObject()
    }

    fileprivate mutating func write(_ conditions: Preconditions) {
        beginObject()
        if let tags = conditions.ifMatch { write("ifMatch", tags) }
        if let tags = conditions.ifNoneMatch { write("ifNoneMatch", tags) }
        if let time = conditions.ifModifiedSince { member("ifModifiedSince", time) }
        if let time = conditions.ifUnmodifiedSince { member("ifUnmodifiedSince", time) }
        if let number = conditions.generation { member("generation", number) }
        if let number = conditions.metageneration { member("metageneration", number) }
        if conditions.comparesS3Tags { member("s3Tags", "true") }
        endObject()
    }

    private mutating func write(_ name: StaticString, _ tags: Preconditions.Tags) {
        key(name)
        switch tags {
        case .any: string("*")
        case .tags(let tags):
            beginArray()
            for tag in tags { string(tag) }
            endArray()
        }
    }

    fileprivate mutating func write(_ digests: ExpectedDigests) {
        beginObject()
        if let md5 = digests.md5 { member("md5", Base64.encode(md5)) }
        if let crc32c = digests.crc32c { member("crc32c", Int64(crc32c)) }
        for algorithm in DigestAlgorithm.allCases {
            guard let digest = digests.others[algorithm] else { continue }
            member(key: algorithm.rawValue, Base64.encode(digest))
        }
        endObject()
    }
}

// MARK: Reading

extension UploadContext {
    /// Parses ``json``; nil if it is invalid.
    /// - Parameters:
    ///   - bucket: The bucket's name.
    ///   - name: The object's name.
    init?(json text: [UInt8], bucket: String, name: String) {
        guard let document = try? JSONDocument(text), let json = try? JSONReader.parse(text),
            let dialect = json["dialect"]?.text.flatMap(UploadDialect.init(name:)), let group = json["group"]?.text,
            let source = json["source"]?.text, let address = json["caller"]?.text
        else { return nil }
        self.init(
            dialect, owner: CallerLimits.Key(group: group, source: source, caller: address),
            caller: nil)
        for name in document.children(of: 0) where document.has(name, "principal") {
            guard let caller = SavedCaller(document, at: name + 1) else { return nil }
            self.caller = caller
        }
        if let saved = json["link"] {
            guard let link = LinkGrant(saved, bucket: bucket, name: name) else { return nil }
            self.link = link
        }
        linkKey = json["linkKey"]?.text
        if case .object(let members) = json["parameters"] {
            for member in members { parameters[BytewiseString(member.key)] = member.value.text }
        }
        if let saved = json["conditions"] { conditions = Preconditions(saved) }
        if let saved = json["digests"] {
            guard let digests = ExpectedDigests(saved) else { return nil }
            self.digests = digests
        }
        metadata = json["metadata"]?.text
    }
}

extension LinkGrant {
    fileprivate init?(_ json: JSONValue, bucket: String, name: String) {
        guard let key = json["key"]?.text, let issued = json["issued"]?.integer, let expires = json["expires"]?.integer
        else { return nil }
        var link = SignedLink(
            .put, bucket: bucket, name: name, issued: issued, expires: expires,
            size: json["size"]?.text.flatMap { UInt64($0) }, contentType: json["type"]?.text)
        if let pin = json["pin"]?.text {
            guard let pin = SignedLink.Pin(pin) else { return nil }
            link.pin = pin
        }
        link.isDeadline = json["deadline"] != nil
        self.init(link: link, key: key)
    }
}

extension Preconditions {
    fileprivate init(_ json: JSONValue) {
        self.init()
        ifMatch = Preconditions.tags(json["ifMatch"])
        ifNoneMatch = Preconditions.tags(json["ifNoneMatch"])
        ifModifiedSince = json["ifModifiedSince"]?.integer
        ifUnmodifiedSince = json["ifUnmodifiedSince"]?.integer
        generation = json["generation"]?.integer
        metageneration = json["metageneration"]?.integer
        comparesS3Tags = json["s3Tags"] != nil
    }

    private static func tags(_ json: JSONValue?) -> Tags? {
        if let elements = json?.elements { return .tags(elements.compactMap(\.text)) }
        return json?.text == nil ? nil : .any
    }
}

extension ExpectedDigests {
    var isEmpty: Bool { self == ExpectedDigests() }

    fileprivate init?(_ json: JSONValue) {
        self.init()
        func bytes(_ name: String) -> [UInt8]? {
            json[name]?.text.flatMap { Base64.decode(Array($0.utf8)[...]) }
        }
        md5 = bytes("md5")
        crc32c = json["crc32c"]?.integer.flatMap { UInt32(exactly: $0) }
        for algorithm in DigestAlgorithm.allCases {
            others[algorithm] = bytes(algorithm.rawValue)
            if json[algorithm.rawValue] != nil, others[algorithm] == nil { return nil }
        }
        guard (json["md5"] == nil) == (md5 == nil), (json["crc32c"] == nil) == (crc32c == nil) else { return nil }
    }
}
