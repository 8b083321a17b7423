import CCurl
import Glibc
import System
import Wire

/// A request that libcurl executes.
///
/// Safety: confined to its loop. Jobs for a later turn only pass the reference back to it.
final class CurlTransfer: Transfer, @unchecked Sendable {
    let easy: UnsafeMutableRawPointer
    let request: ClientRequest
    /// nil once the transfer has ended, which breaks the cycle: delegate, response, body, transfer.
    private var delegate: (any TransferDelegate)?
    unowned let transport: CurlTransport
    private let statistics: UpstreamStatistics
    private let loop: EventLoop
    private var head = CurlHead()
    /// How often libcurl has started to send the request.
    private var sendings = 0
    /// The number of bytes sent of ``RequestBody/bytes(_:)``.
    private var sent = 0
    private var isHeadDelivered = false
    private var received: [UInt8] = []
    private var used = 0
    /// The number of body bytes received so far.
    private var receivedBytes: UInt64 = 0
    private var pauses = CurlPauses()
    private var isChanged = false
    private var result: CURLcode?
    /// The buffer for libcurl's error message.
    let words = UnsafeMutablePointer<CChar>.allocate(capacity: Int(CURL_ERROR_SIZE))
    var lines: UnsafeMutablePointer<curl_slist>?
    private var resume: (() -> Void)?
    private var isReleased = false
    private var failure: ClientError?
    private var timer: LoopTimer?
    private var progress: CurlProgress

    init(
        _ easy: UnsafeMutableRawPointer, _ request: ClientRequest,
        _ delegate: any TransferDelegate, _ transport: CurlTransport
    ) {
        self.easy = easy
        self.request = request
        self.delegate = delegate
        self.transport = transport
        loop = transport.loop
        statistics = transport.statistics
        let hasBody =
            switch request.body {
            case .none: false
            case .bytes(let bytes): !bytes.isEmpty
            case .pipe(let pipe): pipe.length > 0
            }
        progress = CurlProgress(hasBody: hasBody, waitLimit: request.waitLimit, now: EventLoop.monotonicNow())
        transport.statistics.alive.add(1, ordering: .relaxed)
        words.pointee = 0
        setUp()
        if case .pipe(let pipe) = request.body {
            pipe.onWritten = { [weak self] in
                if let self, pauses.isSendPaused { changed() }
            }
        }
        timer = LoopTimer { [unowned self] in checkProgress() }
        armTimer()
    }

    deinit {
        words.deallocate()
        statistics.alive.subtract(1, ordering: .relaxed)
    }

    // MARK: libcurl's callbacks, which move bytes and record events for act()

    func takeHeader(_ line: UnsafeBufferPointer<UInt8>) -> Bool {
        guard head.take(line) else {
            failure = ClientError(.malformed, "the response's head exceeds a limit", mayHaveReached: true)
            return false
        }
        if head.isComplete { changed() }
        return true
    }

    func takeBody(_ bytes: UnsafeRawBufferPointer) -> Int {
        changed()
        guard pauses.receive(buffered: buffered) else { return Int(CURL_WRITEFUNC_PAUSE) }
        if used >= CurlPauses.bufferLimit / 2 {
            // Otherwise a slow reader would keep all bytes in memory.
            received.removeSubrange(..<used)
            used = 0
        }
        received.append(contentsOf: bytes)
        receivedBytes += UInt64(bytes.count)
        return bytes.count
    }

