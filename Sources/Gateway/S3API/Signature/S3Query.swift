import Wire

/// The parameters of a request's query, in canonical form, and the credential among them.
struct S3Query {
    /// The parameters of a credential. Their order is that of ``names``.
    enum Credential: Int, CaseIterable {
        case algorithm, credential, date, expires, securityToken, signature, signedHeaders
    }
    private static let names: [(exact: StaticString, lower: StaticString)] = [
        ("X-Amz-Algorithm", "x-amz-algorithm"), ("X-Amz-Credential", "x-amz-credential"),
        ("X-Amz-Date", "x-amz-date"), ("X-Amz-Expires", "x-amz-expires"),
        ("X-Amz-Security-Token", "x-amz-security-token"), ("X-Amz-Signature", "x-amz-signature"),
        ("X-Amz-SignedHeaders", "x-amz-signedheaders"),
    ]
    private static let credentials = Credential.allCases
    private struct Parameter {
        /// Ranges of ``text``.
        var name: Range<Int>
        var value: Range<Int>
        /// The parameter of a credential that it is.
        var credential: Credential?
    }

    /// Names and values, decoded and encoded again.
    private var text: [UInt8] = []
    /// Ordered by name and value.
    private var parameters: [Parameter] = []
    /// Whether the query has a parameter of a credential, in any case of its letters.
    private(set) var isPresigned = false
    /// Whether a parameter of a credential occurs twice, or in another case.
    private(set) var isAmbiguous = false
    /// Whether the query has a credential of Signature Version 2.
    private(set) var isVersion2 = false
    /// Whether parameters act as fields.
    private var hasFields = false
    /// The parameters that are no credentials, as received. Rules and logs get no others.
    private(set) var others = QueryParameters(nil)

    /// - Parameter query: Percent-encoded, as received; nil if there is none.
    init(_ query: ArraySlice<UInt8>?) {
        guard let bytes = query, !bytes.isEmpty else { return }
        text.reserveCapacity(bytes.count + bytes.count / 4)
        parameters.reserveCapacity(16)
        QueryParameters.split(bytes) { name, value in
            if !add(name: name.span, value: value.span) { others.append(name: name, value: value) }
        }
        // Equal parameters are the same, so their order does not matter.
        let text = text
        parameters.sort { S3Query.order($0, $1, in: text.span) < 0 }
    }

    /// - Returns: Whether it is a credential.
    private mutating func add(name: Span<UInt8>, value: Span<UInt8>) -> Bool {
        let start = text.count
        text.append(canonical: name, slash: false, plus: true)
        let middle = text.count
        text.append(canonical: value, slash: false, plus: true)
        var parameter = Parameter(name: start..<middle, value: middle..<text.count)
        var isCredential = true
        switch S3Query.kind(text.span.extracting(start..<middle)) {
        case .plain: isCredential = false
        case .field: (isCredential, hasFields) = (false, true)
        case .version2(let isExact): isVersion2 = isVersion2 || isExact
        case .credential(let found, let isExact):
            isPresigned = true
            if !isExact || index(of: found) != nil { isAmbiguous = true }
            parameter.credential = found
        }
        parameters.append(parameter)
        return isCredential
    }

    private enum Kind {
        case plain, field
        case version2(isExact: Bool)
        case credential(Credential, isExact: Bool)
    }

    private static func kind(_ name: Span<UInt8>) -> Kind {
        if ASCII.hasPrefix(name, "X-Amz-") {
            // No two have the same length and the same last letter.
            let found: Credential? =
                switch name.count {
                case 10: .date
                case 13: .expires
                case 15: name[14] == UInt8(ascii: "m") ? .algorithm : .signature
                case 16: .credential
                case 19: .signedHeaders
                case 20: .securityToken
                default: nil
                }
            if let found, name.equals(names[found.rawValue].exact) { return .credential(found, isExact: true) }
        }
        if name.count > 6, ASCII.isEqual(name.extracting(0..<6), ignoringCase: "x-amz-") {
            for credential in credentials where ASCII.isEqual(name, ignoringCase: names[credential.rawValue].lower) {
                return .credential(credential, isExact: false)
            }
            return .field
        }
        if ASCII.isEqual(name, ignoringCase: "awsaccesskeyid") || ASCII.isEqual(name, ignoringCase: "signature") {
            return .version2(isExact: name.equals("AWSAccessKeyId") || name.equals("Signature"))
        }
        return .plain
    }

    private func index(of wanted: Credential) -> Int? { parameters.firstIndex { $0.credential == wanted } }

    /// The decoded value of a parameter of a credential; nil if it is absent.
    func value(_ wanted: Credential) -> [UInt8]? {
        index(of: wanted).map { decoded(parameters[$0].value) }
    }

    private func decoded(_ range: Range<Int>) -> [UInt8] {
        if ASCII.firstIndex(of: "%", in: text.span.extracting(range), from: 0) == nil { return Array(text[range]) }
        // The text is encoded here, so it is well-formed.
        return Array((try? PercentEncoding.decode(text[range])) ?? [])
    }

    /// The decoded value of the first parameter whose name, without regard to case, is `name`.
    func value(named lower: StaticString) -> [UInt8]? {
        guard hasFields else { return nil }
        let found = parameters.first { ASCII.isEqual(text.span.extracting($0.name), ignoringCase: lower) }
        return found.map { decoded($0.value) }
    }

    /// ``S3Authentication/hoisted``.
    var hoisted: [(name: String, value: String)] {
        guard hasFields else { return [] }
        return parameters.compactMap { parameter in
            guard parameter.credential == nil, parameter.name.count > 6,
                case let name = decoded(parameter.name).map(ASCII.lowercased), name.starts(with: "x-amz-".utf8),
                !name.starts(with: "x-amz-checksum-".utf8), !name.elementsEqual("x-amz-sdk-checksum-algorithm".utf8),
                !name.elementsEqual("x-amz-content-sha256".utf8)
            else { return nil }
            return (String(decoding: name, as: UTF8.self), String(decoding: decoded(parameter.value), as: UTF8.self))
        }
    }

    /// Appends the canonical query: all parameters but the signature, ordered by name and value.
    /// - Parameter isRedacted: Whether the security token's value is replaced.
    func append(to output: inout [UInt8], isRedacted: Bool = false) {
        var isFirst = true
        for parameter in parameters where parameter.credential != .signature {
            if !isFirst { output.append(UInt8(ascii: "&")) }
            isFirst = false
            output += text[parameter.name]
            output.append(UInt8(ascii: "="))
            if isRedacted, parameter.credential == .securityToken {
                output.append("REDACTED")
            } else {
                output += text[parameter.value]
            }
        }
    }

    /// The order of names and values as bytes: negative, zero or positive.
    private static func order(_ left: Parameter, _ right: Parameter, in text: Span<UInt8>) -> Int {
        let names = order(text.extracting(left.name), text.extracting(right.name))
        return names != 0 ? names : order(text.extracting(left.value), text.extracting(right.value))
    }

    private static func order(_ left: Span<UInt8>, _ right: Span<UInt8>) -> Int {
        for offset in 0..<min(left.count, right.count) where left[offset] != right[offset] {
            return Int(left[offset]) - Int(right[offset])
        }
        return left.count - right.count
    }
}
