import Wire

/// The writable properties of an object: those of clients, and the gateway's system metadata.
public struct ObjectAttributes: Sendable, Equatable {
    public var contentType: String?
    public var cacheControl: String?
    public var contentDisposition: String?
    public var contentEncoding: String?
    public var contentLanguage: String?
    /// At most 8 KiB, keys and values. No key is reserved (``SystemMetadata/isReserved(_:)``).
    public var customMetadata: [BytewiseString: String]
    /// Never part of ``customMetadata``, and not shown with it.
    public var system: SystemMetadata

    public init(
        contentType: String? = nil, cacheControl: String? = nil, contentDisposition: String? = nil,
        contentEncoding: String? = nil, contentLanguage: String? = nil,
        customMetadata: [BytewiseString: String] = [:], system: SystemMetadata = SystemMetadata()
    ) {
        self.contentType = contentType
        self.cacheControl = cacheControl
        self.contentDisposition = contentDisposition
        self.contentEncoding = contentEncoding
        self.contentLanguage = contentLanguage
        self.customMetadata = customMetadata
        self.system = system
    }
}

extension ObjectAttributes {
    /// A property from a service; nil if it is empty, or not a valid field value, which could inject header fields.
    static func property(_ text: String?) -> String? {
        guard let text, !text.isEmpty, text.isFieldValue else { return nil }
        return text
    }
}

extension String {
    /// Whether this is a valid field value: no control character except tab (RFC 9110, section 5.5).
    package var isFieldValue: Bool { utf8.allSatisfy { !ASCII.isControl($0) || $0 == 0x09 } }
}

extension [BytewiseString: String] {
    /// The total size of the pairs in bytes, keys and values.
    package var byteCount: Int { reduce(0) { $0 + $1.key.utf8.count + $1.value.utf8.count } }
}

/// A change of ``ObjectAttributes`` with the semantics of RFC 7396.
public struct AttributePatch: Sendable, Equatable {
    /// The change of one property.
    public enum Change: Sendable, Equatable {
        case keep
        case remove
        case set(String)
    }
    /// Changes of the properties with their own header fields.
    public var contentType = Change.keep
    public var cacheControl = Change.keep
    public var contentDisposition = Change.keep
    public var contentEncoding = Change.keep
    public var contentLanguage = Change.keep
    /// `"customMetadata": null`: removes all pairs before ``customMetadata`` is applied.
    public var clearCustomMetadata = false
    /// nil removes the pair.
    public var customMetadata: [BytewiseString: String?] = [:]
    /// Replaces ``SystemMetadata/downloadTokens``; nil keeps them, even if custom metadata changes.
    public var downloadTokens: [String]?

    public init() {}

    /// Returns the attributes after this patch.
    public func applied(to old: ObjectAttributes) -> ObjectAttributes {
        var new = old
        apply(contentType, to: &new.contentType)
        apply(cacheControl, to: &new.cacheControl)
        apply(contentDisposition, to: &new.contentDisposition)
        apply(contentEncoding, to: &new.contentEncoding)
        apply(contentLanguage, to: &new.contentLanguage)
        if clearCustomMetadata { new.customMetadata = [:] }
        for (key, value) in customMetadata { new.customMetadata[key] = value }
        if let downloadTokens { new.system.downloadTokens = downloadTokens }
        return new
    }

    private func apply(_ change: Change, to value: inout String?) {
        switch change {
        case .keep: break
        case .remove: value = nil
        case .set(let new): value = new
        }
    }
}

/// The metadata of one state of an object. Immutable, so references can be shared.
public final class ObjectMetadata: Sendable, Equatable {
    /// The full name within the bucket.
    public let name: String
    /// Assigned on each upload. Never reused within the bucket.
    public let generation: Int64
    /// 1 after an upload, increased by one with each patch.
    public let metageneration: Int64
    /// Bytes.
    public let size: UInt64
    /// Time of the upload, in milliseconds since 1970.
    public let created: Int64
    /// Time of the last change, in milliseconds since 1970.
    public let updated: Int64
    /// 16 bytes; nil if the store does not know it.
    public let md5: [UInt8]?
    /// nil if the store does not know it.
    public let crc32c: UInt32?
    /// A strong entity tag without quotes; identifies the bytes.
    public let etag: String
    public let attributes: ObjectAttributes
    /// The part that was read, if the store has reported its bytes (``ReadPlan/part``). No property of the object.
    private let readPart: ReadPart?

