import HTTPClient
import Wire

/// A store that can check write permission without writing an object.
public protocol WriteProbing: BucketDriver {
    /// Begins an upload and aborts it, or queries the permissions. A bucket that is only read does not need them.
    /// - Returns: Why the credentials do not permit writing; nil if they do.
    /// - Throws: ``BucketError`` if the check fails or the credentials do not permit reading.
    func probeWriting() async throws(BucketError) -> String?
}

/// The name of the probe's upload, which is never committed.
private let probedName = "sluice-write-probe"

extension GCSBucket: WriteProbing {
    public func probeWriting() async throws(BucketError) -> String? {
        let wanted = ["create", "get", "update", "delete", "list"].map { "storage.objects.\($0)" }
        let response = try await requests.call(ClientRequest("GET", requests.permissions(wanted)))
        // Emulators may not support permission queries.
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
        let session = try await GCSSession.start(requests, pool, probedName, ObjectAttributes(), conditions)
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
            throw BucketError(error.code, "the bucket '\(settings.bucket)': \(error.cause)")
        }
        multipart.abort()
        return nil
    }
}
