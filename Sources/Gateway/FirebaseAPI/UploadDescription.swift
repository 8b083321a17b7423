import Buckets
import Wire

/// The JSON description of an object at the beginning of an upload.
struct UploadDescription {
    /// The maximum size of the JSON in bytes.
    static let maximumBytes = 64 * 1024
    /// The maximum size of the download tokens in bytes, joined.
    private static let maximumTokenBytes = 2048

    private var given = ObjectAttributes()
    /// The expected digests of the body.
    private(set) var digests = ExpectedDigests()

    /// - Parameter type: The content type beside the JSON; nil or empty if it is not known.
    init(type: String?) {
        given.contentType = type.flatMap { $0.isEmpty ? nil : $0 } ?? MediaTypes.unknown
    }

    /// - Parameter text: JSON, or nothing. Unknown members are ignored.
    /// - Throws: ``Problem`` with `invalid-argument`.
    init(json text: [UInt8], type: String?) throws(Problem) {
        self.init(type: type)
        if text.isEmpty { return }
        for member in try JSONReader.members(of: text) { try take(member) }
    }

    private mutating func take(_ member: JSONMember) throws(Problem) {
        switch (member.key, member.value) {
        case (_, .null): break
        case ("metadata", let value): try takeCustom(value)
        case ("md5Hash", .string(let text)):
            guard let digest = Base64.decode(Array(text.utf8)[...]), digest.count == 16 else {
                throw Problem(.invalidArgument, "md5Hash is the base64 of 16 bytes.")
            }
            digests.md5 = digest
        case ("contentType", .string(let text)): if !text.isEmpty { given.contentType = text }
        case ("cacheControl", .string(let text)): given.cacheControl = text
        case ("contentLanguage", .string(let text)): given.contentLanguage = text
        case ("contentDisposition", .string(let text)):
            given.contentDisposition = ["", FirebaseJSON.usualDisposition].contains(text) ? nil : text
        case ("contentEncoding", .string(let text)):
            given.contentEncoding = ["", FirebaseJSON.usualEncoding].contains(text) ? nil : text
        case ("md5Hash", _), ("contentType", _), ("cacheControl", _), ("contentLanguage", _),
            ("contentDisposition", _), ("contentEncoding", _):
            throw Problem(.invalidArgument, "\(member.key) is a string.")
        default: break
        }
    }

    private mutating func takeCustom(_ value: JSONValue) throws(Problem) {
        guard case .object(let pairs) = value else {
            throw Problem(.invalidArgument, "metadata is an object of strings.")
        }
        for pair in pairs {
            let text = FirebaseJSON.text(of: pair.value)
            if FirebaseJSON.isTokens(pair.key) {
                try takeTokens(text)
            } else {
                try ObjectAttributes.checkPair(pair.key, text)
                given.customMetadata[BytewiseString(pair.key)] = text
            }
        }
        try ObjectAttributes.checkSize(given.customMetadata)
    }

    private mutating func takeTokens(_ text: String) throws(Problem) {
        let tokens = text.split(separator: ",").map(String.init)
        guard tokens.count <= TokenChange.maximumTokens, text.utf8.count <= UploadDescription.maximumTokenBytes,
            text.utf8.allSatisfy(ASCII.isVisible)
        else {
            throw Problem(
                .invalidArgument,
                "The download tokens are at most \(TokenChange.maximumTokens), of visible ASCII.")
        }
        given.system.downloadTokens = tokens
    }

    /// The object's properties. It has at least one download token.
    func attributes() throws(Problem) -> ObjectAttributes {
        var attributes = given
        for (name, value) in [
            ("contentType", given.contentType), ("cacheControl", given.cacheControl),
            ("contentDisposition", given.contentDisposition),
            ("contentEncoding", given.contentEncoding), ("contentLanguage", given.contentLanguage),
        ] {
            if let value { try ObjectAttributes.checkField(value, name) }
        }
        if attributes.system.downloadTokens.isEmpty {
            attributes.system.downloadTokens = [TokenChange.newToken()]
        }
        return attributes
    }
}
