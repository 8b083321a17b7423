import CCurl
import EventLoop
import Glibc
import Wire

/// One request in libcurl's hands.
///
/// Safety: confined to its loop; a job for a later turn carries the reference back to it.
final class CurlTransfer: Transfer, @unchecked Sendable {
    /// Bytes of a body that wait for their reader before libcurl is asked to pause: with what it gives at once, 64 KiB.
    static let bodyLimit = 48 * 1024
    /// Bytes that libcurl reads at once: a TLS record has no more.
    private static let readSize = 16 * 1024

    private let easy: UnsafeMutableRawPointer
    private let request: ClientRequest
    private let delegate: any TransferDelegate
    private unowned let transport: CurlTransport
    private let loop: EventLoop
    private var head = CurlHead()
    /// How much of a body of ``RequestBody/bytes(_:)`` was sent.
    private var sent = 0
    private var isHeadDelivered = false
    private var received: [UInt8] = []
    private var used = 0
    /// Bytes of the response's body that came so far.
    private var receivedBytes: UInt64 = 0
    private var isReceivePaused = false
    private var isSendPaused = false
    private var isChanged = false
    private var result: CURLcode?
    /// Where libcurl writes what went wrong, in words.
    private let words = UnsafeMutablePointer<CChar>.allocate(capacity: Int(CURL_ERROR_SIZE))
    private var lines: UnsafeMutablePointer<curl_slist>?
    private var resume: (() -> Void)?
    /// Set at the end, once.
    private var isReleased = false
    private var failure: ClientError?
    private var timer: LoopTimer?
    private var mark: (bytes: UInt64, time: UInt64) = (0, 0)
    /// How long the upstream has let the request's body wait.
    private var sendClock = ProgressClock()

    init(
        _ easy: UnsafeMutableRawPointer, _ request: ClientRequest,
        _ delegate: any TransferDelegate, _ transport: CurlTransport
    ) {
        self.easy = easy
        self.request = request
        self.delegate = delegate
        self.transport = transport
        loop = transport.loop
        words.pointee = 0
        setUp()
        if case .pipe(let pipe) = request.body {
            pipe.onWritten = { [weak self] in
                if let self, isSendPaused { changed() }
            }
        }
        mark = (0, EventLoop.monotonicNow())
        sendClock.start(mark.time)
        timer = LoopTimer { [unowned self] in checkProgress() }
        armTimer()
    }

    deinit { words.deallocate() }

    // MARK: Options

    private func setUp() {
        let settings = transport.settings
        let this = Unmanaged.passUnretained(self).toOpaque()
        func set(_ option: CURLoption, _ value: Int) { sluice_easy_long(easy, option, value) }
        func set(_ option: CURLoption, _ text: String?) {
            if let text { sluice_easy_string(easy, option, text) }
        }
        curl_easy_reset(easy)
        set(CURLOPT_URL, "\(settings.origin)\(request.target)")
        set(CURLOPT_PROTOCOLS_STR, settings.origin.scheme.rawValue)
        set(CURLOPT_PROXY, "")
        set(CURLOPT_PATH_AS_IS, 1)
        set(CURLOPT_NOSIGNAL, 1)
        set(CURLOPT_FOLLOWLOCATION, 0)
        set(CURLOPT_BUFFERSIZE, CurlTransfer.readSize)
        set(CURLOPT_TCP_KEEPALIVE, 1)
        set(CURLOPT_CONNECTTIMEOUT_MS, Int(settings.connectTimeout / 1_000_000))
        set(CURLOPT_MAXAGE_CONN, Int(max(1, settings.idleTimeout / 1_000_000_000)))
        let version = request.isBulk ? CURL_HTTP_VERSION_1_1 : CURL_HTTP_VERSION_2TLS
        set(CURLOPT_HTTP_VERSION, Int(version))
        // In clear text only a response would tell that a connection can't be shared: whoever waits for one, waits for
        // the end of another's upload.
        if !request.isBulk, settings.origin.scheme == .https { set(CURLOPT_PIPEWAIT, 1) }
        set(CURLOPT_SSLVERSION, Int(CURL_SSLVERSION_TLSv1_2))
        set(CURLOPT_CAINFO, settings.certificateAuthorities)
        set(CURLOPT_SSLCERT, settings.clientCertificate)
        set(CURLOPT_SSLKEY, settings.clientKey)
        sluice_easy_pointer(easy, CURLOPT_ERRORBUFFER, words)
        sluice_easy_pointer(easy, CURLOPT_HEADERDATA, this)
        sluice_easy_pointer(easy, CURLOPT_WRITEDATA, this)
        sluice_easy_data(easy, CURLOPT_HEADERFUNCTION) { bytes, size, count, this in
            let line = UnsafeBufferPointer(
                start: UnsafeRawPointer(bytes)?.assumingMemoryBound(to: UInt8.self),
                count: size * count)
            return CurlTransfer.from(this).takeHeader(line) ? line.count : 0
        }
        sluice_easy_data(easy, CURLOPT_WRITEFUNCTION) { bytes, size, count, this in
            CurlTransfer.from(this).takeBody(
                UnsafeRawBufferPointer(start: bytes, count: size * count))
        }
        // libcurl sends a request without a body again by itself where a connection at rest turns out to be closed.
        if case .none = request.body, !request.isRepeatable { set(CURLOPT_FRESH_CONNECT, 1) }
        setBody(this)
        setFields()
    }

