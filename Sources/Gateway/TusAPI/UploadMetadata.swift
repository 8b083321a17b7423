import Buckets
import Wire

/// `Upload-Metadata`: pairs of a key and a base64 value, separated by commas. An empty value may be left out.
struct UploadMetadata {
    /// The field as received, for later responses.
    let text: String
    private var values: [BytewiseString: [UInt8]] = [:]

    /// - Throws: ``Problem`` with `invalid-argument` if the field is missing or malformed, or a key occurs twice.
    init(_ fields: HeaderFields) throws(Problem) {
        guard let text = fields.list("upload-metadata") else {
            throw Problem(.invalidArgument, "Upload-Metadata is required.")
        }
        self.text = text
        let pairs = Array(text.utf8).split(separator: 0x2c, omittingEmptySubsequences: false)
        for pair in pairs {
            let pair = ASCII.trimmed(pair)
            let end = pair.firstIndex(of: 0x20) ?? pair.endIndex
            let key = pair[..<end]
            guard !key.isEmpty, key.allSatisfy(ASCII.isVisible), let value = Base64.decode(pair[end...].dropFirst())
            else {
                throw Problem(
                    .invalidArgument,
                    "Upload-Metadata is a list of keys, each with a space and a value in base64.")
            }
            let name = String(decoding: key, as: UTF8.self)
            guard values.updateValue(value, forKey: BytewiseString(name)) == nil else {
                throw Problem(.invalidArgument, "A key of Upload-Metadata is given twice.")
            }
        }
    }

    /// The value of a required key.
    func required(_ key: String) throws(Problem) -> String {
        guard let value = try text(key) else {
            throw Problem(.invalidArgument, "Upload-Metadata has no \(key).")
        }
        return value
    }

    /// The value of a key; nil if it is absent or empty.
    private func text(_ key: String) throws(Problem) -> String? {
        guard let value = values[BytewiseString(key)], !value.isEmpty else { return nil }
        guard let text = String(validating: value, as: UTF8.self) else {
            throw Problem(.invalidArgument, "\(key) in Upload-Metadata is not valid UTF-8.")
        }
        return text
    }

    /// The object's properties: `contentType`, `cacheControl` (digits alone are seconds of `max-age`), and `metadata`, a
    /// JSON object whose values become strings.
    /// - Throws: ``Problem`` with `invalid-argument` for a value that a response could not repeat.
    func attributes(_ name: ObjectName) throws(Problem) -> ObjectAttributes {
        var attributes = ObjectAttributes()
        attributes.contentType = try text("contentType") ?? MediaTypes.type(of: name)
        attributes.cacheControl = try text("cacheControl").map { value in
            value.utf8.allSatisfy(ASCII.isDigit) ? "max-age=\(value)" : value
        }
        try ObjectAttributes.checkField(attributes.contentType ?? "", "contentType")
        try ObjectAttributes.checkField(attributes.cacheControl ?? "", "cacheControl")
        if let json = try text("metadata") {
            attributes.customMetadata = try UploadMetadata.pairs(json)
        }
        return attributes
    }

    private static func pairs(_ json: String) throws(Problem) -> [BytewiseString: String] {
        guard case .object(let members) = try? JSONReader.parse(Array(json.utf8)) else {
            throw Problem(.invalidArgument, "metadata in Upload-Metadata is a JSON object.")
        }
        var pairs: [BytewiseString: String] = [:]
        for member in members {
            let text = member.value.text ?? UploadMetadata.text(member.value)
            try ObjectAttributes.checkPair(member.key, text)
            pairs[BytewiseString(member.key)] = text
        }
        try ObjectAttributes.checkSize(pairs)
        return pairs
    }

    private static func text(_ value: JSONValue) -> String {
        var json = JSONWriter(reserving: 64)
        json.value(value)
        return String(decoding: json.bytes, as: UTF8.self)
    }
}
