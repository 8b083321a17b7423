import Wire

/// The scope of a signature, `ID/YYYYMMDD/REGION/SERVICE/aws4_request`, as a request states it.
struct S3Credential {
    /// The whole text.
    let text: [UInt8]
    /// The end of the id.
    private let idEnd: Int
    private let dayEnd: Int
    private let regionEnd: Int
    private let serviceEnd: Int

    /// The maximum length of the text in bytes. Keys are kept by it.
    private static let maximumBytes = 512

    /// Parses a credential; nil if it does not have five parts, or the day is not 8 digits, or the last part another, or it
    /// is too long.
    init?(_ text: [UInt8]) {
        guard text.count <= S3Credential.maximumBytes else { return nil }
        func slash(before end: Int?) -> Int? { end.flatMap { text[..<$0].lastIndex(of: UInt8(ascii: "/")) } }
        guard let service = slash(before: text.count), let region = slash(before: service),
            let day = slash(before: region), let id = slash(before: day), id > 0, day - id == 9, region > day + 1,
            service > region + 1, text.span.extracting((service + 1)...).equals("aws4_request"),
            text[(id + 1)..<day].allSatisfy(ASCII.isDigit)
        else { return nil }
        self.text = text
        (idEnd, dayEnd, regionEnd, serviceEnd) = (id, day, region, service)
    }

    var id: ArraySlice<UInt8> { text[..<idEnd] }
    var day: ArraySlice<UInt8> { text[(idEnd + 1)..<dayEnd] }
    var region: ArraySlice<UInt8> { text[(dayEnd + 1)..<regionEnd] }
    var service: ArraySlice<UInt8> { text[(regionEnd + 1)..<serviceEnd] }
    /// The text without the id.
    var scope: ArraySlice<UInt8> { text[(idEnd + 1)...] }

    /// The id as text, for responses and the log: at most 128 bytes.
    var shownID: String { String(decoding: id.prefix(128), as: UTF8.self) }
}

/// The names of the fields that a signature covers, in the order of the request.
struct SignedNames {
    /// The maximum length of the list in bytes.
    static let maximumBytes = 8 * 1024
    /// The maximum number of names. A request has no more fields.
    static let maximumNames = 256
    /// The names, separated by semicolons.
    let text: [UInt8]
    let names: [Range<Int>]

    /// Parses the list; nil if it is empty or too long, a name is not a token, or occurs twice: the text that the
    /// signature covers would grow with each.
    init?(_ text: [UInt8]) {
        guard !text.isEmpty, text.count <= SignedNames.maximumBytes else { return nil }
        var names: [Range<Int>] = []
        names.reserveCapacity(16)
        var start = 0
        for index in 0...text.count {
            guard index == text.count || text[index] == UInt8(ascii: ";") else {
                guard ASCII.isToken(text[index]) else { return nil }
                continue
            }
            guard index > start, names.count < SignedNames.maximumNames,
                !names.contains(where: { text[$0].elementsEqual(text[start..<index]) })
            else { return nil }
            names.append(start..<index)
            start = index + 1
        }
        self.text = text
        self.names = names
    }

    func contains(_ name: UnsafeBufferPointer<UInt8>) -> Bool {
        text.withUnsafeBufferPointer { text in
            names.contains { $0.count == name.count && text[$0].elementsEqual(name) }
        }
    }

    /// The names of fields that must be signed and are not, joined; nil if there are none. These are the host and all
    /// fields `x-amz-…` but the payload's hash, which is signed in any case.
    func missing(_ fields: HeaderFields) -> String? {
        var missing: [String] = []
        let hasHost = "host".utf8.span.withUnsafeBufferPointer { contains($0) }
        if !hasHost { missing.append("host") }
        fields.read { reader in
            while let (name, _) = reader.next() {
                guard ShownFields.isOfAmazon(name), !name.matches("x-amz-content-sha256"), !contains(name) else {
                    continue
                }
                missing.append(String(decoding: name, as: UTF8.self))
            }
        }
        return missing.isEmpty ? nil : missing.joined(separator: ", ")
    }
}

/// A signature of a request, as the request states it. A class, because it is large and passed around.
final class SignatureClaim: Sendable {
    let credential: S3Credential
    let signedNames: SignedNames
    /// As received; it may be of any length.
    let signature: [UInt8]
    /// The time as signed, in the form of ``S3Time/stamp(_:)``.
    let stamp: [UInt8]
    /// The last line of the canonical request.
    let payloadHash: [UInt8]
    /// The session token; nil for an access key of the key file.
    let token: [UInt8]?

    init(
        _ credential: S3Credential, _ signedNames: SignedNames, signature: [UInt8], stamp: [UInt8],
        payloadHash: [UInt8], token: [UInt8]?
    ) {
        self.credential = credential
        self.signedNames = signedNames
        self.signature = signature
        self.stamp = stamp
        self.payloadHash = payloadHash
        self.token = token
    }
}

/// The components of `Authorization` with `AWS4-HMAC-SHA256`, in any order.
struct AuthorizationField {
    static let algorithm: StaticString = "AWS4-HMAC-SHA256"
    let credential: S3Credential
    let signedNames: SignedNames
    let signature: [UInt8]

    /// Parses the part after the algorithm.
    /// - Throws: ``Problem``: `AuthorizationHeaderMalformed`.
    init(_ text: Span<UInt8>) throws(Problem) {
        var values: (credential: [UInt8]?, names: [UInt8]?, signature: [UInt8]?)
        var start = 0
        while start <= text.count {
            let end = ASCII.firstIndex(of: ",", in: text, from: start) ?? text.count
            var (first, last) = (start, end)
            while first < last, ASCII.isSpace(text[first]) { first += 1 }
            while last > first, ASCII.isSpace(text[last - 1]) { last -= 1 }
            let part = text.extracting(first..<last)
            start = end + 1
            if ASCII.hasPrefix(part, "Credential="), values.credential == nil {
                values.credential = part.extracting(11...).array
            } else if ASCII.hasPrefix(part, "SignedHeaders="), values.names == nil {
                values.names = part.extracting(14...).array
            } else if ASCII.hasPrefix(part, "Signature="), values.signature == nil {
                values.signature = part.extracting(10...).array
            } else {
                throw .malformedAuthorization(
                    "it has Credential, SignedHeaders and Signature once each, separated by commas.")
            }
        }
        guard let credential = values.credential, let names = values.names, let signature = values.signature else {
            throw .malformedAuthorization("it requires Credential, SignedHeaders and Signature.")
        }
        guard let credential = S3Credential(credential) else {
            throw .malformedAuthorization(
                "the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\".")
        }
        guard let names = SignedNames(names) else {
            throw .malformedAuthorization("SignedHeaders is not a list of field names.")
        }
        guard !signature.isEmpty else { throw .malformedAuthorization("the Signature is empty.") }
        self.credential = credential
        signedNames = names
        self.signature = signature
    }
}
