import Buckets
import HTTPServer
import System
import Wire

/// The header fields of objects that were sent lately: they are always the same for one state of an object, and
/// making them costs more than finding them.
final class HeaderCache: Sendable {
    private struct Entry {
        var object: ObjectMetadata
        var fields: HeaderFields
    }
    /// Entries at most; each has about 1 KiB.
    private static let slotCount = 512
    /// Bytes of custom metadata with which an object is not kept.
    private static let maximumPairs = 512

    private let entries = Lock<[Entry?]>([])

    /// The fields of a `GET` and `HEAD` of `object`, but for the length.
    func fields(of object: ObjectMetadata) -> HeaderFields {
        let slot = BytewiseString.hash(of: object.name, below: HeaderCache.slotCount)
        let known = entries.withLock { entries -> HeaderFields? in
            guard !entries.isEmpty, let entry = entries[slot], entry.object == object else {
                return nil
            }
            return entry.fields
        }
        if var known {
            // What is added to the fields of every response is added to this copy.
            known.reserve(192)
            return known
        }
        var fields = HeaderFields(reserving: 768)
        object.appendFields(to: &fields)
        if object.attributes.pairBytes > HeaderCache.maximumPairs { return fields }
        entries.withLock { entries in
            if entries.isEmpty { entries = Array(repeating: nil, count: HeaderCache.slotCount) }
            entries[slot] = Entry(object: object, fields: fields)
        }
        return fields
    }
}
