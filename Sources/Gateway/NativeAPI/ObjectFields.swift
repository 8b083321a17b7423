import Buckets
import HTTPServer
import Wire

extension ObjectAttributes {
    /// The maximum size of custom metadata in bytes, keys and values together.
    static let maximumCustomBytes = 8 * 1024
    /// The maximum number of custom pairs that are sent as header fields.
    static let maximumShownPairs = 64
    /// The maximum size of those fields in bytes, names and values together.
    static let maximumShownBytes = 16 * 1024
    /// The maximum size of each of the five other properties in bytes.
    static let maximumFieldBytes = 2 * 1024

    /// Parses the properties of an uploaded object.
    /// - Throws: ``Problem`` with `invalid-argument` for a value that a response could not repeat.
    init(_ fields: HeaderFields, name: ObjectName) throws(Problem) {
        self.init()
        for (field, value) in fields.all(withPrefix: "") {
            switch field {
            case "content-type":
                try ObjectAttributes.setOnce(&contentType, value, "Content-Type")
            case "content-disposition":
                try ObjectAttributes.setOnce(&contentDisposition, value, "Content-Disposition")
            case "cache-control":
                try ObjectAttributes.extend(&cacheControl, value, "Cache-Control")
            case "content-encoding":
                try ObjectAttributes.extend(&contentEncoding, value, "Content-Encoding")
            case "content-language":
                try ObjectAttributes.extend(&contentLanguage, value, "Content-Language")
            case "x-object-metadata": try addPairs(value)
            default:
                if field.hasPrefix("x-object-meta-") { try addPair(field, value) }
            }
        }
        try ObjectAttributes.checkSize(customMetadata)
        if contentType == nil { contentType = MediaTypes.type(of: name) }
    }

    private static func setOnce(_ property: inout String?, _ value: [UInt8], _ field: String)
        throws(Problem)
    {
        if property != nil { throw Problem(.invalidArgument, "\(field) is given twice.") }
        try extend(&property, value, field)
    }

    static func extend(_ property: inout String?, _ value: [UInt8], _ field: String)
        throws(Problem)
    {
        if value.isEmpty { return }
        let text = try utf8(value, field)
        let whole = property.map { "\($0), \(text)" } ?? text
        try checkField(whole, field)
        property = whole
    }

    private mutating func addPair(_ field: String, _ value: [UInt8]) throws(Problem) {
        let key = String(field.dropFirst("x-object-meta-".utf8.count))
        let text = try ObjectAttributes.utf8(value, field)
        if text.utf8.contains(where: { ASCII.isControl($0) && $0 != 0x09 }) {
            throw Problem(.invalidArgument, "\(field) has a control character.")
        }
        try ObjectAttributes.checkPair(key, text)
        guard customMetadata.updateValue(text, forKey: BytewiseString(key)) == nil else {
            throw Problem(.invalidArgument, "\(field) is given twice.")
        }
    }

    /// Adds the pairs of `X-Object-Metadata`: a JSON object of strings in base64url. Unlike a field for each pair it
    /// carries every key and value exactly.
    private mutating func addPairs(_ value: [UInt8]) throws(Problem) {
        guard let text = Base64.decodeForURL(value[...]),
            case .object(let members)? = try? JSONReader.parse(text)
        else {
            throw Problem(
                .invalidArgument, "X-Object-Metadata is not base64url of a JSON object.")
        }
        for member in members {
            guard let value = member.value.text else {
                throw Problem(.invalidArgument, "X-Object-Metadata has a value that is no string.")
            }
            try ObjectAttributes.checkPair(member.key, value)
            let key = BytewiseString(member.key)
            guard customMetadata.updateValue(value, forKey: key) == nil else {
                throw Problem(.invalidArgument, "A key of custom metadata is given twice.")
            }
        }
    }

    private static func utf8(_ value: [UInt8], _ field: String) throws(Problem) -> String {
        guard let text = String(validating: value, as: UTF8.self) else {
            throw Problem(.invalidArgument, "\(field) is not valid UTF-8.")
        }
        return text
    }

