import Buckets
import HTTPServer
import Wire

extension RequestContext {
    /// The conditions in the request's header fields.
    var s3Conditions: Conditions { Conditions(s3: self, prefix: "") }
}

extension Conditions {
    /// - Parameter prefix: Of the fields' names: `x-amz-copy-source-` for those of a copy's source.
    convenience init(s3 context: RequestContext, prefix: StaticString) {
        let fields = context.s3.fields
        func text(_ name: StaticString, _ source: StaticString) -> String? {
            fields.list(prefix.utf8CodeUnitCount == 0 ? name : source)
        }
        var conditions = Preconditions()
        conditions.comparesS3Tags = true
        conditions.ifMatch = text("if-match", "x-amz-copy-source-if-match").map(Conditions.tags)
        conditions.ifNoneMatch = text("if-none-match", "x-amz-copy-source-if-none-match").map(Conditions.tags)
        let now = context.now
        conditions.ifModifiedSince = text("if-modified-since", "x-amz-copy-source-if-modified-since").flatMap {
            HTTPDate.parse($0.utf8.span, now: now)
        }
        conditions.ifUnmodifiedSince = text("if-unmodified-since", "x-amz-copy-source-if-unmodified-since").flatMap {
            HTTPDate.parse($0.utf8.span, now: now)
        }
        self.init(.success(conditions))
    }

    /// These conditions and those on the size and the last change of an object to delete.
    /// - Throws: ``Problem`` with `InvalidArgument`.
    func adding(size: String?, modified: String?, now: Int64) throws(Problem) -> Conditions {
        guard size != nil || modified != nil else { return self }
        var conditions = try get()
        conditions.comparesS3Tags = true
        if let size {
            guard let bytes = Decimal.parse(Array(size.utf8)[...]) else {
                throw S3Error.invalidArgument("The size is no number of bytes.", "x-amz-if-match-size", size)
            }
            conditions.size = bytes
        }
        if let modified {
            let time =
                HTTPDate.parse(modified.utf8.span, now: now) ?? HTTPDate.parse(rfc3339: modified).map { $0 / 1000 }
            guard let time else {
                throw S3Error.invalidArgument(
                    "The time is no date.", "x-amz-if-match-last-modified-time", modified)
            }
            conditions.modified = time
        }
        return Conditions(.success(conditions))
    }

    /// Parses tags, which S3 accepts without quotes.
    private static func tags(_ text: String) -> Preconditions.Tags {
        let bytes = ASCII.trimmed(Array(text.utf8)[...])
        if bytes.elementsEqual("*".utf8) { return .any }
        if let tags = EntityTag.list(bytes) { return .tags(tags.map(\.value)) }
        let words = bytes.split(separator: UInt8(ascii: ",")).map { ASCII.trimmed($0) }
        return .tags(words.map { String(decoding: $0.filter { $0 != UInt8(ascii: "\"") }, as: UTF8.self) })
    }
}

extension Preconditions {
    /// These and other conditions on the same object.
    func joined(with other: Preconditions) -> Preconditions {
        func tags(_ tags: Tags?) -> [String]? {
            if case .tags(let tags) = tags { tags } else { nil }
        }
        var all = self
        switch (tags(ifMatch), tags(other.ifMatch)) {
        case (let one?, let two?): all.ifMatch = .tags(one.filter(two.contains))
        case (nil, _): all.ifMatch = other.ifMatch ?? ifMatch
        case (_, nil): break
        }
        if let one = tags(ifNoneMatch), let two = tags(other.ifNoneMatch) {
            all.ifNoneMatch = .tags(one + two)
        } else if ifNoneMatch != .any, other.ifNoneMatch != nil {
            all.ifNoneMatch = other.ifNoneMatch
        }
        all.ifModifiedSince = [ifModifiedSince, other.ifModifiedSince].compactMap(\.self).max()
        all.ifUnmodifiedSince = [ifUnmodifiedSince, other.ifUnmodifiedSince].compactMap(\.self).min()
        return all
    }
}

/// The fields of a download that the query replaces: `response-content-type` and its like.
enum S3Overrides {
    private static let names: [(parameter: String, field: StaticString)] = [
        ("response-content-type", "content-type"), ("response-content-language", "content-language"),
        ("response-expires", "expires"), ("response-cache-control", "cache-control"),
        ("response-content-disposition", "content-disposition"), ("response-content-encoding", "content-encoding"),
    ]

    /// - Parameter isSigned: Whether the request is signed. Anonymous callers may not choose the fields of a response.
    /// - Throws: ``Problem``: `InvalidRequest`, or `InvalidArgument` for a value that no field can have.
    static func fields(_ query: QueryParameters, isSigned: Bool) throws(Problem) -> [(
        name: StaticString, value: String
    )] {
        guard query.all.contains(where: { $0.name.hasPrefix("response-") }) else { return [] }
        var found: [(name: StaticString, value: String)] = []
        for (parameter, field) in names {
            guard let value = try query.single(parameter) else { continue }
            guard isSigned else {
                throw S3Error.invalidRequest(
                    "Request specific response headers cannot be used for anonymous GET requests.")
            }
            guard value.isFieldValue else {
                throw S3Error.invalidArgument("The value is no value of a header field.", parameter, value)
            }
            found.append((field, value))
        }
        return found
    }
}
