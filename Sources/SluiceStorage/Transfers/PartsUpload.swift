import Foundation
import Wire

extension StorageReference {
    /// Larger files are worth an upload in parts: 64 MiB, in bytes.
    package static let partsFileSize: Int64 = 64 << 20

    /// Uploads a file in parts, several at a time, replacing any object there. Each part is read while it is sent, so memory
    /// does not grow with the file. A failed part is sent again alone.
    /// - Parameters:
    ///   - metadata: Its metadata; nil for that of `saved`. The default content type is derived from the file's extension.
    ///   - saved: An earlier upload of the file to continue: the parts that the gateway has are compared with the file, and
    ///     the others sent.
    ///   - slots: The caller has one of them. Further parts are sent at the same time in slots that are free.
    ///   - began: Called when an upload has begun, with the data to continue it.
    ///   - onProgress: Called with the number of bytes that the gateway has confirmed, and how many of them it had before.
    /// - Returns: nil if the gateway or the bucket has no uploads in parts.
    /// - Throws: ``StorageError``. The upload stays at the gateway, unless the task was cancelled or the file has changed.
    package func putFileInParts(
        _ path: String, metadata: StorageMetadata?, from saved: StorageUploadResumptionData? = nil,
        _ slots: TransferSlots, began: (StorageUploadResumptionData) -> Void = { _ in },
        onProgress: (_ done: Int64, _ present: Int64) -> Void = { _, _ in }
    ) async throws(StorageError) -> StorageMetadata? {
        let file = try LocalFile(path)
        let fields: [(name: String, value: String)]
        if let saved, metadata == nil {
            fields = saved.fields.map { (name: $0.name, value: $0.value) }
        } else {
            fields = try (metadata?.values ?? MetadataValues()).fields(
                type: MediaTypes.type(of: path[...]) ?? MediaTypes.type(of: name[...]))
        }
        return try await operation { requests throws(StorageError) in
            let upload = PartsUpload(
                requests: UploadRequests(reference: self, requests: requests, fields: fields), file: file, slots: slots)
            return try await upload.run(saved, began, onProgress)
        }
    }
}

/// Sends a file in parts. All but the last have one size, which lets a gateway store them where they belong.
struct PartsUpload: Sendable {
    /// The most parts of an object.
    private static let maximumCount: Int64 = 10_000
    /// Bytes of one read for a checksum.
    private static let readSize: Int64 = 512 << 10

    /// A part that the gateway has.
    private struct Part {
        let size: Int64
        let etag: String
        /// nil if the store does not know it.
        let crc32c: String?

        init?(_ json: JSONValue) {
            guard let size = json["size"]?.integer, let etag = json["etag"]?.text else { return nil }
            (self.size, self.etag, crc32c) = (size, etag, json["crc32c"]?.text)
        }
    }
    /// A part that the gateway has and that is the file's.
    private struct Sent: Sendable {
        let number: Int
        /// Of the file's bytes.
        let sum: CRC32C
        let etag: String
        /// Whether the gateway had it before.
        var isEarlier = false
    }
    private struct Session {
        let url: URL
        let partSize: Int64
        /// By number. nil if the upload has ended.
        var present: [Int: Part]? = [:]
    }

    let requests: UploadRequests
    let file: LocalFile
    let slots: TransferSlots
    /// The least size of a part in bytes: 16 MiB.
    var leastPartSize: Int64 = 16 << 20

    private var size: Int64 { file.state.size }
    private var reference: StorageReference { requests.reference }
    private var control: TransferControl { requests.requests.control }

    // MARK: Course

    /// - Returns: nil if the gateway or the bucket has no uploads in parts.
    func run(
        _ saved: StorageUploadResumptionData?, _ began: (StorageUploadResumptionData) -> Void,
        _ onProgress: (Int64, Int64) -> Void
    ) async throws(StorageError) -> StorageMetadata? {
        var session: Session?
        do throws(StorageError) {
            if let saved {
                if saved.file != file.state { throw file.changed }
                session = try await continued(saved)
            }
            for attempt in 0... {
                if session == nil {
                    guard let begun = try await begin() else { return nil }
                    session = begun
                    began(data(begun))
                }
                guard let open = session else { break }
                do throws(StorageError) {
                    if let stored = try await transfer(open, onProgress) { return stored }
                } catch {
                    guard error.hasProblem("upload-not-found"), attempt < UploadRequests.repetitions else {
                        throw error
                    }
                }
                session = nil
            }
            return nil
        } catch {
            if error.reason == .cancelled || (try? file.check()) == nil, let url = session?.url {
                await requests.remove(url)
            }
            throw error
        }
    }

