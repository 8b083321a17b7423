import OpenSSL

/// The TLS handshake, and the identity of the client's certificate.
extension Connection {
    /// Continues the handshake with the bytes received.
    func handshake() {
        guard let tls else { return }
        if !isTLS {
            guard let first = FirstBytes(descriptor) else {
                readable = false
                return
            }
            if case .clear(let version, let detail) = first {
                clearTextRejection(version, detail: detail).withUnsafeBytes { write($0) }
                return beginLinger()
            }
            isTLS = true
        }
        let step = tls.handshake()
        let rejection = step == .failed ? tls.peerRejection : nil
        drainTLS()
        if let rejection { listener.onUntrusted(peer.description, rejection) }
        // Draining may have detected that the peer is gone.
        guard state == .handshaking else { return }
        switch step {
        case .done:
            do throws(TLSError) {
                try identify(tls)
                state = tls.choseHTTP2 ? .open : .sniffing
            } catch {
                listener.onUntrusted(peer.description, error.description)
                context.statistics.handshakeFailed()
                close()
            }
        case .wantsRead: readable = false
        case .closed, .failed:
            context.statistics.handshakeFailed()
            close()
        }
    }

    private func identify(_ tls: TLSSession) throws(TLSError) {
        guard let identify = listener.identify, let certificate = try tls.peerCertificate() else {
            return
        }
        verified = VerifiedPeer(
            certificate, identity: identify(certificate), version: credentialsVersion, now: context.loop.now)
    }
}
