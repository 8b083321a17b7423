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
    private var parameters: [Parameter] = []
    /// Whether the query has a parameter of a credential, in any case of its letters.
    private(set) var isPresigned = false
    /// Whether a parameter of a credential occurs twice, or in another case.
    private(set) var isAmbiguous = false
    /// Whether the query has a credential of Signature Version 2.
    private(set) var isVersion2 = false
    /// Whether parameters act as fields.
    private var hasFields = false

    /// - Parameter query: Percent-encoded, as received; nil if there is none.
    init(_ query: ArraySlice<UInt8>?) {
        guard let bytes = query, !bytes.isEmpty else { return }
        text.reserveCapacity(bytes.count + bytes.count / 4)
        parameters.reserveCapacity(16)
        let query = bytes.span
        var start = 0
        while start < query.count {
            var end = start
            var equals: Int?
            while end < query.count, query[end] != UInt8(ascii: "&") {
                if equals == nil, query[end] == UInt8(ascii: "=") { equals = end }
                end += 1
            }
            if end > start {
                add(
                    name: query.extracting(start..<(equals ?? end)),
                    value: query.extracting((equals.map { $0 + 1 } ?? end)..<end))
            }
            start = end + 1
        }
    }

    private mutating func add(name: Span<UInt8>, value: Span<UInt8>) {
        let start = text.count
        text.append(canonical: name, slash: false, plus: true)
        let middle = text.count
        text.append(canonical: value, slash: false, plus: true)
        var parameter = Parameter(name: start..<middle, value: middle..<text.count)
        switch S3Query.kind(text.span.extracting(start..<middle)) {
        case .plain: break
        case .version2: isVersion2 = true
        case .field: hasFields = true
        case .credential(let found, let isExact):
            isPresigned = true
            if !isExact || index(of: found) != nil { isAmbiguous = true }
            parameter.credential = found
        }
        parameters.append(parameter)
    }

    private enum Kind {
        case plain, version2, field
        case credential(Credential, isExact: Bool)
    }

    private static func kind(_ name: Span<UInt8>) -> Kind {
        if name.count > 6, ASCII.isEqual(name.extracting(0..<6), ignoringCase: "x-amz-") {
            for credential in credentials where ASCII.isEqual(name, ignoringCase: names[credential.rawValue].lower) {
                return .credential(credential, isExact: name.equals(names[credential.rawValue].exact))
            }
            return .field
        }
        return name.equals("AWSAccessKeyId") || name.equals("Signature") ? .version2 : .plain
    }

    private func index(of wanted: Credential) -> Int? { parameters.firstIndex { $0.credential == wanted } }

    /// The decoded value of a parameter of a credential; nil if it is absent.
    func value(_ wanted: Credential) -> [UInt8]? {
        index(of: wanted).map { decoded(parameters[$0].value) }
    }

    private func decoded(_ range: Range<Int>) -> [UInt8] {
        // The text is encoded here, so it is well-formed.
        Array((try? PercentEncoding.decode(text[range])) ?? [])
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
        var order = parameters.indices.filter { parameters[$0].credential != .signature }
        if order.count > 1 { order.sort { precedes(parameters[$0], parameters[$1]) } }
        for (position, index) in order.enumerated() {
            if position > 0 { output.append(UInt8(ascii: "&")) }
            let parameter = parameters[index]
            output += text[parameter.name]
            output.append(UInt8(ascii: "="))
            if isRedacted, parameter.credential == .securityToken {
                output.append("REDACTED")
            } else {
                output += text[parameter.value]
            }
        }
    }

    private func precedes(_ left: Parameter, _ right: Parameter) -> Bool {
        let names = compare(left.name, right.name)
        return (names != 0 ? names : compare(left.value, right.value)) < 0
    }

    /// The order of bytes: negative, zero or positive.
    private func compare(_ left: Range<Int>, _ right: Range<Int>) -> Int {
        for offset in 0..<min(left.count, right.count) {
            let (one, other) = (text[left.lowerBound + offset], text[right.lowerBound + offset])
            if one != other { return Int(one) - Int(other) }
        }
        return left.count - right.count
    }
}