    /// Checks that a header field can carry a property's value exactly.
    static func checkField(_ value: String, _ name: String) throws(Problem) {
        if value.utf8.count > maximumFieldBytes {
            throw Problem(.invalidArgument, "\(name) is longer than \(maximumFieldBytes) bytes.")
        }
        if value.utf8.contains(where: { ASCII.isControl($0) && $0 != 0x09 }) {
            throw Problem(.invalidArgument, "\(name) has a control character.")
        }
        if let first = value.utf8.first, let last = value.utf8.last,
            ASCII.isSpace(first) || ASCII.isSpace(last)
        {
            throw Problem(.invalidArgument, "\(name) begins or ends with a space.")
        }
    }

    /// Checks that a key of custom metadata is not one of the gateway's own.
    static func checkKey(_ key: String) throws(Problem) {
        if SystemMetadata.isReserved(key) {
            throw Problem(.invalidArgument, "The key '\(key.prefix(64))' is reserved.")
        }
    }

    /// Checks a pair of custom metadata: the key is not empty and not reserved, and neither has NUL.
    static func checkPair(_ key: String, _ value: String) throws(Problem) {
        if key.isEmpty { throw Problem(.invalidArgument, "A key of customMetadata is empty.") }
        try checkKey(key)
        if key.utf8.contains(0) || value.utf8.contains(0) {
            throw Problem(.invalidArgument, "customMetadata has a NUL.")
        }
    }

    /// Checks the total size of custom metadata.
    static func checkSize(_ pairs: [BytewiseString: String]) throws(Problem) {
        let sum = pairs.byteCount
        if sum > maximumCustomBytes {
            throw Problem(
                .invalidArgument,
                "customMetadata has \(sum) bytes, keys and values; it may have \(maximumCustomBytes)."
            )
        }
    }

    /// Adds the custom pairs that a header field can carry exactly: the key is a token, and the value is visible ASCII
    /// without spaces at its ends. Keys that differ only in case are all left out. No pair is added if there are more
    /// than ``maximumShownPairs`` or ``maximumShownBytes``, because a client might reject the header.
    fileprivate func appendPairs(to fields: inout HeaderFields) {
        if customMetadata.isEmpty || customMetadata.count > ObjectAttributes.maximumShownPairs {
            return
        }
        let prefix = "x-object-meta-"
        let sum = customMetadata.byteCount + customMetadata.count * prefix.utf8.count
        if sum > ObjectAttributes.maximumShownBytes { return }
        var seen: [BytewiseString: Int] = [:]
        var keys: [(name: String, value: String)] = []
        for (key, value) in customMetadata where key.utf8.allSatisfy(ASCII.isToken) {
            let name = String(decoding: key.utf8.map(ASCII.lowercased), as: UTF8.self)
            seen[name, default: 0] += 1
            let isExact =
                value.utf8.allSatisfy { ASCII.isVisible($0) || $0 == 0x20 }
                && value.utf8.first != 0x20 && value.utf8.last != 0x20
            if isExact { keys.append((name, value)) }
        }
        for (name, value) in keys.sorted(by: { $0.name < $1.name }) where seen[name] == 1 {
            fields.append(name: prefix + name, value)
        }
    }
}

extension ObjectMetadata {
    /// The entity tag as in a header field.
    var quotedETag: String { "\"" + (etag.isFieldValue ? etag : "\(generation)") + "\"" }

    /// The fields of a 304 response (RFC 9110, section 15.4.5).
    ///
    /// An object without `cacheControl` may be stored by the caller, but is validated before each use: a cache would
    /// otherwise choose how long it is fresh (RFC 9111, section 4.2.2), and the caller's permission may end.
    /// - Parameter isStorable: Whether the caller may store such an object.
    func appendValidators(to fields: inout HeaderFields, isStorable: Bool = true) {
        fields.append("etag", quotedETag)
        let own = attributes.cacheControl ?? ""
        let usual = isStorable ? "private, max-age=0" : "no-store"
        fields.append("cache-control", own.isEmpty || !own.isFieldValue ? usual : own)
        // The stored bytes are sent even if the client does not accept their encoding, because ranges and digests refer
        // to them. For caches that decode for their clients (RFC 9110, section 12.5.5).
        if let encoding = attributes.contentEncoding, !["", "identity"].contains(encoding) {
            fields.append("vary", "Accept-Encoding")
        }
    }

