import Foundation
import Wire

extension StorageReference {
    /// Uploads bytes that arrive one after another, such as those of standard input or of another object. They replace any
    /// object there. Memory holds one chunk, of ``Storage/uploadChunkSizeBytes``, from which an interruption continues.
    /// - Parameters:
    ///   - metadata: Its metadata; a type that is not set is that of the path's extension.
    ///   - onProgress: Called with the number of bytes that the gateway has confirmed.
    ///   - next: Returns the next bytes, or nil at the end. If it throws, nothing is stored.
    @discardableResult
    public func putStream(
        metadata: StorageMetadata? = nil, onProgress: (Int64) -> Void = { _ in },
        next: () async throws(StorageError) -> [UInt8]?
    ) async throws(StorageError) -> StorageMetadata {
        let metadata = metadata ?? StorageMetadata()
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
        if isAtEnd {
            let stored = try await putDataAsync(Data(chunk), metadata: metadata)
            onProgress(stored.size)
            return stored
        }
        var upload = StreamUpload(self, metadata)
        do throws(StorageError) {
            while true {
                if let stored = try await upload.send(chunk, isLast: isAtEnd) {
                    onProgress(stored.size)
                    return stored
                }
                onProgress(Int64(upload.confirmed.count))
                chunk = []
                try await fill()
            }
        } catch {
            await upload.discard()
            throw error
        }
    }
}

/// An upload session for bytes that can't be read twice, apart from the chunk that is being sent.
private struct StreamUpload {
    private let reference: StorageReference
    private let metadata: StorageMetadata
    private var url: URL?
    /// The checksum of the chunks that the gateway has confirmed.
    private(set) var confirmed = CRC32C()

    init(_ reference: StorageReference, _ metadata: StorageMetadata) {
        self.reference = reference
        self.metadata = metadata
    }

    /// Sends a chunk, as often as it takes.
    /// - Returns: The stored object, if the chunk is the last one.
    mutating func send(_ chunk: [UInt8], isLast: Bool) async throws(StorageError)
        -> StorageMetadata?
    {
        let control = TransferControl()
        let requests = Requests(storage: reference.storage, control: control)
        var retries = Retries(reference.storage.maxUploadRetryTime)
        let start = Int64(confirmed.count)
        var whole = confirmed
        whole.append(CRC32C(chunk))
        // nil where the gateway must be asked.
        var offset: Int64? = start
        while true {
            let failure: Failure
            switch try await attempt(requests, &retries, chunk, isLast, start: start, offset) {
            case .offset(let found):
                guard found >= start, found <= start + Int64(chunk.count) else {
                    throw StorageError(
                        .unknown, "The gateway has lost bytes that it had confirmed. Send it again."
                    )
                }
                if found == start + Int64(chunk.count), !isLast {
                    confirmed = whole
                    return nil
                }
                offset = found
                continue
            case .stored(let stored):
                guard stored.size == Int64(whole.count),
                    stored.crc32c ?? whole.base64 == whole.base64
                else {
                    throw StorageError(
                        .nonMatchingChecksum,
                        "The stored object is not what was sent: it was replaced, or it is damaged."
                    )
                }
                return stored
            case .failure(let found): failure = found
            }
            offset = nil
            try await retries.failed(failure, control)
        }
    }

    fileprivate enum Step {
        case offset(Int64)
        case stored(StorageMetadata)
        case failure(Failure)
    }

    /// One request: begins the upload, asks for its offset, or sends the rest of the chunk.
    private mutating func attempt(
        _ requests: Requests, _ retries: inout Retries, _ chunk: [UInt8], _ isLast: Bool,
        start: Int64, _ offset: Int64?
    ) async throws(StorageError) -> Step {
        guard let url else { return try await create(requests, &retries) }
        guard let offset else {
            let outcome = try await requests.attempt(HTTPRequest("HEAD", url), &retries)
            guard case .response(let response) = outcome else { return outcome.step }
            guard [200, 204].contains(response.status) else { throw Requests.error(response) }
            return response["upload-offset"].flatMap(Int64.init).map { .offset($0) }
                ?? .failure(Failure(error: Requests.malformed))
        }
        var request = HTTPRequest("PATCH", url)
        let rest = offset == start ? chunk : Array(chunk.dropFirst(Int(offset - start)))
        request.fields = [
            ("Content-Type", "application/partial-upload"), ("Upload-Offset", String(offset)),
            ("Upload-Complete", isLast ? "?1" : "?0"),
            ("Content-Digest", "crc32c=:\(CRC32C(rest).base64):"),
        ]
        request.body = rest
        let outcome = try await requests.attempt(request, &retries)
        guard case .response(let response) = outcome else { return outcome.step }
        switch response.status {
        case 204 where !isLast: return .offset(offset + Int64(rest.count))
        case 200...201 where isLast:
            return StorageMetadata(json: response.body, of: reference.fullPath).map { .stored($0) }
                ?? .failure(Failure(error: Requests.malformed))
        case 409: return .failure(Failure(error: Requests.error(response)))
        case 400 where response["upload-complete"] == "?0":
            let error = Requests.error(response)
            guard error.code == .nonMatchingChecksum else { throw error }
            return .failure(Failure(error: error))
        default: throw Requests.error(response)
        }
    }

    private mutating func create(_ requests: Requests, _ retries: inout Retries)
        async throws(StorageError) -> Step
    {
        var request = HTTPRequest("PUT", try reference.url())
        request.fields = try metadata.fields(type: MediaTypes.type(of: reference.name[...]))
        request.fields.append(("Upload-Complete", "?0"))
        let outcome = try await requests.attempt(request, &retries)
        guard case .response(let response) = outcome else { return outcome.step }
        guard response.status == 201 else { throw Requests.error(response) }
        guard let location = response["location"] else {
            return .failure(Failure(error: Requests.malformed))
        }
        url = try reference.storage.endpoint.session(location)
        return .offset(0)
    }

    /// Removes the upload at the gateway, as far as that succeeds at once.
    func discard() async {
        guard let url else { return }
        var retries = Retries(1)
        let requests = Requests(storage: reference.storage, control: TransferControl())
        _ = try? await requests.attempt(HTTPRequest("DELETE", url), &retries)
    }
}

extension Outcome {
    /// The failure of an attempt without a response.
    fileprivate var step: StreamUpload.Step {
        switch self {
        case .response(let response): .failure(Failure(error: Requests.error(response)))
        case .failure(let failure): .failure(failure)
        }
    }
}
