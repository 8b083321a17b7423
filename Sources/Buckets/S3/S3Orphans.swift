import HTTPClient
import Wire
import XML

/// Finds multipart uploads whose creation had no response, and which the service may keep.
extension S3Bucket {
    /// The tolerance for differences of the service's clock readings, in seconds.
    private static let clockTolerance: Int64 = 2

    /// The ids of an object's uploads that requests without a response may have begun.
    ///
    /// Uploads carry no mark that lists show. An upload counts if it has this name, began after the first of those
    /// requests by the service's clock, and is not in progress in this process. If there are more than such requests,
    /// some may be another gateway's, so none counts.
    /// - Parameters:
    ///   - own: The upload that finally began. Its time shows the service's clock.
    ///   - begun: The time of the first request, in milliseconds since 1970 by the local clock.
    func orphans(of name: String, besides own: String?, since begun: Int64, atMost lost: Int) async
        -> [String]
    {
        let found = await uploads(of: name, besides: own, since: begun) ?? []
        return found.count <= lost ? found.map(\.id) : []
    }

    /// The ids and ages in seconds of an object's uploads that began since `begun` and are not in progress in this
    /// process; nil if unknown. The parameters are those of ``orphans(of:besides:since:atMost:)``.
    func uploads(of name: String, besides own: String?, since begun: Int64) async
        -> [(id: String, age: Int64)]?
    {
        let query =
            "encoding-type=url&max-uploads=1000&prefix=\(PercentEncoding.encodeSegment(name))&uploads="
        let request = ClientRequest("GET", target(nil, query))
        guard let response = try? await call(request, limit: 4 << 20), response.status == 200,
            let uploads = S3ListedUpload.read(response.body)
        else { return nil }
        let known = openUploads.withLock { $0 }
        let ofName = uploads.filter { BytewiseString.areEqual($0.key, name) }
        let date = response.fields["date"].flatMap {
            HTTPDate.parse(Array($0.utf8)[...], now: now() / 1000)
        }
        let ours = own.flatMap { own in ofName.first { BytewiseString.areEqual($0.id, own) } }
        guard let latest = ours?.initiated ?? date else { return nil }
        let present = date ?? latest
        let earliest = latest - (now() - begun) / 1000 - S3Bucket.clockTolerance
        return ofName.compactMap { upload in
            guard let initiated = upload.initiated, !known.contains(BytewiseString(upload.id)),
                initiated >= earliest, initiated <= latest + S3Bucket.clockTolerance
            else { return nil }
            return (upload.id, present - initiated)
        }
    }

    /// Aborts uploads that have no part and are not in progress in this process. Another gateway's upload has a part by
    /// now, or its next request fails with a status that makes it begin again.
    func abort(orphans: [String], of name: String) async {
        for id in orphans {
            if openUploads.withLock({ $0.contains(BytewiseString(id)) }) { continue }
            let upload = "uploadId=\(PercentEncoding.encodeSegment(id))"
            let parts = ClientRequest("GET", target(name, "max-parts=1&\(upload)"))
            guard let listed = try? await call(parts), listed.status == 200,
                XMLReader.first("PartNumber", of: "Part", in: listed.body) == nil,
                S3Multipart.isAbout(name, "ListPartsResult", listed.body)
            else { continue }
            _ = try? await call(ClientRequest("DELETE", target(name, upload), isRepeatable: true))
        }
    }
}

private struct S3ListedUpload {
    var key: String
    var id: String
    /// Seconds since 1970.
    var initiated: Int64?

    /// nil if the document is not a list of uploads, or an entry is incomplete.
    static func read(_ body: [UInt8]) -> [S3ListedUpload]? {
        var keys: [String] = []
        var ids: [String] = []
        var times: [String] = []
        var isEncoded = false
        do throws(XMLReader.Malformed) {
            try XMLReader.read(body) { parent, name, text in
                switch (parent, name) {
                case ("Upload", "Key"): keys.append(text)
                case ("Upload", "UploadId"): ids.append(text)
                case ("Upload", "Initiated"): times.append(text)
                case ("ListMultipartUploadsResult", "EncodingType"): isEncoded = text == "url"
                default: break
                }
            }
        } catch {
            return nil
        }
        guard keys.count == ids.count, keys.count == times.count else { return nil }
        return keys.indices.map { index in
            let key = isEncoded ? S3ListPage.decoded(keys[index]) : keys[index]
            return S3ListedUpload(
                key: key ?? "", id: ids[index], initiated: HTTPDate.parse(rfc3339: times[index]).map { $0 / 1_000 })
        }
    }
}
