import HTTPClient
import System
import Wire

/// Sends a buffered file as a part of a multipart upload, with retries. Confined to its loop.
final class S3Part {
    private static let attempts = 4
    /// The maximum first delay between attempts: 100 ms. It doubles each time.
    private static let retryDelay: UInt64 = 100_000_000
    /// The bytes read at a time: 32 KiB.
    private static let step = 32 * 1024

    private let bucket: S3Bucket
    private let target: String
    private let spool: Spool
    private var body: S3Body?
    private var isGivenUp = false
    private(set) var isUploadGone = false
    /// The number of requests so far.
    private(set) var requests = 0

    /// - Parameter target: With the part's number and the upload's id.
    init(_ bucket: S3Bucket, _ target: String, _ spool: Spool) {
        self.bucket = bucket
        self.target = target
        self.spool = spool
    }

    /// Sends all bytes of the file, and returns the part's entity tag.
    func send() async throws(BucketError) -> String {
        var attempt = 1
        while true {
            do throws(BucketError) {
                requests += 1
                let body = try await bucket.stream("PUT", target, HeaderFields(), length: spool.count)
                self.body = body
                defer { self.body = nil }
                if isGivenUp { body.cancel() }
                try await copy(to: body)
                let response = try await body.response()
                let failure = S3ErrorResponse(response)
                if response.status >= 500 || failure.isRejection || response.status == 429
                    || body.isSignedAnew, attempt < S3Part.attempts
                {
                    throw failure.error("upload")
                }
                isUploadGone = response.status == 404 && failure.code == "NoSuchUpload"
                return try S3Part.tag(of: response)
            } catch {
                guard !isGivenUp, error.isRetryable, error.code != .insufficientStorage,
                    !isUploadGone, attempt < S3Part.attempts
                else { throw error }
            }
            await sleep(.random(in: 0...(S3Part.retryDelay << UInt64(attempt - 1))))
            attempt += 1
        }
    }

    func cancel() {
        isGivenUp = true
        body?.cancel()
    }

    static func tag(of response: CollectedResponse) throws(BucketError) -> String {
        guard (200...299).contains(response.status), S3ErrorResponse.code(in: response.body) == nil,
            let etag = S3Head(response.fields).etag
        else { throw S3ErrorResponse(response).error("upload of a part") }
        return etag
    }

    private func copy(to body: S3Body) async throws(BucketError) {
        var offset: UInt64 = 0
        while offset < spool.count {
            // Read nothing before the last bytes were taken, so that a request holds one chunk.
            do { try await body.drain() } catch {
                // The response has the cause.
                return
            }
            let (start, spool) = (offset, spool)
            let bytes: [UInt8]
            do throws(BucketError) {
                bytes = try await bucket.pool.run { () throws(BucketError) in
                    try spool.read(at: start, limit: S3Part.step)
                }
            } catch {
                body.cancel()
                throw error
            }
            do { try await body.writeAll(bytes) } catch { return }
            offset += UInt64(bytes.count)
        }
    }
}

private func sleep(_ nanoseconds: UInt64) async {
    guard let loop = EventLoop.current else { return }
    var timer: LoopTimer?
    await withCheckedContinuation { waiter in
        let armed = LoopTimer { waiter.resume() }
        timer = armed
        loop.arm(armed, after: nanoseconds)
    }
    _ = timer
}
