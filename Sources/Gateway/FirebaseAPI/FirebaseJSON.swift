import Buckets
import Wire

/// The JSON format of the protocol.
enum FirebaseJSON {
    /// The reported value of an unset content encoding. It is not stored.
    static let usualEncoding = "identity"
    /// The reported value of an unset content disposition. It is not stored.
    static let usualDisposition = "inline"

    /// Whether a key of custom metadata is reserved for the download tokens. Case does not matter.
    static func isTokens(_ key: String) -> Bool {
        key.asciiLowercased() == "firebasestoragedownloadtokens"
    }

    /// The text of a custom value in an upload: a string unchanged, anything else as JSON.
    static func text(of value: JSONValue) -> String {
        if case .string(let text) = value { return text }
        var json = JSONWriter(reserving: 64)
        json.write(value)
        return String(decoding: json.bytes, as: UTF8.self)
    }

    /// The text of a custom value in a patch: `String(value)` in JavaScript (ECMA-262, section 7.1.17).
    static func converted(_ value: JSONValue) -> String {
        switch value {
        case .null: "null"
        case .boolean(let value): value ? "true" : "false"
        case .number(let text): number(text)
        case .string(let text): text
        case .array(let elements): elements.map { $0 == .null ? "" : converted($0) }.joined(separator: ",")
        case .object: "[object Object]"
        }
    }

    /// A number as JavaScript writes it (ECMA-262, section 6.1.6.1.20).
    static func number(_ text: String) -> String {
        guard let value = Double(text), value.isFinite else { return "null" }
        if value == 0 { return "0" }
        // The shortest digits that are this number, which Swift has in another form: 0.DIGITS × 10^point.
        let parts = Array(abs(value).description.utf8).split(separator: UInt8(ascii: "e"))
        let whole = parts[0].prefix { $0 != UInt8(ascii: ".") }
        var digits = parts[0].filter { $0 != UInt8(ascii: ".") }[...]
        var point = whole.count
        if parts.count > 1 { point += Int(String(decoding: parts[1], as: UTF8.self)) ?? 0 }
        let zeros = digits.prefix { $0 == UInt8(ascii: "0") }.count
        digits = digits.dropFirst(zeros)
        point -= zeros
        while digits.last == UInt8(ascii: "0") { digits.removeLast() }
        return (value < 0 ? "-" : "") + decimal(String(decoding: digits, as: UTF8.self), point)
    }

    /// 0.DIGITS × 10^point.
    private static func decimal(_ digits: String, _ point: Int) -> String {
        func zeros(_ count: Int) -> String { String(repeating: "0", count: max(0, count)) }
        switch point {
        case digits.utf8.count...21: return digits + zeros(point - digits.utf8.count)
        case 1...21: return "\(digits.prefix(point)).\(digits.dropFirst(point))"
        case -5...0: return "0.\(zeros(-point))\(digits)"
        default:
            let fraction = digits.dropFirst()
            let exponent = point - 1
            return digits.prefix(1) + (fraction.isEmpty ? "" : ".\(fraction)")
                + "e\(exponent < 0 ? "-" : "+")\(abs(exponent))"
        }
    }
}

extension JSONWriter {
    /// Writes any value, without spaces.
    fileprivate mutating func write(_ value: JSONValue) {
        switch value {
        case .null: null()
        case .boolean(let value): raw(value ? "true" : "false")
        case .number(let text): raw(FirebaseJSON.number(text))
        case .string(let text): string(text)
        case .array(let elements):
            beginArray()
            for element in elements { write(element) }
            endArray()
        case .object(let members):
            beginObject()
            for member in members {
                key(text: member.key)
                write(member.value)
            }
            endObject()
        }
    }
}

extension AttributePatch {
    /// Parses the body of a `PATCH`. Read-only properties and download tokens are ignored.
    /// - Throws: ``Problem`` with `invalid-argument`.
    init(firebase text: [UInt8]) throws(Problem) {
        self.init()
        for member in try JSONReader.members(of: text) {
            switch member.key {
            case "contentType": contentType = try AttributePatch.change(member)
            case "cacheControl": cacheControl = try AttributePatch.change(member)
            case "contentLanguage": contentLanguage = try AttributePatch.change(member)
            case "contentDisposition":
                contentDisposition = try AttributePatch.change(member, unset: [FirebaseJSON.usualDisposition, ""])
            case "contentEncoding":
                contentEncoding = try AttributePatch.change(member, unset: [FirebaseJSON.usualEncoding, ""])
            case "metadata": try takeCustom(member.value)
            default: break
            }
        }
    }

    private mutating func takeCustom(_ value: JSONValue) throws(Problem) {
        if value == .null {
            clearCustomMetadata = true
            return
        }
        guard case .object(let pairs) = value else {
            throw Problem(.invalidArgument, "metadata is an object or null.")
        }
        for pair in pairs where !FirebaseJSON.isTokens(pair.key) {
            let key = BytewiseString(pair.key)
            if pair.value == .null {
                try ObjectAttributes.checkKey(pair.key)
                customMetadata[key] = .some(nil)
            } else {
                let text = FirebaseJSON.converted(pair.value)
                try ObjectAttributes.checkPair(pair.key, text)
                customMetadata[key] = text
            }
        }
        try ObjectAttributes.checkSize(customMetadata.compactMapValues { $0 })
    }
}

extension ObjectMetadata {
    /// The object's metadata in the protocol's format.
    func firebaseJSON(bucket: String) -> [UInt8] {
        var json = JSONWriter(reserving: 1024)
        json.beginObject()
        json.member("name", name)
        json.member("bucket", bucket)
        json.member("generation", String(generation))
        json.member("metageneration", String(metageneration))
        if let value = attributes.contentType { json.member("contentType", value) }
        json.member("timeCreated", HTTPDate.rfc3339(milliseconds: created))
        json.member("updated", HTTPDate.rfc3339(milliseconds: updated))
        json.member("storageClass", FirebaseAPI.storageClass)
        json.member("size", String(size))
        if let md5 { json.member("md5Hash", Base64.encode(md5)) }
        if let crc32c { json.member("crc32c", crc32c.base64) }
        json.member("etag", etag)
        // Some stores keep an empty value.
        let (encoding, disposition) = (
            attributes.contentEncoding ?? "", attributes.contentDisposition ?? ""
        )
        json.member("contentEncoding", encoding.isEmpty ? FirebaseJSON.usualEncoding : encoding)
        json.member(
            "contentDisposition",
            disposition.isEmpty ? FirebaseJSON.usualDisposition : disposition)
        if let value = attributes.cacheControl { json.member("cacheControl", value) }
        if let value = attributes.contentLanguage { json.member("contentLanguage", value) }
        json.member("downloadTokens", attributes.system.downloadTokens.joined(separator: ","))
        json.member("metadata", custom: attributes.customMetadata)
        json.endObject()
        return json.bytes
    }
}
