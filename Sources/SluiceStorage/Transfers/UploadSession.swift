import Foundation
import Wire

/// Sends a source in pieces, each with its checksum, from the offset that the gateway reports.
struct UploadSession {
    /// The gateway's report about the upload.
    private enum State {
        /// Unknown until the next request.
        case unknown
        case at(Int64)
    }
    /// The largest source whose checksum is computed and declared before it is sent, in bytes: 64 MiB. That of a larger
    /// one is compared at the end.
    private static let declaredSize: Int64 = 64 << 20
    /// The maximum number of earlier checksums that are kept.
    private static let maximumMarks = 1024

    private let upload: Upload
    /// The URL of the upload at the gateway; nil before it has begun.
    private(set) var url: URL?
    private var state = State.unknown
    /// The checksum of the bytes that the gateway has confirmed.
    private var confirmed = CRC32C()
    /// Checksums of the source's beginning. The gateway may report a lower offset after a failure.
    private var marks: [CRC32C] = []
    /// The highest offset that the gateway has reported of this session: only what exceeds it is progress.
    private var furthest: Int64 = 0
    private var begun = 0
    /// The checksum of the whole source, once a request was sent that could have ended the upload.
    private var ending: CRC32C?
    /// Whether the session was complete before anything was sent that could have ended it.
    private var isEarlier = false
    private var retries: Retries

    /// - Parameter url: Of an earlier upload to continue.
    init(_ upload: Upload, _ url: URL?) {
        self.upload = upload
        self.url = url
        retries = Retries(upload.storage.maxUploadRetryTime)
    }

    private var task: StorageUploadTask { upload.task }
    private var reader: UploadReader { upload.reader }

    mutating func run() async throws(StorageError) -> StorageMetadata {
        while true {
            if try await task.checkpoint() {
                // The gateway's offset counts, and a pause is not a failure.
                state = .unknown
                retries.succeeded()
            }
            switch try await step() {
            case .begun(let url):
                self.url = url
                save(url)
                try await confirm(0)
            case .offset(let offset): try await confirm(offset)
            case .stored(let stored):
                if isEarlier, try await !upload.requests.isThere(stored) {
                    begin()
                } else {
                    return stored
                }
            case .gone(let error):
                if error.reason == .bucketNotFound || begun == UploadRequests.repetitions {
                    throw error
                }
                begin()
            case .failed(let failure):
                state = .unknown
                try await retries.failed(failure, task.control)
            }
        }
    }

    /// One request.
    private mutating func step() async throws(StorageError) -> UploadRequests.Step {
        guard let url else {
            var sum: CRC32C?
            if reader.file == nil || reader.size <= UploadSession.declaredSize {
                sum = try await checksum(of: reader.size, CRC32C())
            }
            return try await upload.requests.create(size: reader.size, sum, ending: ending, &retries)
        }
        switch state {
        case .unknown: return try await upload.requests.ask(url, size: reader.size, &retries)
        case .at(let offset): return try await send(from: offset, url)
        }
    }

    /// Sends the next piece; the last one ends the upload. At the end of the source it has no bytes.
    private mutating func send(from offset: Int64, _ url: URL) async throws(StorageError)
        -> UploadRequests.Step
    {
        let end = min(reader.size, offset + upload.storage.uploadChunkSizeBytes)
        let piece = try reader.read(offset..<end)
        let sum = CRC32C(piece)
        var whole = confirmed
        whole.append(sum)
        mark(whole)
        let isLast = end == reader.size
        if isLast {
            isEarlier = isEarlier || ending == nil && piece.isEmpty
            ending = whole
        }
        return try await upload.requests.send(piece, sum, at: offset, of: url, ending: isLast ? whole : nil, &retries)
    }

    // MARK: Outcomes

    /// The resumption data must be available before the first progress.
    private func save(_ url: URL) {
        guard let file = reader.file else { return }
        task.save(
            StorageUploadResumptionData(
                bucket: task.reference.bucket, path: task.reference.fullPath, session: url.path, file: file.state,
                fields: upload.requests.fields.map { .init(name: $0.name, value: $0.value) }))
    }

    /// Starts over, which is not a failure of the connection.
    private mutating func begin() {
        begun += 1
        url = nil
        state = .unknown
        confirmed = CRC32C()
        furthest = 0
        isEarlier = false
        task.save(nil)
    }

    /// Continues at an offset that the gateway has reported: it has the bytes before.
    private mutating func confirm(_ offset: Int64) async throws(StorageError) {
        marks.removeAll { Int64($0.count) > offset }
        confirmed = try await checksum(of: offset, marks.last ?? CRC32C())
        mark(confirmed)
        state = .at(offset)
        task.progressed(to: offset, of: reader.size)
        guard offset > furthest else { return }
        furthest = offset
        retries.succeeded()
    }

    private mutating func mark(_ sum: CRC32C) {
        if marks.last?.count == sum.count { return }
        if marks.count == UploadSession.maximumMarks { marks.removeFirst() }
        marks.append(sum)
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
