import HTTPClient
import Wire

/// A store that can say whether it would take a write, without making one.
public protocol WriteProbing: BucketDriver {
    /// Begins an upload and gives it up, or asks for the permissions.
    /// - Throws: ``BucketError`` saying what is missing.
    func probeWriting() async throws(BucketError)
}

/// The object that is never made.
private let probedName = "sluice-write-probe"

extension GCSBucket: WriteProbing {
    public func probeWriting() async throws(BucketError) {
        let wanted = ["create", "get", "update", "delete", "list"].map { "storage.objects.\($0)" }
        let response = try await requests.call(ClientRequest("GET", requests.permissions(wanted)))
        // Emulators may not know of permissions.
        if response.status == 200, let json = try? JSONReader.parse(response.body),
            json["kind"]?.text == "storage#testIamPermissionsResponse"
        {
            let granted = Set((json["permissions"]?.elements ?? []).compactMap(\.text))
            let missing = wanted.filter { !granted.contains($0) }
            if missing.isEmpty { return }
            throw BucketError(
                .unavailable, "the credentials lack \(missing.joined(separator: ", "))")
        }
        var conditions = GCSConditions.none
        conditions.generation = 0
        let session = try await GCSSession.start(
            requests, pool, probedName, ObjectAttributes(), conditions)
        await session.cancel()
    }
}

extension S3Bucket: WriteProbing {
    public func probeWriting() async throws(BucketError) {
        let multipart = S3Multipart(self, probedName, size: nil)
        try await multipart.create(HeaderFields())
        multipart.abort()
    }
}
