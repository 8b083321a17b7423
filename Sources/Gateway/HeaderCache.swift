import Buckets
import EventLoop
import HTTPServer

/// The header fields of objects that were answered lately: they are always the same for one state of an object, and
/// making them costs more than finding them.
final class HeaderCache: Sendable {
    private struct Entry {
        var generation: Int64
        var metageneration: Int64
        var fields: HeaderFields
    }
    /// Entries at most; each has about 1 KiB, and with much custom metadata up to 20 KiB.
    private static let capacity = 512

    private let entries = Lock<[BytewiseString: Entry]>([:])

    /// The fields of a `GET` and `HEAD` of `object`, but for the length.
    func fields(of object: ObjectMetadata) -> HeaderFields {
        let name = BytewiseString(object.name)
        let known = entries.withLock { entries -> HeaderFields? in
            guard let entry = entries[name], entry.generation == object.generation,
                entry.metageneration == object.metageneration
            else { return nil }
            return entry.fields
        }
        if let known { return known }
        var fields = HeaderFields(reserving: 768)
        object.appendFields(to: &fields)
        let entry = Entry(
            generation: object.generation, metageneration: object.metageneration, fields: fields)
        entries.withLock { entries in
            if entries.count >= HeaderCache.capacity { entries.removeAll(keepingCapacity: true) }
            entries[name] = entry
        }
        return fields
    }
}
