import COpenSSL
import Glibc

/// The client side of TLS on a non-blocking socket, whose readiness the caller reports. Confined to one loop.
///
/// Reads go from the socket directly into OpenSSL's buffer. If the socket does not accept a whole record, the rest is
/// buffered here, so OpenSSL never waits for the socket and accepted bytes are never offered again. While a record is
/// buffered, ``canWrite`` is false.
public final class TLSClientSession {
    /// The result of a read.
    public enum Received: Equatable, Sendable {
        /// The number of bytes.
        case bytes(Int)
        /// Read again when the socket is readable.
        case wait
        /// The server closed the session properly, with close_notify.
        case closed
    }
    /// The maximum size of a record's content in bytes (RFC 8446, section 5.1).
    public static let recordBytes = 16 * 1024
    /// The maximum number of bytes buffered for the socket: a record, and responses to the server's messages.
    private static let maximumUnsent = 64 * 1024
    /// The maximum number of bytes without content that a server may send in a row, such as tickets and key updates.
    private static let maximumOverhead = 256 * 1024

    private let context: TLSClientContext
    private let pointer: OpaquePointer
    private let descriptor: Int32
    private var input: SocketInput
    private let offersHTTP2: Bool
    private var isWritable = false
    /// The flags of `send(2)`.
    private var sendFlags = Int32(MSG_NOSIGNAL)
    /// Whether a read may return something.
    public private(set) var canRead = false
    /// Whether OpenSSL must read before it can write.
    private var writeNeedsRead = false
    private var unsent: [UInt8] = []
    /// The error of sending; 0 for none.
    private var writeError: Int32 = 0
    /// The number of bytes received since the last content.
    private var overhead = 0
    /// How the session ended; nil while it is open.
    private var end: Result<Received, TLSError>?

    /// Begins a session on a connected socket, which the caller owns and keeps open until the session is released.
    /// - Parameter offersHTTP2: Whether ALPN offers `h2` before `http/1.1` (RFC 7301).
    /// - Throws: ``TLSError`` if memory is exhausted.
    public init(_ context: TLSClientContext, descriptor: Int32, offersHTTP2: Bool = false)
        throws(TLSError)
    {
        guard let new = SSL_new(context.pointer) else { throw TLSError("SSL_new") }
        self.context = context
        self.descriptor = descriptor
        input = SocketInput(descriptor, isReadable: false)
        self.offersHTTP2 = offersHTTP2
        pointer = new
        guard let socket = BIO_new(socketMethod) else { throw TLSError("BIO_new") }
        BIO_set_init(socket, 1)
        BIO_set_data(socket, Unmanaged.passUnretained(self).toOpaque())
        SSL_set_bio(pointer, socket, socket)
        SSL_set_connect_state(pointer)
        SSL_set_read_ahead(pointer, 1)
        if !context.isAddress, sluice_SSL_set_tlsext_host_name(pointer, context.host) != 1 {
            throw TLSError("the host name \(context.host)")
        }
        let protocols = Array((offersHTTP2 ? "\u{2}h2\u{8}http/1.1" : "\u{8}http/1.1").utf8)
        guard SSL_set_alpn_protos(pointer, protocols, UInt32(protocols.count)) == 0 else {
            throw TLSError("ALPN")
        }
        if let saved = context.session() {
            SSL_set_session(pointer, saved)
            SSL_SESSION_free(saved)
        }
    }

    deinit { SSL_free(pointer) }

    // MARK: The socket

    /// The socket's readiness has changed. Sends the kept bytes.
    public func socketIsReady(readable: Bool, writable: Bool, hangup: Bool) {
        if readable || hangup {
            input.isReady(hangup: hangup)
            canRead = true
            writeNeedsRead = false
        }
        if writable {
            isWritable = true
            flush()
        }
    }

    /// Receives into OpenSSL's buffer. Returns like `recv(2)`; nil if nothing has arrived yet.
    fileprivate func receive(_ buffer: UnsafeMutableRawPointer, _ size: Int) -> Int? {
        if overhead >= TLSClientSession.maximumOverhead { input.fail(EPROTO) }
        let count = input.receive(buffer, size)
        overhead += max(0, count ?? 0)
        return count
    }

