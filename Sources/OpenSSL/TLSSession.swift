import COpenSSL

/// Where the sessions of one loop leave the bytes that go to their sockets: drained after each call, so that an
/// idle session needs no buffer of its own. Confined to one loop.
public final class TLSOutput {
    fileprivate let bio: OpaquePointer
    private var bytes: [UInt8] = []

    public init() {
        guard let new = BIO_new(outputMethod) else { fatalError("BIO_new: out of memory") }
        bio = new
        BIO_set_init(bio, 1)
        BIO_set_data(bio, Unmanaged.passUnretained(self).toOpaque())
    }

    deinit { BIO_free(bio) }

    /// Hands over what has gathered, then forgets it.
    public func drain(_ body: (RawSpan) -> Void) {
        guard !bytes.isEmpty else { return }
        body(bytes.span.bytes)
        bytes.removeAll(keepingCapacity: bytes.capacity <= 256 * 1024)
    }

    /// Bytes that may gather in one call: more than any flight of a handshake or buffer of data comes to. A peer that
    /// makes a session answer again and again within one read is ended by it.
    private static let maximum = 1 << 20

    fileprivate func append(_ more: UnsafeRawBufferPointer) -> Bool {
        guard bytes.count + more.count <= TLSOutput.maximum else { return false }
        bytes.append(contentsOf: more)
        return true
    }
}

/// A BIO that appends to its ``TLSOutput``. (OpenSSL's memory BIO overwrites its whole buffer at each reset.)
///
/// Safety: the method table is made once and not changed afterwards.
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

/// What a step of a session came to.
public enum TLSStep: Equatable, Sendable {
    /// So many bytes; 0 for a handshake that is complete.
    case done(Int)
    /// Again when the socket has bytes.
    case wantsRead
    /// The peer closed in order.
    case closed
    /// The session is broken; an alert may wait in the output.
    case failed
}

/// The server's side of one TLS connection. Reads from the socket, writes to a ``TLSOutput`` that the caller drains
/// after every call. Confined to one loop.
public final class TLSSession {
    private let pointer: OpaquePointer

    /// Begins a session on a connected, non-blocking socket, which stays the caller's.
    /// - Throws: ``TLSError`` where memory has run out.
    public init(_ context: TLSContext, descriptor: Int32, output: TLSOutput) throws(TLSError) {
        guard let new = SSL_new(context.pointer) else { throw TLSError("SSL_new") }
        pointer = new
        guard let input = BIO_new_socket(descriptor, BIO_NOCLOSE) else {
            SSL_free(new)
            throw TLSError("BIO_new_socket")
        }
        BIO_up_ref(output.bio)
        SSL_set_bio(pointer, input, output.bio)
        SSL_set_accept_state(pointer)
        SSL_set_read_ahead(pointer, 1)
    }

    deinit { SSL_free(pointer) }

    /// Takes the handshake as far as the bytes on the socket allow.
    public func handshake() -> TLSStep {
        ERR_clear_error()
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

    /// The certificate that the client showed and that was verified; nil where it showed none.
    /// - Throws: ``TLSError`` where it can't be read: then nobody may take the client for one that showed none.
    public func peerCertificate() throws(TLSError) -> PeerCertificate? {
        guard let certificate = SSL_get0_peer_certificate(pointer) else { return nil }
        guard SSL_get_verify_result(pointer) == Int(X509_V_OK) else {
            throw TLSError("the client's certificate was not verified")
        }
        return try PeerCertificate(certificate, chain: SSL_get0_verified_chain(pointer))
    }

    /// Whether `context` accepts the certificate that the client has shown to the context before it. Another connection
    /// would be verified the same way: by the authorities, the revocation lists and the time of now.
    public func isPeerAccepted(by context: TLSContext) -> Bool {
        guard let certificate = SSL_get0_peer_certificate(pointer),
            let verification = X509_STORE_CTX_new()
        else { return false }
        defer { X509_STORE_CTX_free(verification) }
        ERR_clear_error()
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

    /// Why a handshake that has just failed did so, where it was for the client's certificate.
    public var peerRefusal: String? {
        let result = SSL_get_verify_result(pointer)
        if result != Int(X509_V_OK) {
            return X509_verify_cert_error_string(result).map { String(cString: $0) }
        }
        return sluice_is_certificate_missing() == 1 ? "the client has shown none" : nil
    }

    /// Decrypts into `buffer`, from its start.
    public func read(into buffer: inout MutableRawSpan) -> TLSStep {
        ERR_clear_error()
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
                ERR_clear_error()
                let result = SSL_write(
                    pointer, raw.baseAddress! + written, Int32(clamping: raw.count - written))
                guard result > 0 else { return outcome(result) }
                written += Int(result)
            }
            return .done(written)
        }
    }

    /// Leaves a close_notify in the output.
    public func shutdown() {
        ERR_clear_error()
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