    private func setBody(_ this: UnsafeMutableRawPointer) {
        let length: UInt64?
        switch request.body {
        case .none: length = nil
        case .bytes(let bytes): length = UInt64(bytes.count)
        case .pipe(let pipe): length = pipe.length
        }
        if request.isHead {
            sluice_easy_long(easy, CURLOPT_NOBODY, 1)
        } else if let length {
            sluice_easy_long(easy, CURLOPT_UPLOAD, 1)
            sluice_easy_offset(easy, CURLOPT_INFILESIZE_LARGE, curl_off_t(length))
            sluice_easy_pointer(easy, CURLOPT_READDATA, this)
            sluice_easy_data(easy, CURLOPT_READFUNCTION) { buffer, size, count, this in
                CurlTransfer.from(this).giveBody(
                    UnsafeMutableRawBufferPointer(start: buffer, count: size * count))
            }
            sluice_easy_seek(easy) { this, offset, origin in
                CurlTransfer.from(this).rewind(to: offset, origin)
            }
            sluice_easy_pointer(easy, CURLOPT_SEEKDATA, this)
        }
        if !request.isHead { sluice_easy_string(easy, CURLOPT_CUSTOMREQUEST, "\(request.method)") }
    }

    private func setFields() {
        // What libcurl would add of its own is taken away.
        for line in ["Accept:", "Expect:", "Transfer-Encoding:"] {
            lines = curl_slist_append(lines, line)
        }
        request.fields.read { fields in
            while let (name, value) = fields.next() {
                let name = String(decoding: name, as: UTF8.self)
                let value = String(decoding: value, as: UTF8.self)
                lines = curl_slist_append(lines, value.isEmpty ? "\(name);" : "\(name): \(value)")
            }
        }
        if !request.fields.contains("user-agent") {
            lines = curl_slist_append(lines, "User-Agent: sluice")
        }
        sluice_easy_pointer(easy, CURLOPT_HTTPHEADER, lines)
    }

    private static func from(_ pointer: UnsafeMutableRawPointer?) -> CurlTransfer {
        Unmanaged<CurlTransfer>.fromOpaque(pointer!).takeUnretainedValue()
    }

    // MARK: libcurl's callbacks: they only record

    private func takeHeader(_ line: UnsafeBufferPointer<UInt8>) -> Bool {
        guard head.take(line) else {
            failure = ClientError(
                .malformed, "the response's head exceeds a limit", mayHaveReached: true)
            return false
        }
        if head.isComplete { changed() }
        return true
    }

    private func takeBody(_ bytes: UnsafeRawBufferPointer) -> Int {
        changed()
        if received.count - used >= CurlTransfer.bodyLimit {
            isReceivePaused = true
            return Int(CURL_WRITEFUNC_PAUSE)
        }
        if used >= CurlTransfer.bodyLimit / 2 {
            // A reader that never quite catches up would have all that it has read kept for it.
            received.removeSubrange(..<used)
            used = 0
        }
        received.append(contentsOf: bytes)
        receivedBytes += UInt64(bytes.count)
        return bytes.count
    }

