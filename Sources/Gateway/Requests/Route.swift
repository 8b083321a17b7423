import Wire

/// A request's target, split at its first `?`.
struct RequestTarget {
    /// The whole target.
    let bytes: [UInt8]
    private let pathEnd: Int

    init(_ target: String) {
        var target = target
        bytes = target.withUTF8 { Array($0) }
        pathEnd = bytes.firstIndex(of: UInt8(ascii: "?")) ?? bytes.count
    }

    /// The path: the part before the `?`, percent-encoded.
    var path: ArraySlice<UInt8> { bytes[..<pathEnd] }

    /// The query: the part after the `?`; nil if there is no `?`.
    var query: ArraySlice<UInt8>? { pathEnd < bytes.count ? bytes[(pathEnd + 1)...] : nil }

    /// Whether the path has this first segment and continues after it.
    func isBelow(_ segment: StaticString) -> Bool {
        let count = segment.utf8CodeUnitCount
        return pathEnd > count + 1 && bytes[count + 1] == UInt8(ascii: "/") && begins(with: segment)
    }

    /// Whether the path has this first segment.
    func isAtOrBelow(_ segment: StaticString) -> Bool {
        isBelow(segment)
            || (pathEnd == segment.utf8CodeUnitCount + 1 && begins(with: segment))
    }

    /// - Precondition: The target is longer than the segment.
    private func begins(with segment: StaticString) -> Bool {
        for index in 0..<segment.utf8CodeUnitCount where bytes[index + 1] != segment.utf8Start[index] { return false }
        return bytes[0] == UInt8(ascii: "/")
    }
}

/// The resource that a request's target names, as parsed by its dialect. A class, because it is large and passed around.
final class Route: Sendable {
    /// The kind of resource in the bucket.
    enum Path: Equatable {
        /// The bucket as a collection.
        case bucket
        /// An object or a folder, percent-encoded.
        case named(ArraySlice<UInt8>)
        /// An upload session, by its token.
        case session(ArraySlice<UInt8>)
        /// No single bucket.
        case service
    }
    /// The bucket's name, decoded; empty if the target does not have it. The bucket may not exist.
    let bucket: String
    let path: Path
    let query: QueryParameters
    /// Whether the query claims a grant. If so, the caller is not identified.
    let claimsGrant: Bool
    /// Whether the query offers a grant that counts beside the caller's own rights.
    let offersGrant: Bool
    /// Whether the query has a credential.
    let hasCredential: Bool

    init(
        bucket: String, path: Path, query: QueryParameters, claimsGrant: Bool = false,
        offersGrant: Bool = false, hasCredential: Bool = false
    ) {
        self.bucket = bucket
        self.path = path
        self.query = query
        self.claimsGrant = claimsGrant
        self.offersGrant = offersGrant
        self.hasCredential = hasCredential
    }
}

/// The parameters of a query, in order.
struct QueryParameters: Equatable {
    struct Parameter: Equatable {
        /// Decoded.
        var name: String
        /// Percent-encoded, as received.
        var value: ArraySlice<UInt8>
    }
    private(set) var all: [Parameter] = []
    /// Whether a parameter was left out because its name can't be decoded.
    private(set) var isIncomplete = false

    init(_ all: [Parameter]) { self.all = all }

    init(_ text: ArraySlice<UInt8>?) {
        guard let text else { return }
        QueryParameters.split(text) { append(name: $0, value: $1) }
    }

    /// Appends a parameter, percent-encoded.
    mutating func append(name: ArraySlice<UInt8>, value: ArraySlice<UInt8>) {
        if let name = try? QueryParameters.decoded(name, of: "") {
            all.append(Parameter(name: name, value: value))
        } else {
            isIncomplete = true
        }
    }

    /// Calls `body` with each parameter's name and value, percent-encoded. A value is empty without `=`.
    static func split(_ text: ArraySlice<UInt8>, _ body: (ArraySlice<UInt8>, ArraySlice<UInt8>) -> Void) {
        var rest = text
        while !rest.isEmpty {
            let end = ASCII.firstIndex(of: "&", in: rest.span, from: 0) ?? rest.count
            if end > 0 {
                let part = rest.prefix(end)
                let name = ASCII.firstIndex(of: "=", in: part.span, from: 0) ?? end
                body(part.prefix(name), part.dropFirst(name + 1))
            }
            rest = rest.dropFirst(end + 1)
        }
    }

    /// Whether there is a parameter of this name, with or without a value.
    func contains(_ name: String) -> Bool { all.contains { $0.name == name } }

    /// Every parameter, for the rules. The last of equal names counts; those that can't be decoded are left out.
    var values: [BytewiseString: String] {
        var values: [BytewiseString: String] = [:]
        for parameter in all {
            guard let value = try? QueryParameters.decoded(parameter.value, of: parameter.name) else { continue }
            values[parameter.name] = value
        }
        return values
    }

    /// Decodes a name or value. A `+` is a space here, as in HTML forms; a plus sign must be sent as `%2B`.
    static func decoded(_ text: ArraySlice<UInt8>, of name: String) throws(Problem) -> String {
        var spaced = text
        if ASCII.firstIndex(of: "+", in: text.span, from: 0) != nil {
            for index in spaced.indices where spaced[index] == UInt8(ascii: "+") { spaced[index] = UInt8(ascii: " ") }
        }
        guard let bytes = try? PercentEncoding.decode(spaced) else {
            throw Problem(.invalidArgument, "The percent-encoding of \(name) is malformed.")
        }
        guard let value = String(validating: bytes, as: UTF8.self) else {
            throw Problem(.invalidArgument, "\(name) is not valid UTF-8.")
        }
        return value
    }
}
