import Buckets
import Wire

/// An event of a bucket as a CloudEvent 1.0, with the types and the payload of Google Cloud Storage.
///
/// `data` is a `StorageObjectData` of `google.events.cloud.storage.v1`. Properties that the object does not have, and
/// those that the gateway does not know, are left out. Download tokens are never a part of it.
package struct CloudEvent: Sendable {
    /// The media type of one event with its attributes in JSON.
    package static let mediaType = "application/cloudevents+json"
    /// The media type of an array of them.
    package static let batchMediaType = "application/cloudevents-batch+json"

    let event: BucketEvent
    let bucket: String
    /// The attribute `source`.
    let source: String

    /// - Parameter source: The attribute `source`; nil for the resource name that Google uses.
    package init(_ event: BucketEvent, bucket: String, source: String? = nil) {
        self.event = event
        self.bucket = bucket
        self.source = source ?? CloudEvent.source(of: bucket)
    }

    /// The resource name that Google uses for a bucket.
    static func source(of bucket: String) -> String { "//storage.googleapis.com/projects/_/buckets/\(bucket)" }

    /// The attribute `id`: it is never used for another event, not even after the clock has gone back or a backup has been
    /// restored, and has no dot, because it is `webhook-id` too.
    package var id: String {
        let object = event.object
        return "\(object.generation)-\(object.metageneration)-\(event.time)-\(event.kind.letter)"
    }

    /// An upper bound for the bytes of the structured form, except for names and metadata with many control characters.
    var estimatedBytes: Int { CloudEvent.estimatedBytes(of: event, bucket: bucket) + source.utf8.count }

    static func estimatedBytes(of event: BucketEvent, bucket: String) -> Int {
        let attributes = event.object.attributes
        let texts = [
            attributes.contentType, attributes.cacheControl, attributes.contentDisposition,
            attributes.contentEncoding, attributes.contentLanguage,
        ].reduce(0) { $0 + ($1?.utf8.count ?? 0) }
        return 1400 + 8 * event.object.name.utf8.count + 3 * bucket.utf8.count + 2 * texts
            + 2 * attributes.customMetadata.byteCount + 8 * attributes.customMetadata.count
    }

    /// Calls `body` for each attribute but `specversion` and `datacontenttype`, with the extensions.
    private func forEachAttribute(_ body: (StaticString, String) -> Void) {
        let object = event.object
        body("id", id)
        body("source", source)
        body("type", event.kind.cloudEventType)
        body("subject", "objects/" + object.name)
        body("time", HTTPDate.rfc3339(milliseconds: event.time / 1000))
        body("bucket", bucket)
        body("sequence", CloudEvent.padded(event.sequence))
        body("partitionkey", object.name)
        guard let other = event.otherGeneration else { return }
        switch event.kind {
        case .finalized: body("overwrotegeneration", String(other))
        case .replaced: body("overwrittenbygeneration", String(other))
        case .deleted, .metadataUpdated: break
        }
    }

    /// 20 digits, which compare as text.
    private static func padded(_ number: Int64) -> String {
        // It has 19 digits at most, and the sum 20.
        "0" + String(10_000_000_000_000_000_000 + UInt64(number)).dropFirst()
    }

    // MARK: Structured

    /// The structured form, as JSON.
    package var json: [UInt8] {
        var json = JSONWriter(reserving: estimatedBytes)
        write(to: &json)
        return json.bytes
    }

    /// An array of events in their structured form.
    package static func batch(_ events: [CloudEvent]) -> [UInt8] {
        var json = JSONWriter(reserving: events.reduce(2) { $0 + $1.estimatedBytes })
        json.beginArray()
        for event in events { event.write(to: &json) }
        json.endArray()
        return json.bytes
    }

    private func write(to json: inout JSONWriter) {
        json.beginObject()
        json.member("specversion", "1.0")
        forEachAttribute { name, value in json.member(name, value) }
        json.member("datacontenttype", "application/json")
        json.key("data")
        writeData(to: &json)
        json.endObject()
    }

    // MARK: Binary

    /// The fields of the binary form, without those of the body.
    package var fields: HeaderFields {
        var fields = HeaderFields()
        fields.append("ce-specversion", "1.0")
        forEachAttribute { name, value in fields.append(name: "ce-\(name)", CloudEvent.fieldValue(value)) }
        return fields
    }

    /// The attribute `data`, as JSON: the body of the binary form.
    package var data: [UInt8] {
        var json = JSONWriter(reserving: estimatedBytes)
        writeData(to: &json)
        return json.bytes
    }

    /// Percent-encodes an attribute (CloudEvents HTTP binding 1.0.2, section 3.1.3.2).
    static func fieldValue(_ text: String) -> String {
        func isPlain(_ byte: UInt8) -> Bool { (0x21...0x7e).contains(byte) && byte != 0x22 && byte != 0x25 }
        if text.utf8.allSatisfy(isPlain) { return text }
        let digits = Array("0123456789ABCDEF".utf8)
        var bytes: [UInt8] = []
        bytes.reserveCapacity(3 * text.utf8.count)
        for byte in text.utf8 {
            if isPlain(byte) {
                bytes.append(byte)
            } else {
                bytes += [0x25, digits[Int(byte >> 4)], digits[Int(byte & 15)]]
            }
        }
        return String(decoding: bytes, as: UTF8.self)
    }

    // MARK: Data

    private func writeData(to json: inout JSONWriter) {
        let (object, attributes) = (event.object, event.object.attributes)
        let created = HTTPDate.rfc3339(milliseconds: object.created)
        json.beginObject()
        json.member("kind", "storage#object")
        json.member("id", "\(bucket)/\(object.name)/\(object.generation)")
        json.member("name", object.name)
        json.member("bucket", bucket)
        json.member("generation", quoted: object.generation)
        json.member("metageneration", quoted: object.metageneration)
        json.member("size", quoted: Int64(clamping: object.size))
        func write(_ key: StaticString, _ value: String?) {
            if let value { json.member(key, value) }
        }
        write("contentType", attributes.contentType)
        write("cacheControl", attributes.cacheControl)
        write("contentDisposition", attributes.contentDisposition)
        write("contentEncoding", attributes.contentEncoding)
        write("contentLanguage", attributes.contentLanguage)
        if !attributes.customMetadata.isEmpty {
            json.key("metadata")
            json.beginObject()
            for (key, value) in attributes.customMetadata.sorted(by: { $0.key < $1.key }) {
                json.member(key: key.text, value)
            }
            json.endObject()
        }
        write("md5Hash", object.md5.map(Base64.encode))
        write("crc32c", object.crc32c.map { sum in Base64.encode(withUnsafeBytes(of: sum.bigEndian) { Array($0) }) })
        json.member("etag", object.etag)
        json.member("timeCreated", created)
        json.member(
            "updated", object.updated == object.created ? created : HTTPDate.rfc3339(milliseconds: object.updated))
        json.member("timeStorageClassUpdated", created)
        json.member("storageClass", "STANDARD")
        switch event.kind {
        case .deleted, .replaced: json.member("timeDeleted", HTTPDate.rfc3339(milliseconds: event.time / 1000))
        case .finalized, .metadataUpdated: break
        }
        json.endObject()
    }
}

extension BucketEvent.Kind {
    /// The name in the configuration, in `watch` and in metrics.
    public var name: String {
        switch self {
        case .finalized: "finalized"
        case .deleted: "deleted"
        case .metadataUpdated: "metadataUpdated"
        case .replaced: "replaced"
        }
    }

    /// nil if there is no such kind.
    public init?(name: String) {
        guard let kind = Self.allCases.first(where: { BytewiseString.areEqual($0.name, name) }) else { return nil }
        self = kind
    }

    /// The attribute `type`. Google Cloud Storage reports an overwritten object as deleted too.
    package var cloudEventType: String {
        switch self {
        case .finalized: "google.cloud.storage.object.v1.finalized"
        case .deleted, .replaced: "google.cloud.storage.object.v1.deleted"
        case .metadataUpdated: "google.cloud.storage.object.v1.metadataUpdated"
        }
    }

    fileprivate var letter: String {
        switch self {
        case .finalized: "f"
        case .deleted, .replaced: "d"
        case .metadataUpdated: "m"
        }
    }
}
