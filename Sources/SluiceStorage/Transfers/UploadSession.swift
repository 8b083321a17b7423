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
    /// The largest source whose checksum is computed and declared before it is sent, in bytes: 64 MiB. That of a larger
    /// one is compared at the end.
    private static let declaredSize: Int64 = 64 << 20
    /// How often an upload is begun again that the gateway does not know any more.
    private static let repetitions = 5
    /// The maximum number of earlier checksums that are kept.
    private static let maximumMarks = 1024

    private let upload: Upload
    /// The URL of the upload at the gateway; nil before it has begun.
    private(set) var url: URL?
    private let location: String?
    private var state = State.unknown
    /// The checksum of the bytes that the gateway has confirmed.
    private var confirmed = CRC32C()
    /// Earlier values of it. The gateway may report a lower offset after a failure.
    private var marks: [CRC32C] = []
    /// The highest offset that the gateway has reported of this session: only what exceeds it is progress.
    private var furthest: Int64 = 0
    private var begun = 0
    /// The checksum of the whole source, once a request was sent that could have ended the upload.
    private var ending: CRC32C?
    private var retries: Retries

    /// - Parameter location: Of an earlier upload to continue.
    init(_ upload: Upload, _ location: String?) {
        self.upload = upload
        self.location = location
        retries = Retries(upload.requests.storage.maxUploadRetryTime)
    }

    private var task: StorageUploadTask { upload.task }
    private var reader: UploadReader { upload.reader }

    mutating func run() async throws(StorageError) -> StorageMetadata {
        if let location { url = try upload.requests.storage.endpoint.session(location) }
        while true {
            if try await task.checkpoint() {
                // The gateway knows better what it has, and a pause is no failure.
                state = .unknown
                retries.succeeded()
            }
            guard let url else {
                if let stored = try await create() { return stored }
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

    /// - Returns: The stored object, if an earlier attempt turns out to have ended the upload.
    private mutating func create() async throws(StorageError) -> StorageMetadata? {
        var request = try upload.creation()
        request.fields += [("Upload-Complete", "?0"), ("Upload-Length", String(reader.size))]
        if reader.file == nil || reader.size <= UploadSession.declaredSize {
            let sum = try await checksum(of: reader.size, CRC32C())
            request.fields.append(("Repr-Digest", "crc32c=:\(sum.base64):"))
        }
        guard let response = try await attempt(request) else { return nil }
        guard response.status == 201 else {
            if let ending, let stored = try await upload.storedBefore(response, ending) {
                return stored
            }
            throw Requests.error(response)
        }
        guard let location = response["location"] else {
            try await failed(Requests.malformed)
            return nil
        }
        let url = try upload.requests.storage.endpoint.session(location)
        self.url = url
        try await confirm(0)
        guard let file = reader.file else { return nil }
        task.save(
            StorageUploadResumptionData(
                bucket: task.reference.bucket, path: task.reference.fullPath, session: url.path,
                file: file.state,
                fields: upload.fields.map { .init(name: $0.name, value: $0.value) }))
        return nil
    }

    /// Asks where the upload stands.
    private mutating func ask(_ url: URL) async throws(StorageError) {
        guard let response = try await attempt(HTTPRequest("HEAD", url)) else { return }
        switch response.status {
        case 200, 204:
            guard let offset = response["upload-offset"].flatMap(Int64.init),
                (0...reader.size).contains(offset)
            else { return try await failed(Requests.malformed) }
            try await confirm(offset)
        case 404: try await begin(again: response)
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
        let sum = CRC32C(piece)
        var request = HTTPRequest("PATCH", url)
        request.fields = [
            ("Content-Type", "application/partial-upload"), ("Upload-Offset", String(offset)),
            ("Upload-Complete", end == reader.size ? "?1" : "?0"),
            ("Content-Digest", "crc32c=:\(sum.base64):"),
        ]
        request.body = piece
        var whole = confirmed
        whole.append(sum)
        if end == reader.size { ending = whole }
        guard let response = try await attempt(request) else { return nil }
        switch response.status {
        case 204 where end < reader.size:
            guard response["upload-offset"] == String(end) else {
                try await failed(Requests.malformed)
                return nil
            }
            advance(to: whole)
        case 200...201 where end == reader.size:
            if let stored = try upload.accept(response, whole) { return stored }
            try await failed(Requests.malformed)
        case 404: try await begin(again: response)
        case 409: try await failed(Requests.error(response))
        case 400 where response["upload-complete"] == "?0":
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
    private mutating func attempt(_ request: HTTPRequest) async throws(StorageError)
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
    private mutating func begin(again response: HTTPResponse) async throws(StorageError) {
        let error = Requests.error(response)
        if error.code == .bucketNotFound || begun == UploadSession.repetitions { throw error }
        begun += 1
        url = nil
        confirmed = CRC32C()
        furthest = 0
        task.save(nil)
        try await failed(error)
    }

    /// Continues at an offset that the gateway has reported.
    private mutating func confirm(_ offset: Int64) async throws(StorageError) {
        if offset != Int64(confirmed.count) {
            let known = marks.last { Int64($0.count) <= offset } ?? CRC32C()
            confirmed = try await checksum(of: offset, known)
            marks.removeAll { $0.count > confirmed.count }
        }
        advance(to: confirmed)
    }

    /// The gateway has these bytes.
    private mutating func advance(to sum: CRC32C) {
        confirmed = sum
        let offset = Int64(sum.count)
        state = .at(offset)
        if marks.count == UploadSession.maximumMarks { marks.removeFirst() }
        marks.append(sum)
        task.progressed(to: offset, of: reader.size)
        guard offset > furthest else { return }
        furthest = offset
        retries.succeeded()
    }

    /// - Parameter known: The checksum of the first bytes.
    private func checksum(of offset: Int64, _ known: CRC32C) async throws(StorageError) -> CRC32C {
        var sum = known
        try await reader.extend(&sum, to: offset) { () throws(StorageError) in
            _ = try await task.checkpoint()
        }
        return sum
    }
}
