import Foundation
import TestSupport
import Testing

/// An authority, a certificate of the gateway for 127.0.0.1, and one of a client, as PEM files.
struct Certificates: Sendable {
    private let directory = TemporaryDirectory()
    let authority: URL
    let client: URL
    let clientKey: URL
    /// Keys of `listen.https` in the gateway's configuration.
    let options: String

    /// - Parameter asksClients: Whether the gateway asks clients for certificates.
    init(asksClients: Bool = false) async throws {
        let path = directory.path
        try await onThread {
            let base = [
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            ]
            let authority = ["-CA", path + "/ca.pem", "-CAkey", path + "/ca.key"]
            for (name, options) in [
                ("ca", ["-addext", "basicConstraints=critical,CA:TRUE"]),
                ("server", authority + ["-addext", "subjectAltName=IP:127.0.0.1"]),
                ("client", authority + ["-addext", "subjectAltName=DNS:client"]),
            ] {
                let files = ["-keyout", "\(path)/\(name).key", "-out", "\(path)/\(name).pem"]
                var status: Int32 = 0
                let identifier = try spawn(
                    base + ["-nodes", "-days", "2", "-subj", "/CN=\(name)"] + files + options)
                waitpid(identifier, &status, 0)
                try #require(status == 0)
            }
        }
        self.authority = URL(filePath: path + "/ca.pem")
        client = URL(filePath: path + "/client.pem")
        clientKey = URL(filePath: path + "/client.key")
        let clients =
            asksClients
            ? ", clients: { authorities: \(path)/ca.pem, required: true, uid: dns }" : ""
        options = "certificate: \(path)/server.pem, key: \(path)/server.key\(clients)"
    }
}
