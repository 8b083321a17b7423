import Buckets
import Credentials
import Glibc
import HTTPClient
import Synchronization
import System
import TestSupport
import Wire

/// S3-compatible servers, installed in the directory that `SLUICE_UPSTREAMS` names.
enum S3Server: String, CaseIterable, Sendable, CustomStringConvertible {
    case moto
    case seaweedfs
    case rclone

    /// The virtual environment with the servers; nil to skip the tests that need them.
    static let directory = getenv("SLUICE_UPSTREAMS").map { String(cString: $0) }

    var description: String { rawValue }

    static let credentials = AWSCredentials(accessKey: "sluice-key", secretKey: "sluice-secret")
}

/// A server that runs as long as this value exists.
final class RunningServer: Sendable {
    let origin: Origin
    private let server: S3Server
    private let process: pid_t
    private let directory = TemporaryDirectory()
    private let buckets = Atomic<Int>(0)

    /// Starts the server. ``ready()`` waits for it.
    init(_ server: S3Server) throws {
        self.server = server
        let bin = S3Server.directory! + "/bin/"
        let ports = freePorts(8)
        origin = Origin(.http, host: "127.0.0.1", port: ports[0])
        var arguments: [String]
        switch server {
        case .moto:
            let tests = #filePath.components(separatedBy: "/BucketsTests/")[0]
            let script = tests + "/EndToEnd/support/moto_server.py"
            arguments = [bin + "python", script, "-H", "127.0.0.1", "-p", "\(ports[0])"]
        case .rclone:
            arguments = [
                bin + "rclone", "serve", "s3", directory.path, "--addr", "127.0.0.1:\(ports[0])",
                "--config", "/dev/null", "--vfs-cache-mode", "off",
            ]
        case .seaweedfs:
            let identities = directory.path + "/identities.json"
            let key = S3Server.credentials
            write(
                identities,
                """
                {"identities": [{"name": "sluice", "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                "credentials": [{"accessKey": "\(key.accessKey)", "secretKey": "\(key.secretKey)"}]}]}
                """)
            arguments = [
                bin + "weed", "server", "-dir=\(directory.path)", "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1", "-s3", "-s3.config=\(identities)", "-s3.port=\(ports[0])",
                "-s3.port.grpc=\(ports[1])", "-master.port=\(ports[2])",
                "-master.port.grpc=\(ports[3])", "-volume.port=\(ports[4])",
                "-volume.port.grpc=\(ports[5])", "-filer.port=\(ports[6])",
                "-filer.port.grpc=\(ports[7])", "-s3.port.iceberg=0", "-s3.port.lance=0",
                "-volume.max=800",
                "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
            ]
        }
        arguments.insert(contentsOf: ["env", "WEED_MASTER_VOLUME_GROWTH_COPY_1=1"], at: 0)
        process = try spawn(arguments)
    }

    deinit {
        kill(process, SIGKILL)
        var status: Int32 = 0
        waitpid(process, &status, 0)
    }

    /// Creates an empty bucket. Waits until the server responds.
    func makeBucket(_ change: (inout S3Bucket.Settings) -> Void = { _ in }) async throws -> S3Bucket {
        let bucket = openBucket(
            "sluice-\(buckets.add(1, ordering: .relaxed).newValue)", change)
        try await prepare(bucket)
        return bucket
    }

    /// Opens a bucket that exists.
    func openBucket(_ name: String, _ change: (inout S3Bucket.Settings) -> Void = { _ in })
        -> S3Bucket
    {
        var settings = S3Bucket.Settings(
            endpoint: origin, bucket: name,
            credentials: server == .rclone ? .anonymous : .fixed(S3Server.credentials))
        settings.temporaryDirectory = directory.path
        change(&settings)
        return S3Bucket(
            settings, upstream: Upstream(UpstreamSettings(name: "test", origin: settings.origin)),
            pool: sharedPool)
    }
}

private func write(_ path: String, _ text: String) {
    let descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0o600)
    defer { close(descriptor) }
    _ = Glibc.write(descriptor, text, text.utf8.count)
}
