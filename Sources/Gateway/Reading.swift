import Buckets
import EventLoop
import HTTPServer
import Wire

extension Call {
    /// `GET` and `HEAD` of an object's bytes.
    func download(_ name: ObjectName, _ bucket: GatewayBucket) async throws(Problem) -> Answer {
        if isHead { return try await head(name, bucket) }
        let missing = try await ask()
        let plan = try readPlan()
        let reader: any ObjectReader
        do throws(BucketError) {
            reader = try await bucket.driver.open(name.value, plan)
        } catch {
            if missing != .nothing, error.code == .objectNotFound {
                try require(try await ask(.absent))
            }
            throw Problem(error)
        }
        do throws(Problem) {
            if missing != .nothing || record.trial == .undetermined {
                try require(try await ask(.object(reader.metadata)))
            }
            var (answer, range) = try answer(reader.metadata, plan.conditions, bucket)
            if let range {
                let source = try await bytes(of: reader, range)
                answer.body = .source(source, length: range.upperBound - range.lowerBound)
            } else {
                reader.close()
            }
            return answer
        } catch {
            reader.close()
            throw error
        }
    }

    private func readPlan() throws(Problem) -> ReadPlan {
        ReadPlan(
            range: fields["range"].flatMap { ByteRange(Array($0.utf8)[...]) },
            conditions: try Preconditions(fields, now: now))
    }

    private func bytes(of reader: any ObjectReader, _ range: Range<UInt64>)
        async throws(Problem) -> any ByteSource
    {
        do throws(BucketError) {
            return try await reader.bytes(range)
        } catch {
            throw Problem(error)
        }
    }

    private func head(_ name: ObjectName, _ bucket: GatewayBucket) async throws(Problem) -> Answer {
        var existing = Existing.unknown
        try await decide(&existing, name, bucket)
        let conditions = try Preconditions(fields, now: now)
        let object = try await object(existing, name, bucket)
        if let answer = try unmodified(object, conditions) { return answer }
        var answer = Answer(status: 200, fields: bucket.headers.fields(of: object))
        answer.head.fields.append("content-length", object.size)
        return answer
    }

    /// The object, looked for where nobody has.
    private func object(_ existing: Existing, _ name: ObjectName, _ bucket: GatewayBucket)
        async throws(Problem) -> ObjectMetadata
    {
        switch existing {
        case .object(let object): return object
        case .absent: throw Problem(BucketError(.objectNotFound))
        case .unknown:
            do throws(BucketError) {
                return try await bucket.driver.stat(name.value)
            } catch {
                throw Problem(error)
            }
        }
    }

    /// The answer to a `GET` of an object, and which of its bytes follow; nil where none do.
    private func answer(
        _ object: ObjectMetadata, _ conditions: Preconditions, _ bucket: GatewayBucket
    ) throws(Problem) -> (Answer, Range<UInt64>?) {
        if let answer = try unmodified(object, conditions) { return (answer, nil) }
        var range = 0..<object.size
        var answer = Answer(status: 200, fields: bucket.headers.fields(of: object))
        switch selectRange(fields, of: object) {
        case .whole: break
        case .part(let part):
            range = part
            answer.head.status = 206
            answer.head.fields.append(
                "content-range", "bytes \(part.lowerBound)-\(part.upperBound - 1)/\(object.size)")
        case .unsatisfiable:
            throw Problem(
                .rangeNotSatisfiable, "The object has \(object.size) bytes.",
                field: ("content-range", "bytes */\(object.size)"))
        }
        if range.isEmpty { answer.body = .bytes([]) }
        return (answer, range.isEmpty ? nil : range)
    }

    /// `GET …?metadata`. It has no entity tag: the object's stands for its bytes. So the conditions can refuse it, but not
    /// find it unmodified.
    func metadata(_ name: ObjectName, _ bucket: GatewayBucket) async throws(Problem) -> Answer {
        var existing = Existing.unknown
        try await decide(&existing, name, bucket)
        var conditions = try Preconditions(fields, now: now)
        conditions.ifNoneMatch = nil
        conditions.ifModifiedSince = nil
        let object = try await object(existing, name, bucket)
        _ = try unmodified(object, conditions)
        var answer = Answer(status: 200, json: object.json(bucket: bucket.name))
        object.appendGenerations(to: &answer.head.fields)
        return answer
    }

