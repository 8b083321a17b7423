import Wire

/// The JSON representation of objects in the Cloud Storage API.
enum GCSObject {
    /// Parses an object resource; nil if a required member is missing or malformed.
    static func metadata(_ json: JSONValue) -> ObjectMetadata? {
        guard let name = json["name"]?.text,
            let generation = json["generation"]?.integer, generation > 0,
            let metageneration = json["metageneration"]?.integer, metageneration > 0,
            // Google's test bench omits members that are 0.
            let size = json["size"].map(\.integer) ?? 0, size >= 0,
            let created = json["timeCreated"]?.text.flatMap({ HTTPDate.parse(rfc3339: $0) })
        else { return nil }
        let updated = json["updated"]?.text.flatMap { HTTPDate.parse(rfc3339: $0) }
        let crc32c = digest(json["crc32c"], count: 4).map(crc32c)
        var attributes = attributes(json)
        attributes.system.s3?.complete(crc32c: crc32c)
        return ObjectMetadata(
            name: name, generation: generation, metageneration: metageneration,
            size: UInt64(size), created: created, updated: updated ?? created,
            md5: digest(json["md5Hash"], count: 16),
            crc32c: crc32c,
            // Google's own entity tag changes with each patch; ours identifies the bytes.
            etag: String(generation), attributes: attributes)
    }

    /// Parses an item of a list; nil if it has only a name.
    static func listed(_ json: JSONValue) -> ListedProperties? {
        guard let generation = json["generation"]?.integer, generation > 0,
            // As in `metadata(_:)`.
            let size = json["size"].map(\.integer) ?? 0, size >= 0,
            let updated = (json["updated"] ?? json["timeCreated"])?.text.flatMap({ HTTPDate.parse(rfc3339: $0) })
        else { return nil }
        var listed = ListedProperties(size: UInt64(size), updated: updated, etag: String(generation))
        listed.generation = generation
        listed.contentType = ObjectAttributes.property(json["contentType"]?.text)
        listed.md5 = digest(json["md5Hash"], count: 16)
        listed.crc32c = digest(json["crc32c"], count: 4).map(crc32c)
        if let text = json["metadata"]?[SystemMetadata.s3Key]?.text { listed.storedTag = S3Properties(text: text)?.tag }
        return listed
    }

    /// The crc32c of an `x-goog-hash` field: `crc32c=…,md5=…`.
    static func crc32c(hashField field: String?) -> UInt32? {
        for part in field?.split(separator: ",") ?? [] {
            let text = part.drop { $0 == " " }
            guard text.hasPrefix("crc32c=") else { continue }
            return decode(String(text.dropFirst(7)), count: 4).map(crc32c)
        }
        return nil
    }

    static func hashField(_ facts: ContentFacts) -> String {
        [facts.crc32c.map { "crc32c=\(base64($0))" }, facts.md5.map { "md5=\(Base64.encode($0))" }]
            .compactMap(\.self).joined(separator: ",")
    }

    private static func base64(_ crc32c: UInt32) -> String {
        Base64.encode((0..<4).map { UInt8(truncatingIfNeeded: crc32c >> (24 - 8 * $0)) })
    }

    private static func attributes(_ json: JSONValue) -> ObjectAttributes {
        func text(_ key: String) -> String? {
            ObjectAttributes.property(json[key]?.text)
        }
        var attributes = ObjectAttributes(
            contentType: text("contentType"), cacheControl: text("cacheControl"),
            contentDisposition: text("contentDisposition"),
            contentEncoding: text("contentEncoding"), contentLanguage: text("contentLanguage"))
        if case .object(let members)? = json["metadata"] {
            for member in members {
                guard let value = member.value.text else { continue }
                attributes.take(stored: member.key, value)
            }
        }
        return attributes
    }

    private static func digest(_ value: JSONValue?, count: Int) -> [UInt8]? {
        value?.text.flatMap { decode($0, count: count) }
    }

    private static func decode(_ text: String, count: Int) -> [UInt8]? {
        guard let bytes = Base64.decode(Array(text.utf8)[...]), bytes.count == count else {
            return nil
        }
        return bytes
    }

    private static func crc32c(_ bytes: [UInt8]) -> UInt32 {
        bytes.reduce(0) { $0 << 8 | UInt32($1) }
    }

    // MARK: Writing

    /// The custom metadata key for the mark of the upload session that created the object. It is reserved
    /// (``SystemMetadata/isReserved(_:)``), so no client can see or set it.
    static let markKey = "sluice-commit"

    static func isMarked(_ json: JSONValue, _ mark: UInt64) -> Bool {
        json["metadata"]?[markKey]?.text.map { BytewiseString.areEqual($0, String(mark)) } ?? false
    }

