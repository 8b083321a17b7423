import Foundation
import Wire

/// One download. The bytes come in ranges of one version of the object, so that a failure repeats one range, memory does not
/// grow with the object, and `URLSession` can't deliver faster than the bytes are written.
struct Download: Sendable {
    /// The size of a range in bytes: 8 MiB.
    static let rangeSize: Int64 = 8 << 20
    /// How often a download whose bytes do not have the object's checksum is begun again: they may have been damaged on
    /// their way.
    private static let repetitions = 2

    private let task: StorageDownloadTask
    private let requests: Requests

    init(_ task: StorageDownloadTask) {
        self.task = task
        requests = Requests(storage: task.reference.storage, control: task.control)
    }

    /// - Parameter maxSize: The maximum size in bytes.
    func data(maxSize: Int64) async throws(StorageError) -> Data {
        var data = Data()
        try await run(maxSize: maxSize) { () throws(StorageError) in
            data = Data()
        } take: { (bytes: Data) throws(StorageError) in
            data.append(bytes)
        }
        return data
    }

    /// Writes to a new file in the same folder, and renames it when it is complete and verified.
    func write(to target: URL) async throws(StorageError) -> URL {
        let folder = target.deletingLastPathComponent()
        let part = folder.appendingPathComponent(".sluice-\(UUID().uuidString).part")
        guard FileManager.default.createFile(atPath: part.path, contents: nil) else {
            throw StorageError(.unknown, "No file can be made in \(folder.path).")
        }
        do throws(StorageError) {
            try await write(part, target)
        } catch {
            try? FileManager.default.removeItem(at: part)
            throw error
        }
        return target
    }

    private func write(_ part: URL, _ target: URL) async throws(StorageError) {
        let file = try local(target) { try FileHandle(forWritingTo: part) }
        defer { try? file.close() }
        try await run(maxSize: .max) { () throws(StorageError) in
            try local(target) { try file.truncate(atOffset: 0) }
        } take: { (bytes: Data) throws(StorageError) in
            try local(target) { try file.write(contentsOf: bytes) }
        }
        try local(target) { try file.synchronize() }
        guard rename(part.path, target.path) == 0 else {
            let cause = String(cString: strerror(errno))
            throw StorageError(.unknown, "\(target.path) can't be written: \(cause)")
        }
    }

    private func local<Value>(_ target: URL, _ body: () throws -> Value) throws(StorageError)
        -> Value
    {
        do { return try body() } catch { throw .file("written", target.path, error) }
    }

    // MARK: Requests

    /// Transfers the object, from its beginning again if it is replaced meanwhile.
    private func run(
        maxSize: Int64, begin: () throws(StorageError) -> Void,
        take: (Data) throws(StorageError) -> Void
    ) async throws(StorageError) {
        var retries = Retries(requests.storage.maxDownloadRetryTime)
        var mismatches = 0
        while true {
            let object = try await metadata(&retries)
            guard object.size <= maxSize else {
                throw StorageError(
                    .downloadSizeExceeded,
                    "The object has \(object.size) bytes, more than \(maxSize).")
            }
            try begin()
            var sum = Checksum(object)
            var offset: Int64 = 0
            task.progressed(to: 0, of: object.size, object)
            while offset < object.size {
                if try await task.checkpoint() { retries.succeeded() }
                let range = offset..<min(object.size, offset + Download.rangeSize)
                guard let bytes = try await bytes(range, of: object, &retries) else { break }
                sum.update(bytes)
                try take(bytes)
                offset = range.upperBound
                task.progressed(to: offset, of: object.size)
            }
            guard offset == object.size else { continue }
            if sum.matches { return }
            mismatches += 1
            guard mismatches <= Download.repetitions else {
                throw StorageError(.nonMatchingChecksum, "The bytes received are not the object's.")
            }
        }
    }

    private func metadata(_ retries: inout Retries) async throws(StorageError) -> StorageMetadata {
        let request = GatewayRequest("GET", try task.reference.url("?metadata"))
        while true {
            if try await task.checkpoint() { retries.succeeded() }
            switch try await requests.attempt(request, &retries) {
            case .failure(let failure): try await retries.failed(failure, task.control)
            case .response(let response):
                guard response.status == 200 else { throw Requests.error(response) }
                if let found = StorageMetadata(json: response.body),
                    found.path == task.reference.fullPath
                {
                    return found
                }
                try await retries.failed(Failure(error: Requests.malformed), task.control)
            }
        }
    }

    /// - Returns: Exactly these bytes; nil if the object was replaced.
    private func bytes(
        _ range: Range<Int64>, of object: StorageMetadata, _ retries: inout Retries
    ) async throws(StorageError) -> Data? {
        let last = range.upperBound - 1
        var request = GatewayRequest("GET", try task.reference.url())
        request.fields = [
            ("Range", "bytes=\(range.lowerBound)-\(last)"),
            ("X-Object-Generation-Match", String(object.generation)),
        ]
        request.limit = max(range.count, 1 << 20)
        while true {
            if try await task.checkpoint() { retries.succeeded() }
            switch try await requests.attempt(request, &retries) {
            case .failure(let failure): try await retries.failed(failure, task.control)
            case .response(let response) where response.status == 206:
                if response["Content-Range"] == "bytes \(range.lowerBound)-\(last)/\(object.size)",
                    response["X-Object-Generation"] == String(object.generation),
                    response.body.count == range.count
                {
                    retries.succeeded()
                    return response.body
                }
                try await retries.failed(Failure(error: Requests.malformed), task.control)
            case .response(let response) where response.status == 412:
                try await retries.failed(Failure(error: Requests.error(response)), task.control)
                return nil
            case .response(let response): throw Requests.error(response)
            }
        }
    }
}

/// Verifies a download by the best checksum that the gateway reports.
private struct Checksum {
    private var crc32c: CRC32C?
    private var md5: MD5?
    private let object: StorageMetadata

    init(_ object: StorageMetadata) {
        self.object = object
        if object.crc32c != nil { crc32c = CRC32C() } else if object.md5Hash != nil { md5 = MD5() }
    }

    mutating func update(_ bytes: Data) {
        crc32c?.update(bytes)
        md5?.update(bytes)
    }

    var matches: Bool {
        if let crc32c { return crc32c.base64 == object.crc32c }
        if let md5 { return md5.base64() == object.md5Hash }
        return true
    }
}
