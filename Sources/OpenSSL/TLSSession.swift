import COpenSSL

/// The output of a loop's sessions, drained after each call, so idle sessions need no buffer. Confined to one loop.
public final class TLSOutput {
    fileprivate let bio: OpaquePointer
    private var bytes: [UInt8] = []

    public init() {
        guard let new = BIO_new(outputMethod) else { fatalError("BIO_new: out of memory") }
        bio = new
        BIO_set_init(bio, 1)
        BIO_set_data(bio, Unmanaged.passUnretained(self).toOpaque())
    }

    /// Remaining sessions retain the BIO, so its pointer to this object must be cleared.
    deinit {
        BIO_set_data(bio, nil)
        BIO_free(bio)
    }

    /// Passes the collected bytes to `body`, then removes them.
    public func drain(_ body: (RawSpan) -> Void) {
        guard !bytes.isEmpty else { return }
        bytes.withUnsafeBytes { body($0.bytes) }
        bytes.removeAll(keepingCapacity: bytes.capacity <= TLSOutput.kept)
    }

    /// The maximum capacity that is kept: a batch of 120 KiB, in an array that grows by doubling.
    private static let kept = 256 * 1024

    /// The maximum number of bytes from one call, above any handshake flight or data buffer. It ends sessions whose
    /// peer provokes responses endlessly within one read.
    private static let maximum = 1 << 20

    fileprivate func append(_ more: UnsafeRawBufferPointer) -> Bool {
        guard bytes.count + more.count <= TLSOutput.maximum else { return false }
        bytes.append(contentsOf: more)
        return true
    }
}

/// The method of a BIO that appends to its ``TLSOutput``. Resetting a memory BIO would overwrite its whole buffer.
///
/// Safety: the method table is made once and never changed.
nonisolated(unsafe) private let outputMethod: OpaquePointer? = {
    let method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "TLSOutput")
    BIO_meth_set_write(method) { bio, data, length in
        guard let owner = BIO_get_data(bio), length > 0 else { return 0 }
        let isTaken = Unmanaged<TLSOutput>.fromOpaque(owner).takeUnretainedValue()
            .append(UnsafeRawBufferPointer(start: data, count: Int(length)))
        return isTaken ? length : -1
    }
    BIO_meth_set_ctrl(method) { _, command, _, _ in command == BIO_CTRL_FLUSH ? 1 : 0 }
    return method
}()

/// The method of a BIO that reads from the socket of its ``TLSSession``. OpenSSL's own also reads when the socket is
/// empty: a third of the reads of an upload.
///
/// Safety: the method table is made once and never changed.
nonisolated(unsafe) private let inputMethod: OpaquePointer? = {
    let method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "TLSSession")
    BIO_meth_set_read(method) { bio, buffer, size in
        BIO_clear_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY)
        guard let owner = BIO_get_data(bio), let buffer, size > 0 else { return -1 }
        let session = Unmanaged<TLSSession>.fromOpaque(owner).takeUnretainedValue()
        if let count = session.receive(buffer, Int(size)) { return Int32(count) }
        BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY)
        return -1
    }
    BIO_meth_set_ctrl(method) { bio, command, _, _ in
        guard command == BIO_CTRL_EOF, let owner = BIO_get_data(bio) else { return 0 }
        return Unmanaged<TLSSession>.fromOpaque(owner).takeUnretainedValue().hasEnded ? 1 : 0
    }
    return method
}()

/// The result of a call to a session.
public enum TLSStep: Equatable, Sendable {
    /// The number of bytes; 0 for a complete handshake.
    case done(Int)
    /// Call again when the socket is readable.
    case wantsRead
    /// The peer closed the session properly, with close_notify.
    case closed
    /// The session failed. The output may contain an alert.
    case failed
}

/// The server side of a TLS connection. It reads from the socket and writes to a ``TLSOutput``, which the caller drains
/// after every call. Confined to one loop.
public final class TLSSession {
    private let pointer: OpaquePointer
    private var input: SocketInput

    /// Begins a session on a connected, non-blocking socket, which the caller owns.
    /// - Throws: ``TLSError`` if memory is exhausted.
    public init(_ context: TLSContext, descriptor: Int32, output: TLSOutput) throws(TLSError) {
        guard let new = SSL_new(context.pointer) else { throw TLSError("SSL_new") }
        pointer = new
        input = SocketInput(descriptor, isReadable: true)
        guard let socket = BIO_new(inputMethod) else { throw TLSError("BIO_new") }
        BIO_set_init(socket, 1)
        BIO_set_data(socket, Unmanaged.passUnretained(self).toOpaque())
        BIO_up_ref(output.bio)
        SSL_set_bio(pointer, socket, output.bio)
        SSL_set_accept_state(pointer)
        SSL_set_read_ahead(pointer, 1)
    }

