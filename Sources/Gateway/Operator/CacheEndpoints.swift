import Buckets
import Wire

extension OperatorEndpoints {
    /// Adds the endpoints of the read cache: `GET /cache` shows it, `POST /cache/forget?bucket=B[&name=N]` makes the next
    /// read of names ask the service, and `POST /cache/purge` removes everything from the disk.
    ///
    /// No object's name is shown, because none is at this listener.
    public mutating func addCache(_ cache: ReadCache) {
        add("/cache", "The read cache: what it has, and its results by bucket.") { (request) throws(Problem) in
            _ = try CacheQuery(request.query, allows: [])
            return Response(200, "application/json", cache.report.json)
        }
        add(
            "/cache/forget",
            "`POST` makes the next read ask the service: `?bucket=BUCKET`, and `&name=NAME` for one object.",
            method: "POST"
        ) { (request) throws(Problem) in
            let query = try CacheQuery(request.query, allows: ["bucket", "name"])
            guard let bucket = query.bucket else {
                throw Problem(.invalidArgument, "The query names the bucket: ?bucket=BUCKET.")
            }
            guard cache.forget(bucket: bucket, name: query.name) else {
                throw Problem(.bucketNotFound, "There is no such bucket, or it is not cached.")
            }
            return Response(200, "application/json", Array("{\"forgotten\":true}\n".utf8))
        }
        add("/cache/purge", "`POST` removes everything from the read cache.", method: "POST") {
            (request) throws(Problem) in
            _ = try CacheQuery(request.query, allows: [])
            await cache.purge()
            return Response(200, "application/json", Array("{\"purged\":true}\n".utf8))
        }
    }
}

/// A query of the endpoints of the read cache.
private struct CacheQuery {
    var bucket: String?
    var name: String?

    /// - Throws: ``Problem``: a parameter that is not understood must not make the operation a wider one.
    init(_ query: [Substring], allows names: [String]) throws(Problem) {
        for part in query {
            let words = part.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
            let parameter = String(words[0])
            guard names.contains(where: { BytewiseString.areEqual($0, parameter) }) else {
                throw Problem(.invalidArgument, "There is no parameter \(parameter.prefix(50)).")
            }
            guard words.count == 2, let bytes = try? PercentEncoding.decode(Array(words[1].utf8)[...]),
                let value = String(validating: bytes, as: UTF8.self), !value.isEmpty
            else { throw Problem(.invalidArgument, "\(parameter) needs a value, percent-encoded UTF-8.") }
            let isBucket = BytewiseString.areEqual(parameter, "bucket")
            guard (isBucket ? bucket : name) == nil else {
                throw Problem(.invalidArgument, "\(parameter) is there twice.")
            }
            if isBucket { bucket = value } else { name = value }
        }
    }
}

extension ReadCache.Report {
    /// The report for operators.
    var json: [UInt8] {
        var json = JSONWriter(reserving: 1024)
        json.beginObject()
        json.member("state", state.rawValue)
        if let cause { json.member("cause", cause) }
        json.member("size", Int64(size))
        json.member("limit", Int64(clamping: limit))
        json.member("slices", Int64(slices))
        json.member("fills", Int64(fills))
        json.member("joinedFills", Int64(joinedFills))
        json.member("writtenBytes", Int64(writtenBytes))
        json.key("evictedSlices")
        json.write(evicted)
        json.key("buckets")
        json.beginArray()
        for bucket in buckets {
            json.beginObject()
            json.member("bucket", bucket.name)
            json.key("requests")
            json.write(bucket.results)
            json.member("bytesFromCache", Int64(bucket.bytesFromCache))
            json.member("bytesFromService", Int64(bucket.bytesFromService))
            json.member("asks", Int64(bucket.asks))
            json.member("sharedAsks", Int64(bucket.sharedAsks))
            json.member("savedRequests", Int64(bucket.savedRequests))
            json.member("knownObjects", Int64(bucket.knownObjects))
            json.endObject()
        }
        json.endArray()
        json.endObject()
        return json.bytes + [0x0a]
    }
}

extension JSONWriter {
    /// Writes counts as an object.
    fileprivate mutating func write(_ counts: [(String, Int)]) {
        beginObject()
        for (key, count) in counts {
            self.key(text: key)
            raw(String(count))
        }
        endObject()
    }
}
