import Foundation
import Wire

/// The destination of a download.
protocol DownloadTarget {
    /// Begins with a version of the object.
    /// - Parameter isFresh: Whether bytes of an earlier attempt do not count.
    /// - Returns: How many of its first bytes are there already, by an earlier download.
    mutating func begin(_ object: StorageMetadata, isFresh: Bool) throws(StorageError) -> Int64
    /// Returns bytes that are there already.
    func read(_ range: Range<Int64>) throws(StorageError) -> [UInt8]
    /// Adds bytes.
    mutating func write(_ bytes: [UInt8], at offset: Int64) throws(StorageError)
}

/// A download into memory.
private struct DownloadedData: DownloadTarget {
    /// The maximum number of bytes that are reserved: a response can claim any size.
    private static let maximumReserve: Int64 = 64 << 20
    var data = Data()

    mutating func begin(_ object: StorageMetadata, isFresh: Bool) -> Int64 {
        data = Data(capacity: Int(min(object.size, DownloadedData.maximumReserve)))
        return 0
    }

    func read(_ range: Range<Int64>) -> [UInt8] { [] }

    mutating func write(_ bytes: [UInt8], at offset: Int64) { data.append(contentsOf: bytes) }
}

/// One download, in ranges of one version: a failure repeats one range, and memory does not grow with the size.
struct Download: Sendable {
    /// The size of a range in bytes: 8 MiB.
    static let rangeSize: Int64 = 8 << 20
    /// How often a download with a wrong checksum is restarted: its bytes may have been damaged in transit.
    private static let repetitions = 2
    /// How often a download is restarted because the object was replaced.
    private static let replacements = 10

    private let task: StorageDownloadTask
    private let requests: Requests

    init(_ task: StorageDownloadTask) {
        self.task = task
        requests = Requests(task)
    }

    /// - Parameter maxSize: The maximum size in bytes.
    func data(maxSize: Int64) async throws(StorageError) -> Data {
        var target = DownloadedData()
        try await run(maxSize: maxSize, &target)
        return target.data
    }

    /// Writes to a new file in the same folder, and renames it when it is complete and verified.
    func write(to target: URL) async throws(StorageError) -> URL {
        var file = try PartFile(for: target.path, of: task.reference)
        do throws(StorageError) {
            try await run(maxSize: .max, &file)
            try file.finish()
        } catch {
            // After a failure of the gateway the next attempt continues.
            if error.reason == .retryLimitExceeded { file.keep() } else { file.discard() }
            throw error
        }
        return target
    }

    // MARK: Requests

    /// Transfers the object, from its beginning again if it is replaced meanwhile.
    private func run(maxSize: Int64, _ target: inout some DownloadTarget) async throws(StorageError) {
        var retries = Retries(requests.storage.maxDownloadRetryTime)
        var (mismatches, replacements) = (0, 0)
        while true {
            let object = try await metadata(&retries)
            guard object.size <= maxSize else {
                throw StorageError(
                    .downloadSizeExceeded,
                    "The object has \(object.size) bytes, more than \(maxSize).")
            }
            var sum = ExpectedChecksum(object)
            var offset = try target.begin(object, isFresh: mismatches > 0)
            try await verify(target, to: offset, &sum)
            task.progressed(to: offset, of: object.size, object)
            while offset < object.size {
                if try await task.checkpoint() { retries.succeeded() }
                let range = offset..<min(object.size, offset + Download.rangeSize)
                guard let bytes = try await bytes(range, of: object, &retries) else { break }
                sum.update(bytes)
                try target.write(bytes, at: offset)
                offset = range.upperBound
                task.progressed(to: offset, of: object.size)
            }
            guard offset == object.size else {
                replacements += 1
                guard replacements <= Download.replacements else {
                    throw StorageError(.unknown, "The object was replaced during the download, again and again.")
                }
                continue
            }
            if sum.matches() { return }
            mismatches += 1
            guard mismatches <= Download.repetitions else {
                throw StorageError(.nonMatchingChecksum, "The bytes received are not the object's.")
            }
        }
    }

    /// Adds the bytes of an earlier download to the checksum.
    private func verify(
        _ target: some DownloadTarget, to offset: Int64, _ sum: inout ExpectedChecksum
    ) async throws(StorageError) {
        var read: Int64 = 0
        while read < offset {
            _ = try await task.checkpoint()
            let end = min(offset, read + (4 << 20))
            sum.update(try target.read(read..<end))
            read = end
        }
    }

    private func metadata(_ retries: inout Retries) async throws(StorageError) -> StorageMetadata {
        let request = HTTPRequest("GET", try task.reference.url("?metadata"))
        while true {
            if try await task.checkpoint() { retries.succeeded() }
            switch try await requests.attempt(request, &retries) {
            case .failure(let failure): try await retries.failed(failure, task.control)
            case .response(let response):
                guard response.status == 200 else { throw Requests.error(response) }
                let path = task.reference.fullPath
                if let found = StorageMetadata(json: response.body, of: path) { return found }
                try await retries.failed(Failure(error: Requests.malformed), task.control)
            }
        }
    }

    /// - Returns: Exactly these bytes; nil if the object was replaced.
    private func bytes(
        _ range: Range<Int64>, of object: StorageMetadata, _ retries: inout Retries
    ) async throws(StorageError) -> [UInt8]? {
        let last = range.upperBound - 1
        var request = HTTPRequest("GET", try task.reference.url())
        request.fields = [
            ("Range", "bytes=\(range.lowerBound)-\(last)"),
            ("X-Object-Generation-Match", String(object.generation)),
        ]
        // A problem may be longer than a short range.
        request.limit = max(range.count, 1 << 20)
        while true {
            if try await task.checkpoint() { retries.succeeded() }
            switch try await requests.attempt(request, &retries) {
            case .failure(let failure): try await retries.failed(failure, task.control)
            case .response(let response) where response.status == 206:
                if response["content-range"] == "bytes \(range.lowerBound)-\(last)/\(object.size)",
                    response["x-object-generation"] == String(object.generation), response.body.count == range.count
                {
                    retries.succeeded()
                    return response.body
                }
                try await retries.failed(Failure(error: Requests.malformed), task.control)
            case .response(let response) where response.status == 412: return nil
            case .response(let response): throw Requests.error(response)
            }
        }
    }
}