    /// A 304 where the conditions want one, nil where the request goes on.
    private func unmodified(_ object: ObjectMetadata, _ conditions: Preconditions) throws(Problem)
        -> Answer?
    {
        switch conditions.evaluate(object, reading: true) {
        case nil: return nil
        case .preconditionFailed: throw Problem(BucketError(.preconditionFailed))
        case .notModified:
            var answer = Answer(status: 304)
            object.appendValidators(to: &answer.head.fields)
            return answer
        }
    }

    /// One page of a list.
    func list(_ request: ListRequest, _ bucket: GatewayBucket) async throws(Problem) -> Answer {
        try require(try await ask())
        var page = try await page(request, bucket)
        if !request.query.delimited {
            let decided = try await decideFolders(of: page.items, below: request.folder)
            if decided < page.items.count {
                page.items.removeSubrange(decided...)
                page.end = page.items.last
            }
        }
        var json = JSONWriter(reserving: 64 + 96 * page.items.count)
        json.beginObject()
        json.key("prefixes")
        json.beginArray()
        for prefix in page.prefixes { json.string(prefix) }
        json.endArray()
        json.key("items")
        json.beginArray()
        for item in page.items {
            json.beginObject()
            json.member("bucket", bucket.name)
            json.member("fullPath", item)
            json.member("name", lastSegment(of: item))
            json.endObject()
        }
        json.endArray()
        if let end = page.end {
            let query = request.query
            let token = PageToken.encode(
                after: end, bucket: bucket.name, prefix: query.prefix, isDelimited: query.delimited)
            json.member("nextPageToken", token)
        }
        json.endObject()
        return Answer(status: 200, json: json.bytes)
    }

    /// The next page of what is served here: what the store has by other means, or the path rules hide, is left out. It
    /// is empty only where nothing follows.
    private func page(_ request: ListRequest, _ bucket: GatewayBucket) async throws(Problem)
        -> ListPage
    {
        var after = request.after
        guard request.folder.isEmpty || bucket.serves(below: request.folder + "/") else {
            return ListPage()
        }
        while true {
            var page: ListPage
            do throws(BucketError) {
                page = try await bucket.driver.list(request.query, after: after)
            } catch {
                throw Problem(error)
            }
            page.items.removeAll { !bucket.serves($0) }
            page.prefixes.removeAll { !bucket.serves(below: $0) }
            let isEmpty = page.items.isEmpty && page.prefixes.isEmpty
            if !isEmpty, page.end != nil {
                // What is hidden behind the last that is shown is not shown in a token either.
                page.end = [page.items.last, page.prefixes.last].compactMap { $0 }
                    .max { $0.utf8.lexicographicallyPrecedes($1.utf8) }
            }
            if !isEmpty || page.end == nil || exchange.isClientGone { return page }
            after = page.end
        }
    }

    /// Folders that one page may reveal: each is a decision, and a loop does nothing else meanwhile.
    private static let maximumFolders = 2000

    /// Decides on every folder that has one of the items below it: each of their names reveals it.
    /// - Returns: How many of the items were decided on; the others are for the next page.
    private func decideFolders(of items: [String], below base: String)
        async throws(Problem) -> Int
    {
        var decided: Set<[UInt8]> = [Array(base.utf8)]
        let start = base.isEmpty ? 0 : base.utf8.count + 1
        for (index, item) in items.enumerated() {
            if decided.count > Call.maximumFolders { return index }
            let bytes = Array(item.utf8)
            for end in bytes.indices.dropFirst(start) where bytes[end] == UInt8(ascii: "/") {
                guard decided.insert(Array(bytes[..<end])).inserted else { continue }
                try require(try await ask(folder: String(decoding: bytes[..<end], as: UTF8.self)))
            }
        }
        return items.count
    }
}

/// What follows the last `/` of a name.
func lastSegment(of name: String) -> Substring {
    let bytes = name.utf8
    guard let slash = bytes.lastIndex(of: UInt8(ascii: "/")) else { return name[...] }
    return name[bytes.index(after: slash)...]
}
