import HTTPClient
import Wire

/// Hidden objects in Cloud Storage, whose reads and lists are strongly consistent. Their version is the generation.
extension GCSBucket: CloudSessionStore {
    func readHidden(_ name: String) async throws(BucketError) -> HiddenObject? {
        let response = try await requests.call(
            ClientRequest("GET", requests.object(name, [("alt", "media")])), limit: CloudSessionState.maximumBytes)
        if response.status == 404 { return try notFound(response) }
        guard response.status == 200 else { throw requests.failure(response) }
        guard let version = response.fields["x-goog-generation"] else {
            throw BucketError(.unavailable, "the service sends an object without its generation")
        }
        return HiddenObject(bytes: response.body, version: version)
    }

    /// A missing object, unless the bucket is missing.
    private func notFound(_ response: CollectedResponse) throws(BucketError) -> HiddenObject? {
        let failure = requests.failure(response)
        if failure.code == .objectNotFound { return nil }
        throw failure
    }

    func writeHidden(_ name: String, _ bytes: [UInt8], replacing version: String?) async throws(BucketError) -> String?
    {
        let query = [
            ("uploadType", "multipart"), ("name", name), ("ifGenerationMatch", version ?? "0"),
        ]
        // The service compares the digests, so it never stores a truncated request.
        var digests = SessionDigests([])
        digests.update(bytes.span.bytes)
        let body = GCSMultipart(
            name, ObjectAttributes(contentType: "application/octet-stream"),
            digests.facts(size: UInt64(bytes.count)), bytes)
        let request = ClientRequest(
            "POST", requests.uploads(query), body: .bytes(body.bytes), isRepeatable: true)
        request.fields.append("content-type", body.contentType)
        let response = try await requests.call(request)
        if response.status == 412 { return nil }
        if response.status == 404 { throw requests.missingBucket }
        return String(try requests.metadata(response, of: name).generation)
    }

    func deleteHidden(_ name: String) async throws(BucketError) {
        let request = ClientRequest("DELETE", requests.object(name), isRepeatable: true)
        let response = try await requests.call(request)
        guard [200, 204, 404].contains(response.status) else { throw requests.failure(response) }
    }

    func listHidden(_ prefix: String, after name: String?) async throws(BucketError) -> [String] {
        var query = [("prefix", prefix), ("fields", "items(name),nextPageToken")]
        // The offset is inclusive.
        if let name { query.append(("startOffset", name)) }
        var token: String?
        for _ in 0..<GCSBucket.maximumPages {
            let paged = query + (token.map { [("pageToken", $0)] } ?? [])
            let response = try await requests.call(
                ClientRequest("GET", requests.objects(paged)), limit: GCSBucket.maximumPageBytes)
            guard response.status == 200 else { throw bucketFailure(response) }
            guard let page = GCSListPage(response.body), page.next == nil || page.next != token else {
                throw BucketError(.unavailable, "a page of the list is not a list in JSON")
            }
            let names = page.items.filter { $0 != name }
            // An empty page may have a successor.
            if !names.isEmpty || page.next == nil { return names }
            token = page.next
        }
        throw BucketError(.unavailable, "\(GCSBucket.maximumPages) pages of hidden objects in a row are empty")
    }
}