    deinit { SSL_free(pointer) }

    /// Handles the loop's report that the socket is readable, or that the peer has stopped sending.
    public func socketIsReadable(hangup: Bool) { input.isReady(hangup: hangup) }

    /// Whether ``read(into:)`` may return something.
    public var canRead: Bool { input.isReadable || SSL_has_pending(pointer) == 1 }

    fileprivate var hasEnded: Bool { input.hasEnded }

    fileprivate func receive(_ buffer: UnsafeMutableRawPointer, _ size: Int) -> Int? {
        input.receive(buffer, size)
    }

    /// Continues the handshake with the bytes on the socket.
    public func handshake() -> TLSStep {
        clearErrors()
        let result = SSL_do_handshake(pointer)
        return result == 1 ? .done(0) : outcome(result)
    }

    /// Whether the client chose HTTP/2 by ALPN.
    public var choseHTTP2: Bool {
        var name: UnsafePointer<UInt8>?
        var length: UInt32 = 0
        SSL_get0_alpn_selected(pointer, &name, &length)
        return length == 2 && name?[0] == UInt8(ascii: "h") && name?[1] == UInt8(ascii: "2")
    }

    /// The client's verified certificate; nil if it sent none.
    /// - Throws: ``TLSError`` if the certificate is unreadable. Don't treat such a client as one without.
    public func peerCertificate() throws(TLSError) -> PeerCertificate? {
        guard let certificate = SSL_get0_peer_certificate(pointer) else { return nil }
        guard SSL_get_verify_result(pointer) == Int(X509_V_OK) else {
            throw TLSError("the client's certificate was not verified")
        }
        return try PeerCertificate(certificate, chain: SSL_get0_verified_chain(pointer))
    }

    /// Whether `context` accepts the certificate that the client sent under an earlier context. It is verified as in a
    /// new connection: with the current authorities, revocation lists and time.
    public func isPeerAccepted(by context: TLSContext) -> Bool {
        guard let certificate = SSL_get0_peer_certificate(pointer),
            let verification = X509_STORE_CTX_new()
        else { return false }
        defer { X509_STORE_CTX_free(verification) }
        clearErrors()
        guard
            X509_STORE_CTX_init(
                verification, SSL_CTX_get_cert_store(context.pointer), certificate,
                SSL_get_peer_cert_chain(pointer)) == 1,
            X509_STORE_CTX_set_default(verification, "ssl_client") == 1,
            let parameters = X509_STORE_CTX_get0_param(verification),
            X509_VERIFY_PARAM_set1(parameters, SSL_CTX_get0_param(context.pointer)) == 1
        else { return false }
        X509_VERIFY_PARAM_set_auth_level(parameters, SSL_get_security_level(pointer))
        return X509_verify_cert(verification) == 1
    }

    /// Why the client's certificate made the handshake fail; nil if the failure has another cause.
    public var peerRejection: String? {
        let result = SSL_get_verify_result(pointer)
        if result != Int(X509_V_OK) {
            return X509_verify_cert_error_string(result).map { String(cString: $0) }
        }
        return sluice_is_certificate_missing() == 1 ? "the client has shown none" : nil
    }

    /// Decrypts into the start of `buffer`.
    public func read(into buffer: inout MutableRawSpan) -> TLSStep {
        clearErrors()
        let result = buffer.withUnsafeMutableBytes {
            SSL_read(pointer, $0.baseAddress, Int32(clamping: $0.count))
        }
        return result > 0 ? .done(Int(result)) : outcome(result)
    }

    /// Encrypts all of `bytes` into the output.
    public func write(_ bytes: RawSpan) -> TLSStep {
        var written = 0
        return bytes.withUnsafeBytes { raw in
            while written < raw.count {
                clearErrors()
                let result = SSL_write(pointer, raw.baseAddress! + written, Int32(clamping: raw.count - written))
                guard result > 0 else { return outcome(result) }
                written += Int(result)
            }
            return .done(written)
        }
    }

    /// Writes a close_notify to the output.
    public func shutdown() {
        clearErrors()
        if SSL_in_init(pointer) == 0 { SSL_shutdown(pointer) }
    }

    private func outcome(_ result: Int32) -> TLSStep {
        switch SSL_get_error(pointer, result) {
        case SSL_ERROR_WANT_READ: .wantsRead
        case SSL_ERROR_ZERO_RETURN: .closed
        default: .failed
        }
    }
}
