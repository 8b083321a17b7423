import Wire

/// The properties that a client may set.
public struct ObjectAttributes: Sendable, Equatable {
    public var contentType: String?
    public var cacheControl: String?
    public var contentDisposition: String?
    public var contentEncoding: String?
    public var contentLanguage: String?
    /// At most 8 KiB, keys and values together.
    public var customMetadata: [BytewiseString: String]

    public init(
        contentType: String? = nil, cacheControl: String? = nil, contentDisposition: String? = nil,
        contentEncoding: String? = nil, contentLanguage: String? = nil,
        customMetadata: [BytewiseString: String] = [:]
    ) {
        self.contentType = contentType
        self.cacheControl = cacheControl
        self.contentDisposition = contentDisposition
        self.contentEncoding = contentEncoding
        self.contentLanguage = contentLanguage
        self.customMetadata = customMetadata
    }
}

extension ObjectAttributes {
    /// A property as a service has it; nil where it is empty or has what no header field can carry. Others write to the
    /// service, too: what they left there must not end a field and begin another.
    static func property(_ text: String?) -> String? {
        guard let text, !text.isEmpty, text.isFieldValue else { return nil }
        return text
    }
}

extension String {
    /// Whether a header field can have it as its value: no control character but a tab (RFC 9110, section 5.5).
    package var isFieldValue: Bool { utf8.allSatisfy { !ASCII.isControl($0) || $0 == 0x09 } }
}

extension [BytewiseString: String] {
    /// Bytes of all pairs of custom metadata, keys and values together.
    package var byteCount: Int { reduce(0) { $0 + $1.key.utf8.count + $1.value.utf8.count } }
}

/// A change of ``ObjectAttributes`` as RFC 7396 describes it.
public struct AttributePatch: Sendable, Equatable {
    /// What happens to one property.
    public enum Change: Sendable, Equatable {
        case keep
        case remove
        case set(String)
    }
    /// Each property that has a field of its own.
    public var contentType = Change.keep
    public var cacheControl = Change.keep
    public var contentDisposition = Change.keep
    public var contentEncoding = Change.keep
    public var contentLanguage = Change.keep
    /// `"customMetadata": null`: every pair is removed before ``customMetadata`` applies.
    public var clearCustomMetadata = false
    /// nil removes the pair.
    public var customMetadata: [BytewiseString: String?] = [:]

    public init() {}

    /// The attributes as this patch leaves them.
    public func applied(to old: ObjectAttributes) -> ObjectAttributes {
        var new = old
        apply(contentType, to: &new.contentType)
        apply(cacheControl, to: &new.cacheControl)
        apply(contentDisposition, to: &new.contentDisposition)
        apply(contentEncoding, to: &new.contentEncoding)
        apply(contentLanguage, to: &new.contentLanguage)
        if clearCustomMetadata { new.customMetadata = [:] }
        for (key, value) in customMetadata { new.customMetadata[key] = value }
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

/// What a store knows of an object in one of its states. Whoever holds it shares it.
public final class ObjectMetadata: Sendable, Equatable {
    /// The whole name.
    public let name: String
    /// New with each upload, never used again in its bucket.
    public let generation: Int64
    /// 1 with each upload, one more with each patch.
    public let metageneration: Int64
    /// Bytes.
    public let size: UInt64
    /// Milliseconds since 1970 of the upload.
    public let created: Int64
    /// Milliseconds since 1970 of the last change.
    public let updated: Int64
    /// 16 bytes; nil where the store does not know it.
    public let md5: [UInt8]?
    /// nil where the store does not know it.
    public let crc32c: UInt32?
    /// Strong, without quotes; stands for the bytes.
    public let etag: String
    public let attributes: ObjectAttributes

    public init(
        name: String, generation: Int64, metageneration: Int64, size: UInt64, created: Int64,
        updated: Int64, md5: [UInt8]?, crc32c: UInt32?, etag: String, attributes: ObjectAttributes
    ) {
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

    /// The same bytes with the attributes that a patch leaves.
    /// - Parameter now: Milliseconds since 1970. Time does not go back where the clock does.
    public func patched(_ patch: AttributePatch, now: Int64) -> ObjectMetadata {
        ObjectMetadata(
            name: name, generation: generation,
            metageneration: metageneration < .max ? metageneration + 1 : .max, size: size,
            created: created, updated: max(now, updated), md5: md5, crc32c: crc32c, etag: etag,
            attributes: patch.applied(to: attributes))
    }

    public static func == (left: ObjectMetadata, right: ObjectMetadata) -> Bool {
        left === right
            || BytewiseString.areEqual(left.name, right.name) && left.generation == right.generation
                && left.metageneration == right.metageneration && left.size == right.size
                && left.created == right.created && left.updated == right.updated
                && left.md5 == right.md5 && left.crc32c == right.crc32c && left.etag == right.etag
                && left.attributes == right.attributes
    }
}