    private func giveBody(_ buffer: UnsafeMutableRawBufferPointer) -> Int {
        switch request.body {
        case .none: return 0
        case .bytes(let bytes):
            let count = min(buffer.count, bytes.count - sent)
            bytes.withUnsafeBytes {
                buffer.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[sent..<sent + count]))
            }
            sent += count
            gave(count)
            return count
        case .pipe(let pipe):
            if pipe.interruption != nil { return Int(CURL_READFUNC_ABORT) }
            var count = 0
            pipe.take { waiting in
                count = min(buffer.count, waiting.count)
                buffer.copyMemory(from: UnsafeRawBufferPointer(rebasing: waiting[..<count]))
                return count
            }
            changed()
            if count == 0, !pipe.isExhausted {
                isSendPaused = true
                sendClock.stop(EventLoop.monotonicNow())
                return Int(CURL_READFUNC_PAUSE)
            }
            gave(count)
            return count
        }
    }

    /// libcurl comes back for more when the upstream has taken these bytes; after the last the answer is waited for.
    private func gave(_ count: Int) {
        let now = EventLoop.monotonicNow()
        sendClock.start(now)
        sendClock.moved(count, of: transport.settings.progressBytes, now)
        if !isSending { restartProgress() }
    }

    /// Whether bytes of the request's body are still to be given to libcurl.
    private var isSending: Bool {
        switch request.body {
        case .none: false
        case .bytes(let bytes): sent < bytes.count
        case .pipe(let pipe): !pipe.isExhausted
        }
    }

    /// libcurl begins anew on another connection: by itself, where one that had been at rest died under the request.
    private func rewind(to offset: curl_off_t, _ origin: Int32) -> Int32 {
        guard offset == 0, origin == SEEK_SET, request.isRepeatable else {
            return CURL_SEEKFUNC_FAIL
        }
        switch request.body {
        case .none: return CURL_SEEKFUNC_OK
        case .bytes:
            sent = 0
            return CURL_SEEKFUNC_OK
        case .pipe(let pipe): return pipe.sent == 0 ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL
        }
    }

    private func changed() {
        if isChanged || isReleased { return }
        isChanged = true
        transport.markChanged(self)
    }

    /// libcurl is done with it.
    func finished(_ code: CURLcode) {
        result = code
        changed()
    }

    // MARK: Acting, at the end of the batch

    func act() {
        isChanged = false
        if isReleased { return }
        if head.isComplete, !isHeadDelivered, failure == nil { deliverHead() }
        if isReleased { return }
        if case .pipe(let pipe) = request.body {
            pipe.wakeWriter()
            if isSendPaused, pipe.waitingCount > 0 || pipe.interruption != nil { unpause() }
        }
        if isReceivePaused, received.count - used < CurlTransfer.bodyLimit / 2 { unpause() }
        if let result { end(result) }
        if used < received.count || isReleased { wake() }
    }

    private func unpause() {
        let held = (isReceivePaused, isSendPaused)
        isReceivePaused = isReceivePaused && received.count - used >= CurlTransfer.bodyLimit / 2
        isSendPaused = false
        if held != (isReceivePaused, isSendPaused) {
            curl_easy_pause(easy, isReceivePaused ? CURLPAUSE_RECV : CURLPAUSE_CONT)
        }
    }

    private func deliverHead() {
        isHeadDelivered = true
        restartProgress()
        var length: UInt64?
        var value: curl_off_t = -1
        if sluice_easy_get_offset(easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &value) == CURLE_OK,
            value >= 0
        {
            length = UInt64(value)
        }
        delegate.received(
            ClientResponse(
                status: head.status, fields: head.fields, contentLength: length,
                body: CurlBody(self)))
    }

    private func end(_ code: CURLcode) {
        if code != CURLE_OK || failure != nil {
            let error = failure ?? self.error(code)
            failure = error
            release()
            if !isHeadDelivered { delegate.failed(error) }
        } else if !isHeadDelivered {
            failure = ClientError(.malformed, "the response has no head", mayHaveReached: true)
            release()
            delegate.failed(failure!)
        } else {
            release()
        }
        delegate.ended()
    }

    private func error(_ code: CURLcode) -> ClientError {
        let name = transport.settings.name
        let reason =
            words.pointee == 0 ? String(cString: curl_easy_strerror(code)) : String(cString: words)
        var requestBytes = 0
        sluice_easy_get_long(easy, CURLINFO_REQUEST_SIZE, &requestBytes)
        let mayHaveReached = requestBytes > 0
        let kind: ClientError.Code =
            switch code {
            case CURLE_OPERATION_TIMEDOUT: .timedOut
            case CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_CONNECT, CURLE_SSL_CONNECT_ERROR,
                CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CERTPROBLEM, CURLE_SSL_CACERT_BADFILE:
                .unreachable
            case CURLE_WEIRD_SERVER_REPLY, CURLE_UNSUPPORTED_PROTOCOL, CURLE_BAD_CONTENT_ENCODING:
                .malformed
            default: .connectionLost
            }
        return ClientError(kind, "\(name): \(reason)", mayHaveReached: mayHaveReached)
    }

    /// libcurl holds nothing of it from here on.
    private func release() {
        guard !isReleased else { return }
        isReleased = true
        if let timer { loop.disarm(timer) }
        timer = nil
        transport.release(easy)
        curl_slist_free_all(lines)
        lines = nil
        if case .pipe(let pipe) = request.body { pipe.onWritten = nil }
    }

    func cancel() {
        guard !isReleased else { return }
        let error = ClientError(
            .cancelled, "the request was given up", mayHaveReached: true)
        failure = failure ?? error
        release()
        if !isHeadDelivered { delegate.failed(error) }
        delegate.ended()
        wake()
    }

    // MARK: Time

    private func restartProgress() { mark = (receivedBytes, EventLoop.monotonicNow()) }

    private var timeLimit: UInt64 {
        let settings = transport.settings
        return max(
            request.patience ?? 0,
            isHeadDelivered || isSending ? settings.progressTimeout : settings.firstByteTimeout)
    }

    private func armTimer() {
        guard let timer else { return }
        let now = EventLoop.monotonicNow()
        var due = mark.time &+ timeLimit
        if !isHeadDelivered, isSending {
            // Where it is not the upstream's turn now it may be soon.
            due = min(sendClock.deadline(timeLimit), now &+ timeLimit)
        }
        loop.arm(timer, after: due > now ? due - now : 1)
    }

    /// Whether something waits for the upstream and not for us.
    private var isUpstreamsTurn: Bool {
        if isReceivePaused || used < received.count { return false }
        return !isHeadDelivered || resume != nil
    }

    private func checkProgress() {
        let settings = transport.settings
        let now = EventLoop.monotonicNow()
        if !isHeadDelivered, isSending {
            if now < sendClock.deadline(timeLimit) { return armTimer() }
            return giveUp("it takes no more of the request")
        }
        guard now >= mark.time &+ timeLimit else { return armTimer() }
        let enough = isHeadDelivered && request.patience == nil ? settings.progressBytes : 1
        let isSlow = receivedBytes - mark.bytes < enough
        if isUpstreamsTurn, isSlow {
            return giveUp("nothing came for \(timeLimit / 1_000_000_000) s")
        }
        restartProgress()
        armTimer()
    }

    private func giveUp(_ cause: String) {
        failure = ClientError(
            .timedOut, "\(transport.settings.name): \(cause)", mayHaveReached: true)
        end(CURLE_OPERATION_TIMEDOUT)
        wake()
    }

    // MARK: The body's reader

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        if used < received.count {
            let count = min(buffer.byteCount, received.count - used)
            if count == 0 { return .wait }
            buffer.withUnsafeMutableBytes { target in
                received.withUnsafeBytes {
                    target.copyMemory(from: .init(rebasing: $0[used..<used + count]))
                }
            }
            used += count
            if used == received.count {
                received.removeAll(keepingCapacity: !isReleased)
                used = 0
            }
            if isReceivePaused { changed() }
            return .bytes(count)
        }
        if let failure { throw failure }
        if isReleased { return .end }
        return .wait
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        restartProgress()
        self.resume = resume
        if used < received.count || isReleased {
            loop.execute { [self] in wake() }
        }
    }

    private func wake() {
        guard let resume else { return }
        self.resume = nil
        resume()
    }

    func closeBody() {
        resume = nil
        received = []
        used = 0
        cancel()
    }
}

/// The body of a response in libcurl's hands.
private final class CurlBody: ByteSource {
    private let transfer: CurlTransfer

    init(_ transfer: CurlTransfer) { self.transfer = transfer }

    deinit { transfer.closeBody() }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        try transfer.read(into: &buffer)
    }

    func whenReadable(_ resume: @escaping () -> Void) { transfer.whenReadable(resume) }

    func close() { transfer.closeBody() }
}
