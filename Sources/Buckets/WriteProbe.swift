import HTTPClient
import Wire

/// A store that can say whether it would take a write, without making one.
public protocol WriteProbing: BucketDriver {
    /// Begins an upload and gives it up, or asks for the permissions.
    /// - Returns: Why these credentials may not write, which is well where they need not; nil where they may.
    /// - Throws: ``BucketError`` saying what is wrong.
    func probeWriting() async throws(BucketError) -> String?
}

/// The object that is never made.
private let probedName = "sluice-write-probe"

extension GCSBucket: WriteProbing {
    public func probeWriting() async throws(BucketError) -> String? {
        let wanted = ["create", "get", "update", "delete", "list"].map { "storage.objects.\($0)" }
        let response = try await requests.call(ClientRequest("GET", requests.permissions(wanted)))
        // Emulators may not know of permissions.
        if response.status == 200, let json = try? JSONReader.parse(response.body),
            json["kind"]?.text == "storage#testIamPermissionsResponse"
        {
            let granted = Set((json["permissions"]?.elements ?? []).compactMap(\.text))
            let missing = wanted.filter { !granted.contains($0) }
            if missing.isEmpty { return nil }
            let cause = "the credentials lack \(missing.joined(separator: ", "))"
            if granted.isSuperset(of: ["storage.objects.get", "storage.objects.list"]) {
                return cause
            }
            throw BucketError(.unavailable, cause)
        }
        var conditions = GCSConditions.none
        conditions.generation = 0
        let session = try await GCSSession.start(
            requests, pool, probedName, ObjectAttributes(), conditions)
        await session.cancel()
        return nil
    }
}

extension S3Bucket: WriteProbing {
    public func probeWriting() async throws(BucketError) -> String? {
        let multipart = S3Multipart(self, probedName, size: nil)
        do throws(BucketError) { try await multipart.create(HeaderFields()) } catch {
            multipart.abort()
            if multipart.isForbidden { return error.cause }
            throw error
        }
        multipart.abort()
        return nil
    }
}