    private struct ReadPart {
        var number: Int
        var bytes: Range<UInt64>
    }

    public convenience init(
        name: String, generation: Int64, metageneration: Int64, size: UInt64, created: Int64,
        updated: Int64, md5: [UInt8]?, crc32c: UInt32?, etag: String, attributes: ObjectAttributes
    ) {
        self.init(
            name: name, generation: generation, metageneration: metageneration, size: size, created: created,
            updated: updated, md5: md5, crc32c: crc32c, etag: etag, attributes: attributes, readPart: nil)
    }

    private init(
        name: String, generation: Int64, metageneration: Int64, size: UInt64, created: Int64,
        updated: Int64, md5: [UInt8]?, crc32c: UInt32?, etag: String, attributes: ObjectAttributes, readPart: ReadPart?
    ) {
        self.readPart = readPart
        self.name = name
        self.generation = generation
        self.metageneration = metageneration
        self.size = size
        self.created = created
        self.updated = updated
        self.md5 = md5
        self.crc32c = crc32c
        self.etag = etag
        self.attributes = attributes
    }

    /// The entity tag that clients of S3 see, without quotes: what the S3 store reports, the one stored with an object
    /// that was uploaded in parts, or the md5. If none is known, one of the form of an object in parts, because a tag
    /// that looks like an md5 must be one.
    public var s3Tag: String {
        S3Properties.tag(stored: attributes.system.s3?.tag, etag: etag, md5: md5, generation: generation)
    }

    /// The number of parts from which clients of S3 have made the object; nil if it was uploaded as a whole, or if that
    /// is not known.
    public var partCount: Int? {
        if let parts = attributes.system.s3?.parts { return parts.count }
        return S3Properties.partCount(tag: attributes.system.s3?.tag ?? etag)
    }

    /// Returns the same metadata with the bytes of a part, as the store has reported them.
    package func with(part number: Int, _ bytes: Range<UInt64>) -> ObjectMetadata {
        ObjectMetadata(
            name: name, generation: generation, metageneration: metageneration, size: size, created: created,
            updated: updated, md5: md5, crc32c: crc32c, etag: etag, attributes: attributes,
            readPart: ReadPart(number: number, bytes: bytes))
    }

    /// The bytes of a part. An object that was uploaded as a whole has one.
    /// - Parameter number: From 1 to ``partCount``, whatever the numbers were during the upload. Where only the store knows
    ///   the parts, it can be the number during the upload.
    /// - Returns: nil if there is no such part, or if the sizes of the parts are not known.
    public func partRange(_ number: Int) -> Range<UInt64>? {
        if let readPart, readPart.number == number { return readPart.bytes }
        if let parts = attributes.system.s3?.parts { return parts.total == size ? parts.range(number) : nil }
        guard number == 1, partCount ?? 1 == 1 else { return nil }
        return 0..<size
    }

    /// Returns the metadata of the same bytes after a patch.
    /// - Parameter now: Milliseconds since 1970. ``updated`` never decreases, even if the clock goes back.
    public func patched(_ patch: AttributePatch, now: Int64) -> ObjectMetadata {
        ObjectMetadata(
            name: name, generation: generation, metageneration: metageneration < .max ? metageneration + 1 : .max,
            size: size, created: created, updated: max(now, updated), md5: md5, crc32c: crc32c, etag: etag,
            attributes: patch.applied(to: attributes))
    }

    public static func == (left: ObjectMetadata, right: ObjectMetadata) -> Bool {
        left === right
            || BytewiseString.areEqual(left.name, right.name) && left.generation == right.generation
                && left.metageneration == right.metageneration && left.size == right.size
                && left.created == right.created && left.updated == right.updated && left.md5 == right.md5
                && left.crc32c == right.crc32c && left.etag == right.etag && left.attributes == right.attributes
    }
}