    private func data(_ session: Session) -> StorageUploadResumptionData {
        StorageUploadResumptionData(
            bucket: reference.bucket, path: reference.fullPath,
            session: "\(session.url.path)?\(session.url.query ?? "")", file: file.state,
            fields: requests.fields.map { .init(name: $0.name, value: $0.value) }, partSize: session.partSize)
    }

    /// Sends the parts that are missing, and creates the object.
    /// - Returns: nil if the upload had ended before, and its object is gone.
    private func transfer(_ session: Session, _ onProgress: (Int64, Int64) -> Void)
        async throws(StorageError) -> StorageMetadata?
    {
        let parts = try await send(session, onProgress)
        try file.check()
        var whole = CRC32C()
        for part in parts { whole.append(part.sum) }
        let stored = try await complete(session, parts, whole)
        if session.present == nil, try await !requests.isThere(stored) { return nil }
        return stored
    }

    // MARK: Requests

    /// Begins an upload.
    /// - Returns: nil if the gateway or the bucket has none in parts, or does not understand the request.
    private func begin() async throws(StorageError) -> Session? {
        var request = HTTPRequest("POST", try reference.url("?parts"))
        request.fields = requests.fields + [("Upload-Length", String(size))]
        let path = reference.fullPath
        return try await requests.requests.call(
            request, [201, 400, 404, 405, 501], retryTime: reference.storage.maxUploadRetryTime
        ) { response throws(StorageError) -> Session?? in
            guard response.status == 201 else { return .some(nil) }
            guard let location = response["location"], let json = try? JSONReader.parse(response.body) else {
                return nil
            }
            return Session(
                url: try reference.storage.endpoint.parts(location, of: path),
                partSize: partSize(minimum: json["minimumPartSize"]?.integer ?? 0))
        }
    }

    /// The size of all parts but the last, in bytes.
    /// - Parameter minimum: The store's least size of a part.
    func partSize(minimum: Int64) -> Int64 {
        let unit: Int64 = 1 << 20
        let least = (size + PartsUpload.maximumCount - 1) / PartsUpload.maximumCount
        return max(leastPartSize, minimum, (least + unit - 1) / unit * unit)
    }

    /// The upload that was saved, with its parts; nil if the gateway does not know it any more.
    private func continued(_ saved: StorageUploadResumptionData) async throws(StorageError) -> Session? {
        guard let partSize = saved.partSize, partSize > 0,
            let url = try? reference.storage.endpoint.parts(saved.session, of: reference.fullPath)
        else { return nil }
        var session = Session(url: url, partSize: partSize)
        var after: Int64? = 0
        while let last = after {
            let page: JSONValue?
            do throws(StorageError) {
                page = try await requests.requests.call(
                    HTTPRequest("GET", try reference.storage.endpoint.adding("after=\(last)", to: url)), [200, 409],
                    retryTime: reference.storage.maxUploadRetryTime
                ) { response -> JSONValue?? in
                    if response.status == 409 { return .some(nil) }
                    guard let page = try? JSONReader.parse(response.body), page["parts"]?.elements != nil else {
                        return nil
                    }
                    return page
                }
            } catch {
                if error.status == 404, error.reason != .bucketNotFound { return nil }
                throw error
            }
            guard let page else {
                session.present = nil
                return session
            }
            for element in page["parts"]?.elements ?? [] {
                guard let number = element["part"]?.integer, let part = Part(element) else { continue }
                session.present?[Int(number)] = part
            }
            after = page["after"]?.integer
        }
        return session
    }

    /// Creates the object. A lost response is requested again.
    private func complete(_ session: Session, _ parts: [Sent], _ whole: CRC32C)
        async throws(StorageError) -> StorageMetadata
    {
        var request = HTTPRequest("POST", session.url)
        if session.present != nil {
            request.fields = [("Content-Type", "application/json")]
            request.body = PartsUpload.list(parts)
        }
        var retries = Retries(reference.storage.maxUploadRetryTime)
        while true {
            switch try await requests.requests.attempt(request, &retries) {
            case .failure(let failure): try await retries.failed(failure, control)
            case .response(let response):
                if retries.hasFailed {
                    let isGone = Requests.error(response).hasProblem("upload-not-found")
                    let stored =
                        isGone ? try await requests.stored(whole) : try await requests.storedBefore(response, whole)
                    if let stored { return stored }
                }
                if let stored = try requests.accept(response, whole) { return stored }
                try await retries.failed(Failure(error: Requests.malformed), control)
            }
        }
    }

