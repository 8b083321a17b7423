import System
import Wire

/// The checksums that this process has computed of the parts that it has sent, because no service lists them. They are
/// lost with the process, and no other gateway has them.
final class ComputedChecksums: Sendable {
    /// The maximum number of parts: about 4 MiB. The uploads without new parts for the longest time are forgotten first.
    private let limit: Int

    private struct Checksums {
        /// An md5, so that it identifies the bytes.
        var etag: String
        var crc32c: UInt32?
        var checksum: PartChecksum?
    }
    private struct State {
        var uploads: [UploadSessionID: [Int: Checksums]] = [:]
        /// The upload with the newest part is the last one.
        var order: [UploadSessionID] = []
        var count = 0

        mutating func forget(_ id: UploadSessionID) {
            guard let parts = uploads.removeValue(forKey: id) else { return }
            count -= parts.count
            order.removeAll { $0 == id }
        }
    }
    private let state = Lock(State())

    init(limit: Int = 20_000) { self.limit = limit }

    /// Keeps the checksums of a stored part, whose entity tag must be the md5 of its bytes.
    func keep(_ part: Part, of id: UploadSessionID, md5: [UInt8]?) {
        guard let md5, part.etag == Hexadecimal.encode(md5) else { return }
        let checksums = Checksums(etag: part.etag, crc32c: part.crc32c, checksum: part.checksum)
        state.withLock { state in
            if state.uploads[id, default: [:]].updateValue(checksums, forKey: part.number) == nil { state.count += 1 }
            if state.order.last != id {
                state.order.removeAll { $0 == id }
                state.order.append(id)
            }
            while state.count > limit, let oldest = state.order.first { state.forget(oldest) }
        }
    }

    /// Listed parts with their checksums, as far as they are known for the same bytes.
    func completed(_ parts: [Part], of id: UploadSessionID) -> [Part] {
        guard let known = state.withLock({ $0.uploads[id] }) else { return parts }
        return parts.map { part in
            guard let checksums = known[part.number], checksums.etag == part.etag else { return part }
            var part = part
            part.crc32c = part.crc32c ?? checksums.crc32c
            part.checksum = part.checksum ?? checksums.checksum
            return part
        }
    }

    func forget(_ id: UploadSessionID) { state.withLock { $0.forget(id) } }
}