    func giveBody(_ buffer: UnsafeMutableRawBufferPointer) -> Int {
        switch request.body {
        case .none: return 0
        case .bytes(let bytes):
            let count = min(buffer.count, bytes.count - sent)
            bytes.withUnsafeBytes {
                buffer.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[sent..<sent + count]))
            }
            sent += count
            gave(count, isLast: sent == bytes.count)
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
                pauses.sourceIsEmpty()
                progress.sourceIsEmpty(EventLoop.monotonicNow())
                return Int(CURL_READFUNC_PAUSE)
            }
            gave(count, isLast: pipe.isExhausted)
            return count
        }
    }

    private func gave(_ count: Int, isLast: Bool) {
        progress.sent(
            count, isLast: isLast, received: receivedBytes, transport.settings,
            EventLoop.monotonicNow())
    }

    /// Whether libcurl may send the request on a ready connection. libcurl asks again before it repeats a request whose
    /// reused connection ended without a response. The upstream may still have executed it, so only a read may be
    /// repeated here, once; ``Upstream`` decides about others.
    func maySend() -> Bool {
        sendings += 1
        if sendings == 1 || sendings == 2 && request.isRead && request.isRepeatable { return true }
        failure = closedEarly
        return false
    }

    private var closedEarly: ClientError {
        ClientError(
            .connectionLost, "\(transport.settings.name): the connection was closed before the response",
            mayHaveReached: true)
    }

    private func changed() {
        if isChanged || isReleased { return }
        isChanged = true
        transport.markChanged(self)
    }

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
        var canSend = false
        if case .pipe(let pipe) = request.body {
            pipe.wakeWriter()
            canSend = pipe.waitingCount > 0 || pipe.interruption != nil
        }
        if pauses.resume(buffered: buffered, canSend: canSend) {
            curl_easy_pause(easy, pauses.isReceivePaused ? CURLPAUSE_RECV : CURLPAUSE_CONT)
        }
        if let result { end(result) }
        if buffered > 0 || isReleased { wake() }
    }

    /// The number of body bytes that wait for the reader.
    private var buffered: Int { received.count - used }

    private func deliverHead() {
        isHeadDelivered = true
        progress.headDelivered(received: receivedBytes, EventLoop.monotonicNow())
        var length: UInt64?
        var value: curl_off_t = -1
        if sluice_easy_get_offset(easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &value) == CURLE_OK,
            value >= 0
        {
            length = UInt64(value)
        }
        delegate?.received(
            ClientResponse(
                status: head.status, fields: head.fields, contentLength: length,
                body: CurlBody(self)))
    }

    private func end(_ code: CURLcode) {
        if code != CURLE_OK {
            failure = failure ?? error(code)
        } else if failure == nil, !isHeadDelivered {
            failure = ClientError(
                .malformed, "the response has no head", mayHaveReached: true)
        }
        ended()
    }

    /// Releases everything that the transfer holds and reports its end.
    private func ended() {
        release()
        let delegate = self.delegate.take()
        if let failure, !isHeadDelivered { delegate?.failed(failure) }
        delegate?.ended(failure)
    }

    private func error(_ code: CURLcode) -> ClientError {
        // libcurl wanted to send the body again.
        if code == CURLE_SEND_FAIL_REWIND { return closedEarly }
        let name = transport.settings.name
        var reason = words.pointee == 0 ? String(cString: curl_easy_strerror(code)) : String(cString: words)
        if code == CURLE_SSL_CONNECT_ERROR, reason.contains("wrong version number") {
            reason =
                "the port does not speak TLS: use an http:// address where that is meant (\(reason))"
        }
        var requestBytes = 0
        sluice_easy_get_long(easy, CURLINFO_REQUEST_SIZE, &requestBytes)
        // A request to a proxy counts as bytes too, but does not reach the upstream.
        let mayHaveReached = sendings > 0 && (requestBytes > 0 || sendings > 1)
        let kind: ClientError.Code =
            switch code {
            case _ where transport.proxy != nil && sendings == 0 && code != CURLE_OPERATION_TIMEDOUT: .unreachable
            case CURLE_OPERATION_TIMEDOUT: .timedOut
            case CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_CONNECT, CURLE_SSL_CONNECT_ERROR,
                CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CERTPROBLEM, CURLE_SSL_CACERT_BADFILE, CURLE_SSL_CRL_BADFILE:
                .unreachable
            case CURLE_WEIRD_SERVER_REPLY, CURLE_UNSUPPORTED_PROTOCOL, CURLE_BAD_CONTENT_ENCODING: .malformed
            default: .connectionLost
            }
        var error = ClientError(kind, "\(name): \(reason)", mayHaveReached: mayHaveReached)
        error.isUntrusted = code == CURLE_PEER_FAILED_VERIFICATION
        return error
    }

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
        loop.assertCurrent()
        guard !isReleased else { return }
        failure =
            failure
            ?? ClientError(.cancelled, "the request was given up", mayHaveReached: true)
        ended()
        wake()
    }

    // MARK: Time

    private func armTimer() {
        guard let timer else { return }
        let now = EventLoop.monotonicNow()
        let due = progress.deadline(transport.settings, now)
        loop.arm(timer, after: due > now ? due - now : 1)
    }

    /// Whether the transfer waits for the upstream, not for the reader.
    private var isUpstreamsTurn: Bool {
        if pauses.isReceivePaused || buffered > 0 { return false }
        return !isHeadDelivered || resume != nil
    }

    private func checkProgress() {
        let settings = transport.settings
        let verdict = progress.check(
            received: receivedBytes, isUpstreamsTurn: isUpstreamsTurn, settings, EventLoop.monotonicNow())
        switch verdict {
        case .inTime: armTimer()
        case .sendTimedOut: giveUp("it takes no more of the request")
        case .receiveTimedOut: giveUp("nothing came for \(progress.limit(settings) / 1_000_000_000) s")
        }
    }

    /// The loop can't watch the transfer's socket.
    func unwatchable(_ error: SystemError) {
        failure = ClientError(.unreachable, "\(transport.settings.name): \(error)", mayHaveReached: sendings > 0)
        finished(CURLE_COULDNT_CONNECT)
    }

    private func giveUp(_ cause: String) {
        failure = ClientError(.timedOut, "\(transport.settings.name): \(cause)", mayHaveReached: true)
        end(CURLE_OPERATION_TIMEDOUT)
        wake()
    }

    // MARK: The body's reader

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        loop.assertCurrent()
        if buffered > 0 {
            let count = min(buffer.byteCount, buffered)
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
            if pauses.isReceivePaused { changed() }
            return .bytes(count)
        }
        if let failure { throw failure }
        if isReleased { return .end }
        return .wait
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        loop.assertCurrent()
        progress.restart(received: receivedBytes, EventLoop.monotonicNow())
        self.resume = resume
        if buffered > 0 || isReleased {
            loop.execute { [self] in wake() }
        }
    }

    private func wake() { resume.take()?() }

    /// The reader has dropped the body, perhaps on another thread.
    func dropped() {
        if loop.isCurrent { closeBody() } else { loop.execute { self.closeBody() } }
    }

    func closeBody() {
        loop.assertCurrent()
        resume = nil
        received = []
        used = 0
        cancel()
    }
}
