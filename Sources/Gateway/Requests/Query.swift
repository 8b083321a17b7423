import Wire

/// The parameters of a list's query, decoded. Unknown parameters are ignored.
struct Query: Equatable {
    var prefix: String?
    var isDelimited: Bool?
    var maxResults: Int?
    var pageToken: String?
    var isFull: Bool?

    init() {}

    /// - Throws: ``Problem`` with `invalid-argument` for an invalid value of a known parameter.
    init(_ parameters: QueryParameters) throws(Problem) {
        for parameter in parameters.all { try take(parameter.name, parameter.value) }
    }

    private mutating func take(_ name: String, _ encoded: ArraySlice<UInt8>) throws(Problem) {
        switch name {
        case "prefix":
            try once(prefix == nil, name)
            prefix = try Query.prefix(try QueryParameters.decoded(encoded, of: name))
        case "delimiter":
            try once(isDelimited == nil, name)
            switch try QueryParameters.decoded(encoded, of: name) {
            case "": isDelimited = false
            case "/": isDelimited = true
            default: throw Problem(.invalidArgument, "delimiter is '/' or empty.")
            }
        case "maxResults":
            try once(maxResults == nil, name)
            let digits = Array(try QueryParameters.decoded(encoded, of: name).utf8)
            guard let number = Decimal.saturating(digits.span), (1...1000).contains(number)
            else { throw Problem(.invalidArgument, "maxResults is a number from 1 to 1000.") }
            maxResults = Int(number)
        case "pageToken":
            try once(pageToken == nil, name)
            pageToken = try QueryParameters.decoded(encoded, of: name)
        case "view":
            try once(isFull == nil, name)
            switch try QueryParameters.decoded(encoded, of: name) {
            case "names": isFull = false
            case "full": isFull = true
            default: throw Problem(.invalidArgument, "view is 'names' or 'full'.")
            }
        default: break
        }
    }

    private func once(_ isFirst: Bool, _ name: String) throws(Problem) {
        if !isFirst { throw Problem(.invalidArgument, "\(name) is given twice.") }
    }

    /// Checks the prefix of a list: at most 1,024 bytes without NUL, CR and LF.
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