    /// Sends a record and buffers what the socket does not accept. Returns false if the buffer is full.
    fileprivate func send(_ bytes: UnsafeRawBufferPointer) -> Bool {
        let sent = unsent.isEmpty ? transmit(bytes) : 0
        // Nothing can be sent any more. Reading reports why, after any bytes the server sent earlier.
        if writeError != 0 || sent == bytes.count { return true }
        guard unsent.count + bytes.count - sent <= TLSClientSession.maximumUnsent else {
            return false
        }
        unsent.append(contentsOf: bytes[sent...])
        return true
    }

    private func transmit(_ bytes: UnsafeRawBufferPointer) -> Int {
        while isWritable {
            let count = Glibc.send(descriptor, bytes.baseAddress, bytes.count, sendFlags)
            if count == bytes.count { return count }
            if count < 0, errno == EINTR { continue }
            isWritable = false
            if count >= 0 { return count }
            if errno != EAGAIN {
                writeError = errno
                canRead = true
                input.isReady(hangup: false)
            }
        }
        return 0
    }

    private func flush() {
        guard !unsent.isEmpty, writeError == 0 else { return }
        let sent = unsent.withUnsafeBytes { transmit($0) }
        if sent == unsent.count || writeError != 0 {
            unsent = []
        } else {
            unsent.removeSubrange(..<sent)
        }
    }

    /// The number of bytes buffered for the socket.
    public var unsentCount: Int { unsent.count }

    // MARK: The session

    /// Continues the handshake.
    /// - Returns: Whether it is complete; if not, call again when the socket is ready.
    /// - Throws: ``TLSError`` with a reason for the operator.
    public func handshake() throws(TLSError) -> Bool {
        clearErrors()
        let result = SSL_do_handshake(pointer)
        if result == 1 {
            guard hasRightProtocol else {
                throw TLSError(exactly: "the server chose a protocol that was not offered")
            }
            canRead = true
            overhead = 0
            return true
        }
        if SSL_get_error(pointer, result) == SSL_ERROR_WANT_READ { return false }
        throw handshakeFailure()
    }

    /// Whether the server chose an offered protocol, or none, which means HTTP/1.1.
    private var hasRightProtocol: Bool {
        let chosen = chosenProtocol
        return chosen.isEmpty || chosen.elementsEqual("http/1.1".utf8)
            || offersHTTP2 && isHTTP2
    }

    /// Whether the server chose HTTP/2. Valid after the handshake.
    public var isHTTP2: Bool { chosenProtocol.elementsEqual("h2".utf8) }

    private var chosenProtocol: UnsafeBufferPointer<UInt8> {
        var name: UnsafePointer<UInt8>?
        var length: UInt32 = 0
        SSL_get0_alpn_selected(pointer, &name, &length)
        return UnsafeBufferPointer(start: name, count: Int(length))
    }

    /// Whether the server's certificate was rejected.
    public var isUntrusted: Bool { SSL_get_verify_result(pointer) != Int(X509_V_OK) }

    private func handshakeFailure() -> TLSError {
        let verdict = SSL_get_verify_result(pointer)
        switch Int32(clamping: verdict) {
        case X509_V_OK: break
        case X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH:
            return TLSError(
                exactly: "SSL: no alternative certificate subject name matches target host name " + "'\(context.host)'")
        default:
            let reason = X509_verify_cert_error_string(verdict).map { String(cString: $0) }
            return TLSError(exactly: "SSL certificate problem: \(reason ?? "error \(verdict)")")
        }
        if sluice_is_not_tls() == 1 {
            return TLSError(
                exactly: "the port does not speak TLS: use an http:// address where that is meant "
                    + "(wrong version number)")
        }
        if input.hasEnded {
            return TLSError(exactly: "the connection was closed in the TLS handshake")
        }
        return failure("TLS handshake")
    }

    /// The error for a call that OpenSSL could not complete.
    private func failure(_ what: String) -> TLSError {
        if input.hasEnded { return TLSError(exactly: "\(what): there was no close_notify") }
        let code = input.error != 0 ? input.error : writeError
        guard code != 0 else { return TLSError(what) }
        return TLSError(exactly: "\(what): \(String(cString: strerror(code)))")
    }

    /// Decrypts available bytes into the start of `buffer`.
    /// - Throws: ``TLSError`` if the session failed. An end without close_notify is a failure, because an attacker
    ///   could have cut the connection (RFC 8446, section 6.1).
    public func read(into buffer: UnsafeMutableRawBufferPointer) throws(TLSError) -> Received {
        guard let start = buffer.baseAddress else { return .wait }
        var count = 0
        while end == nil && count < buffer.count && canRead {
            clearErrors()
            let result = SSL_read(pointer, start + count, Int32(clamping: buffer.count - count))
            if result > 0 {
                overhead = 0
                count += Int(result)
                canRead = input.isReadable || SSL_has_pending(pointer) == 1
            } else {
                stopped(result)
            }
        }
        if count > 0 { return .bytes(count) }
        return try end?.get() ?? .wait
    }

