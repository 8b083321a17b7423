import Dispatch
import Foundation
import Synchronization
import Wire

/// A bucket of a gateway.
///
/// ```swift
/// let storage = Storage.storage(url: "http://127.0.0.1:8080", bucket: "photos")
/// storage.credentials = .bearer { try await token() }
/// let image = storage.reference().child("images/rivers.jpg")
/// ```
///
/// All members can be used from any thread. The gateway, ``credentials`` and ``configuration`` are read for each request,
/// and ``uploadChunkSizeBytes`` for each piece, also of transfers that are running. A retry time and ``callbackQueue`` apply
/// to what begins after they were set.
public final class Storage: Sendable {
    /// The default of ``uploadChunkSizeBytes``: 8 MiB.
    public static let defaultChunkSizeBytes: Int64 = 8 << 20
    /// The largest chunk of an upload in bytes: 64 MiB. A chunk is held in memory.
    public static let maximumChunkSizeBytes: Int64 = 64 << 20

    private struct Settings {
        var endpoint: Endpoint
        var credentials = StorageCredentials.none
        var configuration = StorageConfiguration()
        var uploadRetryTime: TimeInterval = 600
        var downloadRetryTime: TimeInterval = 600
        var operationRetryTime: TimeInterval = 120
        var chunkSize = Storage.defaultChunkSizeBytes
        #if canImport(Darwin)
            var callbackQueue = DispatchQueue.main
        #else
            var callbackQueue = DispatchQueue(label: "SluiceStorage.callbacks")
        #endif
    }

    /// The bucket's name.
    public let bucket: String
    private let settings: Mutex<Settings>

    /// Creates a new instance with its own settings; ``storage(url:bucket:)`` returns a shared instance.
    /// - Parameters:
    ///   - url: The gateway's address: `http` or `https`, without a query. If it is not valid, each operation fails with
    ///     `invalidArgument`.
    ///   - bucket: The bucket's name.
    public init(url: String, bucket: String) {
        self.bucket = bucket
        settings = Mutex(Settings(endpoint: Endpoint(url: url, bucket: bucket)))
    }

    /// Shared instances.
    private static let shared = Mutex<[BytewiseString: Storage]>([:])

    /// The shared instance for the gateway and the bucket in the environment: `SLUICE_URL` and `SLUICE_BUCKET`.
    public static func storage() -> Storage {
        storage(url: environment("SLUICE_URL"), bucket: environment("SLUICE_BUCKET"))
    }

    /// The shared instance for `gs://BUCKET` at `SLUICE_URL`, or for `SLUICE_BUCKET` at this gateway.
    public static func storage(url: String) -> Storage {
        guard url.hasPrefix("gs://") else {
            return storage(url: url, bucket: environment("SLUICE_BUCKET"))
        }
        let rest = url.utf8.dropFirst(5).prefix { $0 != UInt8(ascii: "/") }
        return storage(url: environment("SLUICE_URL"), bucket: String(decoding: rest, as: UTF8.self))
    }

    /// The shared instance for a bucket of the gateway with this address. The same arguments return the same instance.
    public static func storage(url: String, bucket: String) -> Storage {
        let key = BytewiseString("\(url) \(bucket)")
        return shared.withLock { shared in
            if let found = shared[key] { return found }
            let storage = Storage(url: url, bucket: bucket)
            shared[key] = storage
            return storage
        }
    }

    private static func environment(_ name: String) -> String {
        ProcessInfo.processInfo.environment[name] ?? ""
    }

    // MARK: Settings

    /// The credentials that requests send; none by default.
    public var credentials: StorageCredentials {
        get { settings.withLock { $0.credentials } }
        set { settings.withLock { $0.credentials = newValue } }
    }

    /// Further fields of requests, and the files for TLS.
    public var configuration: StorageConfiguration {
        get { settings.withLock { $0.configuration } }
        set { settings.withLock { $0.configuration = newValue } }
    }

