import Foundation
import SluiceStorage
import Synchronization

/// Uploads bytes that can't be read twice: standard input, other objects.
///
/// The gateway keeps an unfinished upload for a day, and counts it against the caller, although nobody can continue this one.
/// So it is removed after a failure and after an interruption. If this program is killed, the next transfer to the same
/// target removes it: its URL is saved meanwhile.
struct StreamTransfer: Sendable {
    let state: StateDirectory?

    /// - Parameter next: Returns the next bytes; nil at the end.
    func run(
        to target: StorageReference, _ metadata: StorageMetadata, _ progress: TransferProgress,
        next: () async throws(StorageError) -> [UInt8]?
    ) async throws -> StorageMetadata {
        let left = await removeEarlier(target)
        let key = try StreamTransfer.key(target)
        let saved = Mutex<ResumeState<[String]>?>(nil)
        return try await Interruption.deferred {
            try await target.putStream(
                metadata: metadata,
                onSession: { session in
                    saved.withLock { saved in
                        saved = saved ?? state?.state(key, of: [String].self)
                        let all = left + (session.map { [$0] } ?? [])
                        if all.isEmpty { saved?.remove() } else { saved?.save(all) }
                    }
                }, onProgress: { progress.set($0) }, next: next)
        }
    }

    /// Removes what killed transfers to this target have left at the gateway.
    /// - Returns: The names that could not be removed.
    @discardableResult
    func removeEarlier(_ target: StorageReference) async -> [String] {
        guard let key = try? StreamTransfer.key(target),
            let saved = state?.state(key, of: [String].self, creates: false)
        else { return [] }
        var left: [String] = []
        for session in saved.load() ?? [] where await !target.removeUpload(session) {
            left.append(session)
        }
        if left.isEmpty { saved.remove() } else { saved.save(left) }
        return left
    }

    private static func key(_ target: StorageReference) throws -> [String] {
        ["stream", try target.objectURL().absoluteString]
    }
}
