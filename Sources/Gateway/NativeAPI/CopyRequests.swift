import Buckets
import HTTPServer
import Wire

extension Route {
    /// Whether the query asks for a copy or a move.
    var asksForCopy: Bool { query.contains("copyFrom") || query.contains("moveFrom") }

    /// Whether the query asks for deletions of many objects.
    var asksForDeletions: Bool { path == .bucket && query.contains("delete") }
}

extension CopyRequest {
    /// Parses `copyFrom` or `moveFrom`, whose value is the name of the source, `sourceBucket` and `sourceGeneration`.
    /// - Throws: ``Problem`` with `invalid-argument`, `invalid-name` or `bucket-not-found`.
    convenience init(
        _ query: QueryParameters, in bucket: Bucket, among buckets: ServedBuckets, _ context: RequestContext
    ) throws(Problem) {
        var source: (name: String, isMoved: Bool)?
        var sourceBucket: Bucket?
        var generation: Int64?
        for parameter in query.all {
            switch parameter.name {
            case "copyFrom", "moveFrom":
                if source != nil { throw Problem(.invalidArgument, "copyFrom and moveFrom are given once.") }
                let text = try QueryParameters.decoded(parameter.value, of: parameter.name)
                source = (text, parameter.name == "moveFrom")
            case "sourceBucket":
                if sourceBucket != nil { throw Problem(.invalidArgument, "sourceBucket is given once.") }
                sourceBucket = buckets[try QueryParameters.decoded(parameter.value, of: parameter.name)]
                if sourceBucket == nil { throw Problem.noBucket }
            case "sourceGeneration":
                let digits = Array(try QueryParameters.decoded(parameter.value, of: parameter.name).utf8)
                guard generation == nil, let value = Decimal.saturating(digits.span), value <= Int64.max else {
                    throw Problem(.invalidArgument, "sourceGeneration is a decimal number, given once.")
                }
                generation = Int64(value)
            default: break
            }
        }
        guard let source else { throw Problem(.invalidArgument, "copyFrom or moveFrom names the source.") }
        let origin = sourceBucket ?? bucket
        self.init(
            try origin.objectName(decoded: source.name), in: origin, removesSource: source.isMoved,
            sourceGeneration: generation, context.conditions,
            PatchRequest(context))
    }
}

extension DeletionRequest {
    /// Deletions as JSON: `{"objects": ["NAME", {"name": "NAME", "generation": "N", "metageneration": "N"}]}`.
    static let native = DeletionRequest { (text, bucket) throws(Problem) in
        let members = try JSONReader.members(of: text)
        guard members.count == 1, members[0].key == "objects", let objects = members[0].value.elements else {
            throw Problem(.invalidArgument, "The body has one member, 'objects', which is an array.")
        }
        guard (1...maximumNames).contains(objects.count) else {
            throw Problem(.invalidArgument, "objects has 1 to \(maximumNames) elements.")
        }
        var entries: [Entry] = []
        for (index, object) in objects.enumerated() {
            entries.append(try entry(object, "objects[\(index)]", bucket))
        }
        return entries
    }

    private static func entry(_ value: JSONValue, _ place: String, _ bucket: Bucket) throws(Problem) -> Entry {
        var text = value.text
        var conditions = Preconditions()
        if case .object(let members) = value {
            for member in members {
                switch member.key {
                case "name": text = member.value.text
                case "generation": conditions.generation = try number(member, place)
                case "metageneration": conditions.metageneration = try number(member, place)
                default: throw Problem(.invalidArgument, "\(place) has an unknown member.")
                }
            }
        }
        guard let text else {
            throw Problem(.invalidArgument, "\(place) is a name, or an object with a name.")
        }
        let name = Result { () throws(Problem) in try bucket.objectName(decoded: text) }
        return Entry(text: text, name: name, conditions: conditions)
    }

    private static func number(_ member: JSONMember, _ place: String) throws(Problem) -> Int64 {
        let digits = Array((member.value.text ?? "").utf8)
        guard let value = Decimal.saturating(digits.span), value <= Int64.max else {
            throw Problem(.invalidArgument, "\(place).\(member.key) is a decimal number in a string.")
        }
        return Int64(value)
    }
}