    /// The body of the request that creates the object.
    private static func list(_ parts: [Sent]) -> [UInt8] {
        var json = JSONWriter(reserving: 64 * parts.count + 16)
        json.beginObject()
        json.key("parts")
        json.beginArray()
        for part in parts {
            json.beginObject()
            json.member("part", Int64(part.number))
            json.member("etag", part.etag)
            json.endObject()
        }
        json.endArray()
        json.endObject()
        return json.bytes
    }

    // MARK: Parts

    /// Sends all parts that the gateway does not have, in as many slots as are free. After a failure no further parts begin.
    /// - Returns: All parts in order.
    private func send(_ session: Session, _ onProgress: (Int64, Int64) -> Void) async throws(StorageError) -> [Sent] {
        let count = Int((size + session.partSize - 1) / session.partSize)
        typealias Outcome = Result<Sent, StorageError>
        let result: Result<[Sent], StorageError> = await withTaskGroup(of: Outcome.self) { group in
            var (next, running) = (1, 0)
            var (done, present): (Int64, Int64) = (0, 0)
            var parts: [Sent] = []
            var failure: StorageError?
            onProgress(0, 0)
            while true {
                // The first one has the caller's slot.
                while failure == nil, next <= count, running == 0 || slots.tryAcquire() {
                    let number = next
                    group.addTask(executorPreference: Workers.shared) {
                        do throws(StorageError) {
                            return .success(try await send(number, session))
                        } catch {
                            return .failure(error)
                        }
                    }
                    next += 1
                    running += 1
                }
                guard let outcome = await group.next() else { break }
                running -= 1
                if running > 0 { slots.release() }
                switch outcome {
                case .success(let part):
                    parts.append(part)
                    done += Int64(part.sum.count)
                    if part.isEarlier { present += Int64(part.sum.count) }
                    onProgress(done, present)
                case .failure(let error): failure = failure ?? error
                }
            }
            if let failure { return .failure(failure) }
            return .success(parts.sorted { $0.number < $1.number })
        }
        return try result.get()
    }

    /// Sends a part, unless the gateway has it.
    private func send(_ number: Int, _ session: Session) async throws(StorageError) -> Sent {
        let start = Int64(number - 1) * session.partSize
        let range = start..<min(size, start + session.partSize)
        let known = session.present?[number]
        let (sum, md5) = try checksums(range, known)
        guard session.present != nil else { return Sent(number: number, sum: sum, etag: "", isEarlier: true) }
        if let known, known.size == Int64(sum.count), known.crc32c.map({ $0 == sum.base64 }) ?? (known.etag == md5) {
            return Sent(number: number, sum: sum, etag: known.etag, isEarlier: true)
        }
        var request = HTTPRequest("PUT", try reference.storage.endpoint.adding("part=\(number)", to: session.url))
        request.fields = [("Content-Digest", "crc32c=:\(sum.base64):")]
        request.fileBody = FileRange(file: file, range: range)
        var retries = Retries(reference.storage.maxUploadRetryTime)
        while true {
            switch try await requests.requests.attempt(request, &retries) {
            case .failure(let failure): try await retries.failed(failure, control)
            case .response(let response):
                let error: StorageError
                if response.status == 200 {
                    if let kept = (try? JSONReader.parse(response.body)).flatMap({ Part($0) }) {
                        if kept.size == Int64(sum.count), kept.crc32c ?? sum.base64 == sum.base64 {
                            return Sent(number: number, sum: sum, etag: kept.etag)
                        }
                        error = StorageError(
                            .nonMatchingChecksum, "The gateway has other bytes than those that were sent.")
                    } else {
                        error = Requests.malformed
                    }
                } else {
                    error = Requests.error(response)
                    // Unless the part was damaged in transit.
                    if error.reason != .nonMatchingChecksum { throw error }
                    try file.check()
                }
                try await retries.failed(Failure(error: error), control)
            }
        }
    }

    /// The CRC-32C of a part, and its MD5 in hexadecimal if that is all the gateway knows of a part that it has.
    private func checksums(_ range: Range<Int64>, _ known: Part?) throws(StorageError) -> (CRC32C, md5: String?) {
        var sum = CRC32C()
        var md5 = known.flatMap { $0.crc32c == nil && $0.size == Int64(range.count) ? MD5() : nil }
        var start = range.lowerBound
        while start < range.upperBound {
            if control.isCancelled { throw .cancelled }
            let bytes = try file.read(start..<min(range.upperBound, start + PartsUpload.readSize))
            sum.update(bytes)
            md5?.update(bytes)
            start += Int64(bytes.count)
        }
        return (sum, md5.flatMap { Base64.decode(Array($0.base64().utf8)[...]) }.map(Hexadecimal.encode))
    }
}
