import Wire

/// Where a request's target leads: `/b/BUCKET/o…`.
struct Route: Equatable {
    /// What follows `/b/BUCKET/o`.
    enum Path: Equatable {
        /// Nothing: the bucket as a collection.
        case bucket
        /// `/` and what is left, percent-encoded.
        case named(ArraySlice<UInt8>)
    }
    /// Decoded; not yet known to exist.
    var bucket: String
    var path: Path
    /// What follows the first `?`, encoded; nil without one.
    var query: ArraySlice<UInt8>?

    /// - Throws: ``Problem`` with `not-found` for a path that is no route, `invalid-name` for a bucket's broken encoding.
    init(target: String) throws(Problem) {
        let bytes = Array(target.utf8)
        let path: ArraySlice<UInt8>
        if let mark = bytes.firstIndex(of: UInt8(ascii: "?")) {
            path = bytes[..<mark]
            query = bytes[(mark + 1)...]
        } else {
            path = bytes[...]
        }
        guard path.count > 3, path[0] == UInt8(ascii: "/"), path[1] == UInt8(ascii: "b"),
            path[2] == UInt8(ascii: "/"),
            let end = path[3...].firstIndex(of: UInt8(ascii: "/")), end > 3
        else { throw Problem.notFound }
        let rest = path[(end + 1)...]
        guard rest.first == UInt8(ascii: "o") else { throw Problem.notFound }
        if rest.count == 1 {
            self.path = .bucket
        } else if rest[end + 2] == UInt8(ascii: "/") {
            self.path = .named(rest[(end + 3)...])
        } else {
            throw Problem.notFound
        }
        do throws(PercentEncoding.Malformed) {
            bucket = String(decoding: try PercentEncoding.decode(path[3..<end]), as: UTF8.self)
        } catch {
            let place = "at byte \(error.offset + 3) of the path"
            throw Problem(.invalidName, "The percent-encoding is malformed \(place).")
        }
    }

    /// Whether the path is a folder's: nothing after the slash, or a last slash, encoded or not.
    var isFolder: Bool {
        guard case .named(let path) = self.path else { return false }
        if path.isEmpty || path.last == UInt8(ascii: "/") { return true }
        let last = path.endIndex
        return path.count >= 3 && path[last - 3] == UInt8(ascii: "%")
            && path[last - 2] == UInt8(ascii: "2") && path[last - 1] | 0x20 == UInt8(ascii: "f")
    }

    /// Whether the query has `metadata`, with any value or none.
    var asksForMetadata: Bool {
        Query.parameters(query).contains { $0.name == "metadata" }
    }

    /// Whether the query has `sign`.
    var asksForLink: Bool { Query.parameters(query).contains { $0.name == "sign" } }

    /// The methods that are possible here, as `Allow` names them.
    var methods: String {
        if path == .bucket || isFolder { return "GET, HEAD, OPTIONS" }
        if asksForLink { return "POST, OPTIONS" }
        return asksForMetadata
            ? "GET, HEAD, PATCH, OPTIONS" : "GET, HEAD, PUT, PATCH, DELETE, OPTIONS"
    }
}

/// The parameters of a list's query, decoded. A parameter that nobody knows is ignored.
///
/// A `+` is a space here, as every client's library writes it; a plus sign comes as `%2B`.
struct Query: Equatable {
    var prefix: String?
    var isDelimited: Bool?
    var maxResults: Int?
    var pageToken: String?

    init() {}

    /// - Throws: ``Problem`` with `invalid-argument` for a value that a known parameter can't have.
    init(_ text: ArraySlice<UInt8>?) throws(Problem) {
        for (name, value) in Query.parameters(text) { try take(name, value) }
    }

    /// The parameters in order, their names decoded and their values not; without those whose name can't be decoded.
    static func parameters(_ text: ArraySlice<UInt8>?) -> [(name: String, value: ArraySlice<UInt8>)]
    {
        guard let text else { return [] }
        return text.split(separator: UInt8(ascii: "&")).compactMap { part in
            let equals = part.firstIndex(of: UInt8(ascii: "=")) ?? part.endIndex
            guard let name = try? Query.decoded(part[..<equals], of: "") else { return nil }
            return (name, part[equals...].dropFirst())
        }
    }

    private mutating func take(_ name: String, _ encoded: ArraySlice<UInt8>) throws(Problem) {
        switch name {
        case "prefix":
            try once(prefix == nil, name)
            prefix = try Query.prefix(try Query.decoded(encoded, of: name))
        case "delimiter":
            try once(isDelimited == nil, name)
            switch try Query.decoded(encoded, of: name) {
            case "": isDelimited = false
            case "/": isDelimited = true
            default: throw Problem(.invalidArgument, "delimiter is '/' or empty.")
            }
        case "maxResults":
            try once(maxResults == nil, name)
            let digits = Array(try Query.decoded(encoded, of: name).utf8)
            guard let number = ASCII.saturatingDecimal(digits[...]), (1...1000).contains(number)
            else { throw Problem(.invalidArgument, "maxResults is a number from 1 to 1000.") }
            maxResults = Int(number)
        case "pageToken":
            try once(pageToken == nil, name)
            pageToken = try Query.decoded(encoded, of: name)
        default: break
        }
    }

    /// Every parameter, for the rules; of two with one name the last counts, and what can't be read is left out.
    static func parameters(_ text: ArraySlice<UInt8>) -> [String: String] {
        var all: [String: String] = [:]
        for part in text.split(separator: UInt8(ascii: "&")) {
            let equals = part.firstIndex(of: UInt8(ascii: "=")) ?? part.endIndex
            guard let name = try? decoded(part[..<equals], of: ""),
                let value = try? decoded(part[equals...].dropFirst(), of: name)
            else { continue }
            all[name] = value
        }
        return all
    }

    private func once(_ isFirst: Bool, _ name: String) throws(Problem) {
        if !isFirst { throw Problem(.invalidArgument, "\(name) is given twice.") }
    }

    /// A value; a `+` is a space.
    static func decoded(_ text: ArraySlice<UInt8>, of name: String) throws(Problem)
        -> String
    {
        var spaced = text
        for index in spaced.indices where spaced[index] == UInt8(ascii: "+") {
            spaced[index] = UInt8(ascii: " ")
        }
        guard let bytes = try? PercentEncoding.decode(spaced) else {
            throw Problem(.invalidArgument, "The percent-encoding of \(name) is malformed.")
        }
        guard let value = String(validating: bytes, as: UTF8.self) else {
            throw Problem(.invalidArgument, "\(name) is not valid UTF-8.")
        }
        return value
    }

    /// Checks what a list may begin with: at most 1,024 bytes without NUL, CR and LF.
    static func prefix(_ value: String) throws(Problem) -> String {
        if value.utf8.count > ObjectName.maximumBytes {
            throw Problem(.invalidArgument, "prefix is longer than 1024 bytes.")
        }
        if value.utf8.contains(where: { $0 == 0 || $0 == 0x0a || $0 == 0x0d }) {
            throw Problem(.invalidArgument, "prefix has a NUL, CR or LF.")
        }
        return value
    }
}