    /// The resource of a new object. The service verifies the digests of `facts`.
    /// - Parameters:
    ///   - name: nil to set the properties of an existing object.
    ///   - mark: The mark of the creating upload session.
    static func resource(
        _ name: String?, _ attributes: ObjectAttributes, _ facts: ContentFacts?,
        mark: UInt64? = nil
    ) -> [UInt8] {
        var json = JSONWriter(reserving: 512)
        json.beginObject()
        if let name { json.member("name", name) }
        json.member("contentType", attributes.mediaType)
        if let value = attributes.cacheControl { json.member("cacheControl", value) }
        if let value = attributes.contentDisposition { json.member("contentDisposition", value) }
        if let value = attributes.contentEncoding { json.member("contentEncoding", value) }
        if let value = attributes.contentLanguage { json.member("contentLanguage", value) }
        var pairs = attributes.storedPairs
        if let mark { pairs[BytewiseString(markKey)] = String(mark) }
        if !pairs.isEmpty {
            json.key("metadata")
            json.beginObject()
            for (key, value) in pairs { json.member(key: key.text, value) }
            json.endObject()
        }
        if let facts {
            if let md5 = facts.md5 { json.member("md5Hash", Base64.encode(md5)) }
            if let crc32c = facts.crc32c { json.member("crc32c", base64(crc32c)) }
        }
        json.endObject()
        return json.bytes
    }

    /// The JSON of a patch, key by key, so that reserved keys are kept. `current` is needed to clear custom metadata.
    static func patch(_ patch: AttributePatch, current: ObjectAttributes?) -> [UInt8] {
        var json = JSONWriter(reserving: 512)
        func write(_ key: StaticString, _ change: AttributePatch.Change) {
            switch change {
            case .keep: break
            case .set(let value): json.member(key, value)
            case .remove:
                json.key(key)
                json.null()
            }
        }
        json.beginObject()
        write("contentType", patch.contentType)
        write("cacheControl", patch.cacheControl)
        write("contentDisposition", patch.contentDisposition)
        write("contentEncoding", patch.contentEncoding)
        write("contentLanguage", patch.contentLanguage)
        var custom = patch.customMetadata
        if patch.clearCustomMetadata, let current {
            for key in current.customMetadata.keys where !custom.keys.contains(key) {
                custom[key] = .some(nil)
            }
        }
        if let tokens = patch.downloadTokens {
            let text = tokens.isEmpty ? nil : SystemMetadata.joined(tokens)
            custom[BytewiseString(SystemMetadata.downloadTokensKey)] = .some(text)
        }
        if !custom.isEmpty {
            json.key("metadata")
            json.beginObject()
            for (key, value) in custom {
                if let value {
                    json.member(key: key.text, value)
                } else {
                    json.memberNull(key: key.text)
                }
            }
            json.endObject()
        }
        json.endObject()
        return json.bytes
    }
}

struct GCSListPage {
    let items: [String]
    let prefixes: [String]
    /// The properties of items, if requested and present.
    let properties: [BytewiseString: ListedProperties]
    /// nil on the last page.
    let next: String?

    static func members(of query: ListQuery) -> String {
        let properties = "name,generation,size,timeCreated,updated,contentType,md5Hash,crc32c"
        return !query.withProperties ? "name" : query.withS3Tags ? properties + ",metadata" : properties
    }

    /// nil if the body is not a page: a JSON object whose lists, if present, contain names.
    init?(_ body: [UInt8], withProperties: Bool = false) {
        guard let json = try? JSONReader.parse(body), case .object = json, json["error"] == nil,
            let items = GCSListPage.texts(json["items"], { $0["name"] }),
            let prefixes = GCSListPage.texts(json["prefixes"], { $0 })
        else { return nil }
        self.items = items
        self.prefixes = prefixes
        // Some servers send more members than requested.
        properties = withProperties ? GCSListPage.properties(json["items"]?.elements ?? []) : [:]
        switch json["nextPageToken"] {
        case nil, .null: next = nil
        case .some(let token):
            guard let text = token.text else { return nil }
            next = text.isEmpty ? nil : text
        }
    }

    private static func properties(_ items: [JSONValue]) -> [BytewiseString: ListedProperties] {
        var all: [BytewiseString: ListedProperties] = [:]
        for item in items {
            guard let name = item["name"]?.text, let listed = GCSObject.listed(item) else {
                continue
            }
            all[BytewiseString(name)] = listed
        }
        return all
    }

    /// The texts of a list: empty if it is missing, nil if it is malformed.
    private static func texts(_ list: JSONValue?, _ text: (JSONValue) -> JSONValue?) -> [String]? {
        switch list {
        case nil, .null: return []
        case .some(let list):
            guard let elements = list.elements else { return nil }
            let texts = elements.compactMap { text($0)?.text }
            return texts.count == elements.count ? texts : nil
        }
    }
}

extension ObjectAttributes {
    /// The content type as served by Cloud Storage.
    var mediaType: String { contentType ?? "application/octet-stream" }

    /// Whether an object stored with `wanted` can look like this. Some servers add their own custom metadata.
    func areStored(from wanted: ObjectAttributes) -> Bool {
        func values(_ attributes: ObjectAttributes) -> [BytewiseString] {
            [
                attributes.mediaType, attributes.cacheControl, attributes.contentDisposition,
                attributes.contentEncoding, attributes.contentLanguage,
            ].map { BytewiseString($0 ?? "") }
        }
        return values(self) == values(wanted) && system == wanted.system
            && wanted.customMetadata.allSatisfy { key, value in
                customMetadata[key].map { BytewiseString.areEqual($0, value) } ?? false
            }
    }
}
