import Wire

/// How objects look in the JSON API of Cloud Storage.
enum GCSObject {
    /// Holds tokens for downloads by Firebase's own URLs: hidden from callers, and left alone by patches.
    static let hiddenKey: BytewiseString = "firebaseStorageDownloadTokens"

    /// Reads an object resource.
    /// - Returns: nil where a member that every object has is missing or damaged.
    static func metadata(_ json: JSONValue) -> ObjectMetadata? {
        guard let name = json["name"]?.text,
            let generation = json["generation"]?.integer, generation > 0,
            let metageneration = json["metageneration"]?.integer, metageneration > 0,
            // Google's test bench leaves out what is 0.
            let size = json["size"].map(\.integer) ?? 0, size >= 0,
            let created = json["timeCreated"]?.text.flatMap({ HTTPDate.parse(rfc3339: $0) })
        else { return nil }
        let updated = json["updated"]?.text.flatMap { HTTPDate.parse(rfc3339: $0) }
        return ObjectMetadata(
            name: name, generation: generation, metageneration: metageneration,
            size: UInt64(size), created: created, updated: updated ?? created,
            md5: digest(json["md5Hash"], count: 16),
            crc32c: digest(json["crc32c"], count: 4).map(crc32c),
            // Google's own entity tag changes with each patch; ours stands for the bytes.
            etag: String(generation), attributes: attributes(json))
    }

    /// The checksums of an `x-goog-hash` field: `crc32c=…,md5=…`.
    static func crc32c(hashField field: String?) -> UInt32? {
        for part in field?.split(separator: ",") ?? [] {
            let text = part.drop { $0 == " " }
            guard text.hasPrefix("crc32c=") else { continue }
            return decode(String(text.dropFirst(7)), count: 4).map(crc32c)
        }
        return nil
    }

    /// The `x-goog-hash` field of a body.
    static func hashField(_ facts: ContentFacts) -> String {
        let crc32c = "crc32c=\(base64(facts.crc32c))"
        return facts.md5.map { "\(crc32c),md5=\(Base64.encode($0))" } ?? crc32c
    }

    /// A crc32c as it is written: big-endian.
    private static func base64(_ crc32c: UInt32) -> String {
        Base64.encode((0..<4).map { UInt8(truncatingIfNeeded: crc32c >> (24 - 8 * $0)) })
    }

    private static func attributes(_ json: JSONValue) -> ObjectAttributes {
        func text(_ key: String) -> String? {
            ObjectAttributes.property(json[key]?.text)
        }
        var custom: [BytewiseString: String] = [:]
        if case .object(let members)? = json["metadata"] {
            for member in members {
                guard let value = member.value.text else { continue }
                custom[BytewiseString(member.key)] = value
            }
        }
        custom[hiddenKey] = nil
        return ObjectAttributes(
            contentType: text("contentType"), cacheControl: text("cacheControl"),
            contentDisposition: text("contentDisposition"),
            contentEncoding: text("contentEncoding"), contentLanguage: text("contentLanguage"),
            customMetadata: custom)
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

    /// From big-endian bytes.
    private static func crc32c(_ bytes: [UInt8]) -> UInt32 {
        bytes.reduce(0) { $0 << 8 | UInt32($1) }
    }

    // MARK: Writing

    /// The resource of a new object. What the facts tell is verified by the service.
    static func resource(_ name: String, _ attributes: ObjectAttributes, _ facts: ContentFacts?)
        -> [UInt8]
    {
        var json = JSONWriter(reserving: 512)
        json.beginObject()
        json.member("name", name)
        json.member("contentType", attributes.mediaType)
        if let value = attributes.cacheControl { json.member("cacheControl", value) }
        if let value = attributes.contentDisposition { json.member("contentDisposition", value) }
        if let value = attributes.contentEncoding { json.member("contentEncoding", value) }
        if let value = attributes.contentLanguage { json.member("contentLanguage", value) }
        if !attributes.customMetadata.isEmpty {
            json.key("metadata")
            json.beginObject()
            for (key, value) in attributes.customMetadata where key != hiddenKey {
                json.member(key: key.text, value)
            }
            json.endObject()
        }
        if let facts {
            if let md5 = facts.md5 { json.member("md5Hash", Base64.encode(md5)) }
            json.member("crc32c", base64(facts.crc32c))
        }
        json.endObject()
        return json.bytes
    }

    /// A patch as the service takes it, key by key: the hidden one is not touched.
    /// - Parameter current: The attributes that are there, where all custom metadata is cleared.
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
            for key in current.customMetadata.keys where custom[key] == nil {
                custom[key] = .some(nil)
            }
        }
        custom[hiddenKey] = nil
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

/// One page of a list as Google's service gives it.
struct GCSListPage {
    let items: [String]
    let prefixes: [String]
    /// What to ask the next page with; nil after the last.
    let next: String?

    /// nil where it is not JSON.
    init?(_ body: [UInt8]) {
        guard let json = try? JSONReader.parse(body) else { return nil }
        items = (json["items"]?.elements ?? []).compactMap { $0["name"]?.text }
        prefixes = (json["prefixes"]?.elements ?? []).compactMap(\.text)
        next = json["nextPageToken"]?.text.flatMap { $0.isEmpty ? nil : $0 }
    }
}

extension ObjectAttributes {
    /// As Cloud Storage would serve it.
    var mediaType: String { contentType ?? "application/octet-stream" }

    /// Whether an object that was stored with `wanted` looks so: nothing is missing, and nothing is there that is another's.
    func areStored(from wanted: ObjectAttributes) -> Bool {
        func values(_ attributes: ObjectAttributes) -> [String] {
            [
                attributes.cacheControl, attributes.contentDisposition, attributes.contentEncoding,
                attributes.contentLanguage,
            ].map { $0 ?? "" }
        }
        func custom(_ attributes: ObjectAttributes) -> [BytewiseString: String] {
            // Google's test bench notes how an object was uploaded.
            attributes.customMetadata.filter {
                $0.key != GCSObject.hiddenKey && !$0.key.text.hasPrefix("x_emulator_")
            }
        }
        return mediaType == wanted.mediaType && values(self) == values(wanted)
            && custom(self) == custom(wanted)
    }
}
