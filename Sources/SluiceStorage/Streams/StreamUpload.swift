import Foundation
import Wire

extension StorageReference {
    /// Uploads bytes that arrive one after another, such as those of standard input or of another object. They replace any
    /// object there. Memory holds one chunk, of ``Storage/uploadChunkSizeBytes``, from which an interruption continues. If the
    /// task is cancelled, so is the upload.
    /// - Parameters:
    ///   - metadata: Its metadata. The default content type is derived from the path's extension.
    ///   - onProgress: Called with the number of bytes that the gateway has confirmed.
    ///   - next: Returns the next bytes, or nil at the end. If it throws, nothing is stored.
    @discardableResult
    public func putStream(
        metadata: StorageMetadata? = nil, onProgress: (Int64) -> Void = { _ in },
        next: () async throws(StorageError) -> [UInt8]?
    ) async throws(StorageError) -> StorageMetadata {
        try await putStream(metadata: metadata, onSession: { _ in }, onProgress: onProgress, next: next)
    }

    /// The same, for a program that removes what it may leave at the gateway if it is killed.
    /// - Parameter onSession: Called with the argument of ``removeUpload(_:)`` when the upload has begun at the gateway, and
    ///   with nil when it is not there any more.
    package func putStream(
        metadata: StorageMetadata?, onSession: (String?) -> Void, onProgress: (Int64) -> Void,
        next: () async throws(StorageError) -> [UInt8]?
    ) async throws(StorageError) -> StorageMetadata {
        let values = metadata?.values ?? MetadataValues()
        let size = Int(storage.uploadChunkSizeBytes)
        var chunk: [UInt8] = []
        var isAtEnd = false
        func fill() async throws(StorageError) {
            while chunk.count < size, !isAtEnd {
                if let more = try await next() {
                    if chunk.isEmpty { chunk = more } else { chunk += more }
                } else {
                    isAtEnd = true
                }
            }
        }
        try await fill()
        if isAtEnd, chunk.count <= Upload.smallSize {
            let stored = try await putDataAsync(Data(chunk), metadata: StorageMetadata(values))
            onProgress(stored.size)
            return stored
        }
        let fields = try values.fields(type: MediaTypes.type(of: name[...]))
        return try await operation { requests throws(StorageError) in
            var upload = StreamUpload(UploadRequests(reference: self, requests: requests, fields: fields))
            do throws(StorageError) {
                while true {
                    if let stored = try await upload.send(chunk, isLast: isAtEnd, onSession) {
                        onSession(nil)
                        onProgress(stored.size)
                        return stored
                    }
                    onProgress(Int64(upload.confirmed.count))
                    chunk = []
                    try await fill()
                }
            } catch {
                if await upload.discard() { onSession(nil) }
                throw error
            }
        }
    }

    /// Tries for some seconds to remove an upload that its program has left at the gateway.
    /// - Parameter session: What ``putStream(metadata:onSession:onProgress:next:)`` has reported.
    /// - Returns: Whether the gateway does not have it any more.
    @discardableResult
    package func removeUpload(_ session: String) async -> Bool {
        guard let url = try? storage.endpoint.session(session) else { return true }
        return await removeUpload(at: url)
    }

    /// Removes an upload that will not be continued.
    package func removeUpload(_ upload: StorageUploadResumptionData) async {
        guard upload.isInParts else {
            await removeUpload(upload.session)
            return
        }
        guard let url = try? storage.endpoint.parts(upload.session, of: fullPath) else { return }
        await removeUpload(at: url)
    }

    @discardableResult
    private func removeUpload(at url: URL) async -> Bool {
        let requests = Requests(storage: storage, control: TransferControl())
        return await UploadRequests(reference: self, requests: requests, fields: []).remove(url)
    }
}

/// An upload session for bytes that can't be read twice, apart from the chunk that is being sent.
private struct StreamUpload {
    private let upload: UploadRequests
    private var url: URL?
    private var begun = 0
    /// The checksum of the chunks that the gateway has confirmed.
    private(set) var confirmed = CRC32C()

    init(_ upload: UploadRequests) { self.upload = upload }

    /// Sends a chunk, with retries.
    /// - Parameter began: Called with the path of a new session.
    /// - Returns: The stored object, if the chunk is the last one.
    mutating func send(_ chunk: [UInt8], isLast: Bool, _ began: (String) -> Void)
        async throws(StorageError) -> StorageMetadata?
    {
        var retries = Retries(upload.reference.storage.maxUploadRetryTime)
        let start = Int64(confirmed.count)
        var whole = confirmed
        whole.append(CRC32C(chunk))
        // nil if the gateway must be queried.
        var offset: Int64? = start
        while true {
            let rest = chunk.dropFirst(Int((offset ?? start) - start))
            switch try await step(rest, at: offset, whole, isLast, &retries) {
            case .begun(let session):
                (url, offset) = (session, 0)
                began(session.path)
            case .offset(let found):
                guard found >= start else {
                    throw StorageError(.unknown, "The gateway has lost bytes that it had confirmed. Send it again.")
                }
                if found == Int64(whole.count), !isLast {
                    confirmed = whole
                    return nil
                }
                offset = found
            case .stored(let stored): return stored
            case .gone(let error):
                if let stored = try await begin(again: error, isLast ? whole : nil) {
                    return stored
                }
            case .failed(let failure):
                offset = nil
                try await retries.failed(failure, upload.requests.control)
            }
        }
    }

    /// One request: begins the upload, asks for its offset, or sends the rest of the chunk.
    private func step(
        _ rest: ArraySlice<UInt8>, at offset: Int64?, _ whole: CRC32C, _ isLast: Bool, _ retries: inout Retries
    ) async throws(StorageError) -> UploadRequests.Step {
        guard let url else {
            let sum = isLast ? whole : nil
            return try await upload.create(size: sum.map { Int64($0.count) }, sum, ending: sum, &retries)
        }
        guard let offset else {
            return try await upload.ask(url, size: Int64(whole.count), &retries)
        }
        let piece = Array(rest)
        return try await upload.send(piece, CRC32C(piece), at: offset, of: url, ending: isLast ? whole : nil, &retries)
    }

    /// Begins again if all bytes are still here.
    /// - Parameter ending: The checksum of the object, if the last chunk was being sent.
    /// - Returns: The object, if the upload has stored it and its response was lost.
    private mutating func begin(again error: StorageError, _ ending: CRC32C?)
        async throws(StorageError) -> StorageMetadata?
    {
        if let ending, let stored = try await upload.stored(ending) { return stored }
        guard confirmed.count == 0, begun < UploadRequests.repetitions,
            error.reason != .bucketNotFound
        else { throw error }
        begun += 1
        url = nil
        return nil
    }

    /// Tries to remove the upload at the gateway in time.
    /// - Returns: Whether the gateway does not have it any more.
    func discard() async -> Bool {
        if let url { await upload.remove(url) } else { true }
    }
}