    /// The maximum time for retries of an upload without progress, in seconds: 600 by default.
    public var maxUploadRetryTime: TimeInterval {
        get { settings.withLock { $0.uploadRetryTime } }
        set { settings.withLock { $0.uploadRetryTime = newValue } }
    }

    /// The maximum time for retries of a download without progress, in seconds: 600 by default.
    public var maxDownloadRetryTime: TimeInterval {
        get { settings.withLock { $0.downloadRetryTime } }
        set { settings.withLock { $0.downloadRetryTime = newValue } }
    }

    /// The maximum time for retries of any other operation, in seconds: 120 by default.
    public var maxOperationRetryTime: TimeInterval {
        get { settings.withLock { $0.operationRetryTime } }
        set { settings.withLock { $0.operationRetryTime = newValue } }
    }

    /// The size of the pieces of a large upload in bytes, from 1 to ``maximumChunkSizeBytes``; other values are
    /// clamped. After an interruption at most one piece is sent again.
    public var uploadChunkSizeBytes: Int64 {
        get { settings.withLock { $0.chunkSize } }
        set {
            let size = min(max(1, newValue), Storage.maximumChunkSizeBytes)
            settings.withLock { $0.chunkSize = size }
        }
    }

    /// The queue on which observers and completions are called, one after another. Functions with `async` do not use it. By
    /// default the main queue on Apple platforms, and a queue of its own elsewhere: most programs on Linux do not run the main
    /// queue. Set it to the main queue if completions use what belongs to the main actor.
    public var callbackQueue: DispatchQueue {
        get { settings.withLock { $0.callbackQueue } }
        set { settings.withLock { $0.callbackQueue = newValue } }
    }

    /// Sends all requests to an emulator or gateway without TLS, such as `sluice serve` on this machine.
    public func useEmulator(withHost host: String, port: Int) {
        let isIPv6 = host.utf8.contains(UInt8(ascii: ":")) && !host.hasPrefix("[")
        let name = isIPv6 ? "[\(host)]" : host
        let endpoint = Endpoint(url: "http://\(name):\(port)", bucket: bucket)
        settings.withLock { $0.endpoint = endpoint }
    }

    // MARK: References

    /// The root of the bucket.
    public func reference() -> StorageReference { StorageReference(self, path: "") }

    /// A reference to an object or folder.
    /// - Parameter path: Its path; leading, trailing and repeated slashes are ignored.
    public func reference(withPath path: String) -> StorageReference {
        reference().child(path)
    }

    /// A reference to the object of a URL: `gs://BUCKET/PATH`, the object's own URL at the gateway, or a download URL of
    /// Firebase's protocol, also one of the hosted service.
    ///
    /// Another URL is an error of the program. It is logged to standard error, and every operation on the reference fails
    /// with `bucketMismatch` if the URL is of another bucket, otherwise with `pathError`.
    public func reference(forURL url: String) -> StorageReference {
        do throws(StorageError) {
            return try Endpoint.reference(url, self)
        } catch {
            let code =
                error.reason == .bucketMismatch ? StorageErrorCode.bucketMismatch : .pathError
            // Not the URL itself, which may have a token in it.
            NSLog("%@", "Storage.reference(forURL:): \(error.message)")
            return StorageReference(self, path: "", fault: StorageError(code, error.message))
        }
    }

    /// The same for a URL that is parsed already. The path of `gs://BUCKET/PATH` is percent-encoded here.
    /// - Throws: ``StorageError``: `bucketMismatch` if it is of another bucket, `invalidArgument` if it is no such URL.
    public func reference(for url: URL) throws(StorageError) -> StorageReference {
        try Endpoint.reference(url.absoluteString, self, isEncoded: true)
    }

    /// Whether a text can be the address of a gateway.
    package static func isGateway(_ url: String) -> Bool {
        Endpoint(url: url, bucket: "b").isValid
    }

    var endpoint: Endpoint { settings.withLock { $0.endpoint } }
}
