import Foundation
import SluiceStorage
import Synchronization
import Wire

/// The targets of one command. Each belongs to one source: otherwise a later source would overwrite an earlier one.
final class Targets: Sendable {
    private let sources = Mutex<[BytewiseString: BytewiseString]>([:])

    /// Checks the target of a job.
    /// - Parameter source: Identifies its source.
    /// - Returns: The job; one that fails if the target belongs to another source; one that does nothing if the same
    ///   transfer was submitted before, as two patterns can do.
    func claim(_ job: Job, of source: String) -> Job {
        let target = job.target ?? ""
        let owner = sources.withLock { sources in
            let owner = sources[BytewiseString(target)]
            if owner == nil { sources[BytewiseString(target)] = BytewiseString(source) }
            return owner
        }
        guard let owner else { return job }
        if owner == BytewiseString(source) { return job.performing { _ in nil } }
        return job.performing { _ in
            throw ClientError(
                .failure,
                "\(job.source): another source of this command has the target \(target). Give it a name of its own.")
        }
    }
}

extension StorageReference {
    /// The gateway and the bucket, the same for all references to one bucket by one address.
    var bucketIdentity: String {
        guard let url = try? root().child("o").objectURL() else { return storage.bucket }
        let scheme = url.scheme?.asciiLowercased() ?? ""
        let host = url.host?.asciiLowercased() ?? ""
        let port = url.port ?? (scheme == "https" ? 443 : 80)
        let local = ["127.0.0.1", "::1", "[::1]"].contains(host) ? "localhost" : host
        return "\(scheme)://\(local):\(port)\(url.path)"
    }

    /// The identity of an object.
    var identity: String { "\(bucketIdentity) \(fullPath)" }

    /// Whether one folder is equal to or inside the other.
    func overlaps(_ other: StorageReference) -> Bool {
        guard bucketIdentity == other.bucketIdentity else { return false }
        let (first, second) = (fullPath.utf8.count, other.fullPath.utf8.count)
        let (outer, inner) = first <= second ? (self, other) : (other, self)
        if outer.fullPath.isEmpty { return true }
        return "\(inner.fullPath)/".hasPrefix("\(outer.fullPath)/")
    }
}