    /// The fields of `GET` and `HEAD` responses, without the length.
    func appendFields(to fields: inout HeaderFields) {
        let type = attributes.contentType ?? ""
        fields.append("content-type", type.isEmpty || !type.isFieldValue ? MediaTypes.unknown : type)
        appendValidators(to: &fields)
        append(
            "content-disposition", attributes.contentDisposition.map(ContentDisposition.field),
            to: &fields)
        append("content-encoding", attributes.contentEncoding, to: &fields)
        append("content-language", attributes.contentLanguage, to: &fields)
        fields.append("last-modified", HTTPDate.imfFixdate(seconds: created / 1000))
        fields.append("accept-ranges", "bytes")
        fields.append("x-content-type-options", "nosniff")
        appendGenerations(to: &fields)
        if let digest = reprDigest { fields.append("repr-digest", digest) }
        attributes.appendPairs(to: &fields)
    }

    func appendGenerations(to fields: inout HeaderFields) {
        fields.append("x-object-generation", generation)
        fields.append("x-object-metageneration", metageneration)
    }

    func append(_ name: StaticString, _ value: String?, to fields: inout HeaderFields) {
        if let value, !value.isEmpty, value.isFieldValue { fields.append(name, value) }
    }

    /// The digest of the whole object (RFC 9530, section 3).
    private var reprDigest: String? {
        if md5 == nil && crc32c == nil { return nil }
        var text: [UInt8] = []
        text.reserveCapacity(64)
        if let md5 {
            text.append(contentsOf: "md5=:".utf8)
            Base64.append(md5, to: &text)
            text.append(UInt8(ascii: ":"))
        }
        if let bytes = crc32cBytes {
            text.append(contentsOf: text.isEmpty ? "crc32c=:".utf8 : ", crc32c=:".utf8)
            Base64.append(bytes, to: &text)
            text.append(UInt8(ascii: ":"))
        }
        return String(decoding: text, as: UTF8.self)
    }

    private var crc32cBytes: [UInt8]? { crc32c.map(\.bigEndianBytes) }

    /// The metadata as JSON. Absent properties are left out.
    func json(bucket: String) -> [UInt8] {
        var json = JSONWriter(reserving: 768)
        json.beginObject()
        json.member("bucket", bucket)
        json.member("fullPath", name)
        json.member("name", lastSegment(of: name))
        writeProperties(to: &json)
        json.endObject()
        return json.bytes
    }

    /// Writes the properties as members. Absent ones are left out.
    func writeProperties(to json: inout JSONWriter) {
        json.member("generation", quoted: generation)
        json.member("metageneration", quoted: metageneration)
        json.member("size", quoted: Int64(clamping: size))
        let time = HTTPDate.rfc3339(milliseconds: created)
        json.member("timeCreated", time)
        json.member("updated", updated == created ? time : HTTPDate.rfc3339(milliseconds: updated))
        json.member("etag", etag)
        if let md5 { json.member("md5Hash", Base64.encode(md5)) }
        if let crc32cBytes { json.member("crc32c", Base64.encode(crc32cBytes)) }
        if let value = attributes.contentType { json.member("contentType", value) }
        if let value = attributes.cacheControl { json.member("cacheControl", value) }
        if let value = attributes.contentDisposition { json.member("contentDisposition", value) }
        if let value = attributes.contentEncoding { json.member("contentEncoding", value) }
        if let value = attributes.contentLanguage { json.member("contentLanguage", value) }
        json.member("customMetadata", custom: attributes.customMetadata)
    }
}

extension UInt32 {
    /// The checksum's bytes, the most significant byte first.
    fileprivate var bigEndianBytes: [UInt8] {
        [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: self >> $0) }
    }

    /// The checksum in base64.
    var base64: String { Base64.encode(bigEndianBytes) }
}
