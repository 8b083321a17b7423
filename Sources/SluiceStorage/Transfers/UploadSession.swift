import Foundation
import Wire

/// Sends a source in pieces, each with its checksum, from the offset that the gateway reports.
struct UploadSession {
    /// What the gateway says of the upload.
    private enum State {
        /// The next request must find out.
        case unknown
        case at(Int64)
    }

    private let upload: Upload
    private let reader: UploadReader
    /// The URL of the upload at the gateway; nil before it has begun.
    private(set) var url: URL?
    private let location: String?
    private var state = State.unknown
    /// The checksum of the bytes that the gateway has confirmed.
    private var confirmed = CRC32C()
    private var retries: Retries

    /// - Parameter location: Of an earlier upload to continue.
    init(_ upload: Upload, _ reader: UploadReader, _ location: String?) {
        self.upload = upload
        self.reader = reader
        self.location = location
        retries = Retries(upload.requests.storage.maxUploadRetryTime)
    }

    private var task: StorageUploadTask { upload.task }

    mutating func run() async throws(StorageError) -> StorageMetadata {
        if let location { url = try upload.requests.storage.endpoint.session(location) }
        while true {
            if try await task.checkpoint() {
                // The gateway knows better what it has, and a pause is no failure.
                state = .unknown
                retries.succeeded()
            }
            guard let url else {
                try await create()
                continue
            }
            switch state {
            case .unknown: try await ask(url)
            case .at(let offset):
                if let stored = try await send(from: offset, url) { return stored }
            }
        }
    }

    // MARK: Requests

    private mutating func create() async throws(StorageError) {
        var request = try upload.creation()
        request.fields += [("Upload-Complete", "?0"), ("Upload-Length", String(reader.size))]
        guard let response = try await attempt(request) else { return }
        guard response.status == 201 else { throw Requests.error(response) }
        guard let location = response["Location"] else {
            return try await failed(Requests.malformed)
        }
        url = try upload.requests.storage.endpoint.session(location)
        try await confirm(0)
        guard let url, let file = reader.state else { return }
        task.save(
            StorageUploadResumptionData(
                bucket: task.reference.bucket, path: task.reference.fullPath, session: url.path,
                file: file))
    }

    /// Asks where the upload stands.
    private mutating func ask(_ url: URL) async throws(StorageError) {
        guard let response = try await attempt(GatewayRequest("HEAD", url)) else { return }
        switch response.status {
        case 200, 204:
            guard let offset = response["Upload-Offset"].flatMap(Int64.init),
                (0...reader.size).contains(offset)
            else { return try await failed(Requests.malformed) }
            try await confirm(offset)
        case 404: try await begun(again: response)
        default: throw Requests.error(response)
        }
    }

    /// Sends the next piece; the last one ends the upload. At the end of the source it has no bytes, and gets the result
    /// again if the upload is complete.
    private mutating func send(from offset: Int64, _ url: URL) async throws(StorageError)
        -> StorageMetadata?
    {
        let end = min(reader.size, offset + upload.requests.storage.uploadChunkSizeBytes)
        let piece = try reader.read(offset..<end)
        var sum = CRC32C()
        sum.update(piece)
        var request = GatewayRequest("PATCH", url)
        request.fields = [
            ("Content-Type", "application/partial-upload"), ("Upload-Offset", String(offset)),
            ("Upload-Complete", end == reader.size ? "?1" : "?0"),
            ("Content-Digest", "crc32c=:\(sum.base64):"),
        ]
        request.body = piece
        guard let response = try await attempt(request) else { return nil }
        var whole = confirmed
        whole.append(sum)
        switch response.status {
        case 204 where end < reader.size:
            guard response["Upload-Offset"] == String(end) else {
                try await failed(Requests.malformed)
                return nil
            }
            confirmed = whole
            state = .at(end)
            retries.succeeded()
            task.progressed(to: end, of: reader.size)
        case 200...201 where end == reader.size:
            if let stored = try upload.accept(response, whole) { return stored }
            try await failed(Requests.malformed)
        case 404: try await begun(again: response)
        case 409: try await failed(Requests.error(response))
        case 400 where response["Upload-Complete"] == "?0":
            // The piece was damaged on its way.
            let error = Requests.error(response)
            guard error.code == .nonMatchingChecksum else { throw error }
            try await failed(error)
        default: throw Requests.error(response)
        }
        return nil
    }

    // MARK: Outcomes

    /// - Returns: nil if the attempt has failed and the next one may succeed.
    private mutating func attempt(_ request: GatewayRequest) async throws(StorageError)
        -> HTTPResponse?
    {
        switch try await upload.requests.attempt(request, &retries) {
        case .response(let response): return response
        case .failure(let failure):
            state = .unknown
            try await retries.failed(failure, task.control)
            return nil
        }
    }

    private mutating func failed(_ error: StorageError) async throws(StorageError) {
        state = .unknown
        try await retries.failed(Failure(error: error), task.control)
    }

    /// The gateway does not know the upload any more: it has expired, or the gateway has lost its keys.
    private mutating func begun(again response: HTTPResponse) async throws(StorageError) {
        let error = Requests.error(response)
        if error.code == .bucketNotFound { throw error }
        url = nil
        confirmed = CRC32C()
        task.save(nil)
        try await failed(error)
    }

    /// Continues at an offset that the gateway has reported.
    private mutating func confirm(_ offset: Int64) async throws(StorageError) {
        if Int64(confirmed.count) != offset {
            confirmed = try reader.checksum(of: offset)
            task.progressed(to: offset, of: reader.size)
            retries.succeeded()
        }
        state = .at(offset)
    }
}