    /// Handles a read that returned no content.
    private func stopped(_ result: Int32) {
        switch SSL_get_error(pointer, result) {
        case SSL_ERROR_WANT_READ: canRead = false
        case SSL_ERROR_ZERO_RETURN: end = .success(.closed)
        default: end = .failure(failure("TLS"))
        }
    }

    /// Whether decrypted content has not been read. Records that are not decrypted yet do not count.
    public var hasContent: Bool { SSL_pending(pointer) > 0 }

    /// Processes TLS messages such as tickets. Reads from the kernel, regardless of what the loop has reported.
    /// - Returns: Whether there is no content to read, and neither the session nor the connection is closed.
    public func isQuiet() -> Bool {
        guard end == nil else { return false }
        input.isReady(hangup: false)
        var byte: UInt8 = 0
        clearErrors()
        let result = SSL_peek(pointer, &byte, 1)
        if result <= 0 { stopped(result) }
        return result <= 0 && end == nil
    }

    /// Whether ``write(_:isLast:)`` may accept bytes.
    public var canWrite: Bool { isWritable && unsent.isEmpty && !writeNeedsRead }

    /// Encrypts and sends a prefix of `bytes`, as one record.
    /// - Parameter isLast: Whether no record follows at once. Otherwise the kernel waits to fill a packet (`MSG_MORE`).
    /// - Returns: The number of bytes that were accepted, at most ``recordBytes``; 0 if none can be accepted yet.
    /// - Throws: ``TLSError`` if the connection has failed. What the server sent before can still be read.
    public func write(_ bytes: UnsafeRawBufferPointer, isLast: Bool) throws(TLSError) -> Int {
        guard canWrite, !bytes.isEmpty else { return 0 }
        let wanted = min(bytes.count, TLSClientSession.recordBytes)
        clearErrors()
        if !isLast { sendFlags |= Int32(MSG_MORE) }
        defer { sendFlags = Int32(MSG_NOSIGNAL) }
        let result = SSL_write(pointer, bytes.baseAddress, Int32(wanted))
        if writeError != 0 {
            throw TLSError(exactly: "send: \(String(cString: strerror(writeError)))")
        }
        if result > 0 { return Int(result) }
        guard SSL_get_error(pointer, result) == SSL_ERROR_WANT_READ else {
            throw failure("TLS")
        }
        writeNeedsRead = true
        return 0
    }

    /// Sends close_notify if the session is open, as far as the socket accepts it.
    public func shutdown() {
        guard SSL_in_init(pointer) == 0, writeError == 0, unsent.isEmpty else { return }
        if case .failure = end { return }
        clearErrors()
        SSL_shutdown(pointer)
        clearErrors()
    }
}

/// The method of a BIO that reads from and writes to the socket of its ``TLSClientSession``. OpenSSL's own would raise
/// SIGPIPE, read an empty socket, and make OpenSSL wait for the socket.
///
/// Safety: the method table is made once and never changed.
nonisolated(unsafe) private let socketMethod: OpaquePointer? = {
    let method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "TLSClientSession")
    BIO_meth_set_read(method) { bio, buffer, size in
        BIO_clear_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY)
        guard let owner = BIO_get_data(bio), let buffer, size > 0 else { return -1 }
        let session = Unmanaged<TLSClientSession>.fromOpaque(owner).takeUnretainedValue()
        if let count = session.receive(buffer, Int(size)) { return Int32(count) }
        BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY)
        return -1
    }
    BIO_meth_set_write(method) { bio, bytes, count in
        BIO_clear_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY)
        guard let owner = BIO_get_data(bio), count > 0 else { return -1 }
        let isTaken = Unmanaged<TLSClientSession>.fromOpaque(owner).takeUnretainedValue()
            .send(UnsafeRawBufferPointer(start: bytes, count: Int(count)))
        return isTaken ? count : -1
    }
    BIO_meth_set_ctrl(method) { _, command, _, _ in command == BIO_CTRL_FLUSH ? 1 : 0 }
    return method
}()
