import CCurl
import System
import Wire

/// The options of a request's easy handle, and libcurl's callbacks.
extension CurlTransfer {
    /// The size of libcurl's read buffer. A TLS record is no larger.
    private static let readSize = 16 * 1024

    func setUp() {
        let settings = transport.settings
        let this = Unmanaged.passUnretained(self).toOpaque()
        func set(_ option: CURLoption, _ value: Int) { sluice_easy_long(easy, option, value) }
        func set(_ option: CURLoption, _ text: String?) {
            if let text { sluice_easy_string(easy, option, text) }
        }
        curl_easy_reset(easy)
        set(CURLOPT_URL, "\(settings.origin)\(request.target)")
        set(CURLOPT_PROTOCOLS_STR, settings.origin.scheme.rawValue)
        set(CURLOPT_PROXY, transport.proxy?.url ?? "")
        // libcurl must not read the environment.
        set(CURLOPT_NOPROXY, "")
        // The proxy's response to CONNECT is not the response.
        set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1)
        set(CURLOPT_PATH_AS_IS, 1)
        set(CURLOPT_NOSIGNAL, 1)
        set(CURLOPT_FOLLOWLOCATION, 0)
        set(CURLOPT_BUFFERSIZE, CurlTransfer.readSize)
        set(CURLOPT_TCP_KEEPALIVE, 1)
        set(CURLOPT_CONNECTTIMEOUT_MS, Int(settings.connectTimeout / 1_000_000))
        set(CURLOPT_MAXAGE_CONN, Int(max(1, settings.idleTimeout / 1_000_000_000)))
        let version = request.isBulk ? CURL_HTTP_VERSION_1_1 : CURL_HTTP_VERSION_2TLS
        set(CURLOPT_HTTP_VERSION, Int(version))
        // In clear text only a response shows that a connection can't be shared, so waiting for it could mean waiting
        // for the end of another request's upload.
        if !request.isBulk, settings.origin.scheme == .https { set(CURLOPT_PIPEWAIT, 1) }
        set(CURLOPT_SSLVERSION, Int(CURL_SSLVERSION_TLSv1_2))
        set(CURLOPT_CAINFO, settings.certificateAuthorities)
        set(CURLOPT_CRLFILE, settings.revocations)
        // Resuming a session would not check revocation again.
        if settings.revocations != nil { set(CURLOPT_SSL_SESSIONID_CACHE, 0) }
        set(CURLOPT_SSLCERT, settings.clientCertificate)
        set(CURLOPT_SSLKEY, settings.clientKey)
        sluice_easy_pointer(easy, CURLOPT_ERRORBUFFER, words)
        sluice_easy_pointer(easy, CURLOPT_HEADERDATA, this)
        sluice_easy_pointer(easy, CURLOPT_WRITEDATA, this)
        sluice_easy_data(easy, CURLOPT_HEADERFUNCTION) { bytes, size, count, this in
            let line = UnsafeBufferPointer(
                start: UnsafeRawPointer(bytes)?.assumingMemoryBound(to: UInt8.self), count: size * count)
            return CurlTransfer.from(this).takeHeader(line) ? line.count : 0
        }
        sluice_easy_data(easy, CURLOPT_WRITEFUNCTION) { bytes, size, count, this in
            CurlTransfer.from(this).takeBody(UnsafeRawBufferPointer(start: bytes, count: size * count))
        }
        sluice_easy_pointer(easy, CURLOPT_PREREQDATA, this)
        sluice_easy_prereq(easy) { this, _, _, _, _ in
            CurlTransfer.from(this).maySend() ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT
        }
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
                CurlTransfer.from(this).giveBody(UnsafeMutableRawBufferPointer(start: buffer, count: size * count))
            }
        }
        if !request.isHead { sluice_easy_string(easy, CURLOPT_CUSTOMREQUEST, "\(request.method)") }
    }

    private func setFields() {
        // Remove the fields that libcurl adds by default.
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
}
