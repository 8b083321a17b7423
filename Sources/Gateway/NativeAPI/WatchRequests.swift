import Wire

extension Route {
    /// Whether the query asks for the changes of a bucket.
    var asksForChanges: Bool { path == .bucket && query.contains("watch") }
}

extension WatchRequest {
    /// Parses `watch`, the number up to which the client has seen everything, `prefix` and `wait`.
    /// - Throws: ``Problem`` with `invalid-argument`.
    convenience init(_ parameters: QueryParameters) throws(Problem) {
        let query = try Query(parameters)
        if query.isDelimited == true || query.maxResults != nil || query.pageToken != nil || query.isFull != nil {
            throw Problem(
                .invalidArgument, "watch goes with prefix and wait, not with delimiter, maxResults, pageToken or view.")
        }
        var sequence: Int64?
        var wait: UInt64?
        for parameter in parameters.all {
            switch parameter.name {
            case "watch":
                let digits = Array(try QueryParameters.decoded(parameter.value, of: "watch").utf8)
                guard sequence == nil, let value = Decimal.parse(digits.span, maximum: UInt64(Int64.max)) else {
                    throw Problem(
                        .invalidArgument,
                        "watch is the X-Object-Sequence of a list or the sequence of a watch, given once.")
                }
                sequence = Int64(value)
            case "wait":
                let text = try QueryParameters.decoded(parameter.value, of: "wait")
                let digits = Array(text.utf8.last == UInt8(ascii: "s") ? text.utf8.dropLast() : text.utf8[...])
                guard wait == nil, let value = Decimal.parse(digits.span, maximum: WatchRequest.longestWait) else {
                    throw Problem(
                        .invalidArgument,
                        "wait is from 0s to \(WatchRequest.longestWait)s, in whole seconds, given once.")
                }
                wait = value
            default: break
            }
        }
        self.init(
            after: sequence ?? 0, prefix: query.prefix ?? "",
            wait: (wait ?? WatchRequest.defaultWait) * 1_000_000_000)
    }
}
