import Glibc
import Wire

/// The object properties in a response header, read in one pass.
///
/// Properties that S3 lacks are in user metadata with the prefix `sluice-`. Other clients' objects have none: their
/// generation is derived from the modification time and the entity tag, so that it changes when an upload changes the
/// bytes. Not copyable: copying its many properties would cost as much as parsing them.
struct S3Head: ~Copyable {
    /// Without quotes.
    var etag: String?
    /// Seconds since 1970.
    var lastModified: Int64 = 0
    var contentLength: UInt64?
    /// `Content-Range`: the part and the whole object's size.
    var part: ContentRange?
    var attributes = ObjectAttributes()
    /// The following properties come from our user metadata.
    private(set) var generation: Int64?
    private var metageneration: Int64?
    private var updated: Int64?
    private var md5: [UInt8]?
    private var crc32c: UInt32?
    private var uploadSession: UploadSessionID?
    private var s3: S3Properties?
    private var checksum: UInt32?
    private var isComposite = false
    private var encryption: Encryption?
    private var packed: [UInt8]?

    private enum Encryption { case ofService, byKey }
    /// The maximum size of an object: the largest signed 64-bit integer.
    static let largestSize = UInt64(Int64.max)
    private static let largestNumber = UInt64(Int64.max / 2)

    init(_ fields: HeaderFields) {
        fields.read { reader in
            while let (name, value) = reader.next() { take(name, value) }
        }
        if let packed { S3Fields.unpack(packed, into: &attributes) }
    }

    /// Whether a field may be read. Others, such as the date, may differ in every response for the same object.
    @inline(__always)
    static func isRead(_ name: UnsafeBufferPointer<UInt8>) -> Bool {
        switch name.first {
        case UInt8(ascii: "c"), UInt8(ascii: "e"), UInt8(ascii: "l"): true
        case UInt8(ascii: "x"):
            name.starts(with: "x-amz-meta-") || name.starts(with: "x-amz-checksum-")
                || name.starts(with: "x-amz-server-")
        default: false
        }
    }

    private mutating func take(
        _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>
    ) {
        guard S3Head.isRead(name) else { return }
        func text() -> String { String(decoding: value, as: UTF8.self) }
        switch name.first {
        case UInt8(ascii: "x"): takeExtension(name, value)
        case UInt8(ascii: "e") where name.matches("etag"):
            // Treat an empty tag as none.
            let tag = S3Head.opaqueTag(value)
            etag = tag.utf8.isEmpty ? nil : tag
        case UInt8(ascii: "l") where name.matches("last-modified"):
            lastModified = HTTPDate.parse(value.span, now: 0) ?? 0
        case UInt8(ascii: "c"):
            if name.matches("content-length") {
                contentLength = S3Head.decimal(value)
            } else if name.matches("content-type") {
                if !value.matches(S3Fields.unknownType) { attributes.contentType = text() }
            } else if name.matches("content-range") {
                part = ContentRange(value.span)
            } else if name.matches("cache-control") {
                attributes.cacheControl = text()
            } else if name.matches("content-disposition") {
                attributes.contentDisposition = text()
            } else if name.matches("content-encoding") {
                attributes.contentEncoding = S3Head.contentEncoding(text())
            } else if name.matches("content-language") {
                attributes.contentLanguage = text()
            }
        default: break
        }
    }

    private mutating func takeExtension(
        _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>
    ) {
        if name.starts(with: "x-amz-meta-") {
            let key = UnsafeBufferPointer(rebasing: name[11...])
            if key.starts(with: "sluice-") { return takeOwn(key, value) }
            let text = String(decoding: value, as: UTF8.self)
            if key.matches("firebasestoragedownloadtokens") {
                attributes.system.downloadTokens = SystemMetadata.tokens(of: text)
            } else {
                attributes.customMetadata[BytewiseString(String(decoding: key, as: UTF8.self))] = text
            }
        } else if name.matches("x-amz-checksum-crc32c") {
            checksum = S3Head.bigEndian(Base64.decode(Array(value)[...]))
        } else if name.matches("x-amz-checksum-type") {
            isComposite = value.matches("COMPOSITE")
        } else if name.matches("x-amz-server-side-encryption") {
            if encryption == nil { encryption = value.matches("AES256") ? .ofService : .byKey }
        } else if name.matches("x-amz-server-side-encryption-customer-algorithm") {
            encryption = .byKey
        }
    }

    private mutating func takeOwn(
        _ key: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>
    ) {
        // Reject other clients' values that could overflow when incremented.
        func number() -> Int64? {
            S3Head.decimal(value).flatMap {
                (1...S3Head.largestNumber).contains($0) ? Int64($0) : nil
            }
        }
        if key.matches("sluice-generation") {
            generation = number()
        } else if key.matches("sluice-metageneration") {
            metageneration = number()
        } else if key.matches("sluice-updated") {
            updated = number()
        } else if key.matches("sluice-md5") {
            md5 = Hexadecimal.decode(value).flatMap { $0.count == 16 ? $0 : nil }
        } else if key.matches("sluice-crc32c") {
            crc32c = S3Head.bigEndian(Hexadecimal.decode(value))
        } else if key.matches("sluice-attributes") {
            packed = Array(value)
        } else if key.matches("sluice-session") {
            uploadSession = UploadSessionID(text: String(decoding: value, as: UTF8.self))
        } else if key.matches("sluice-s3") {
            s3 = S3Properties(text: String(decoding: value, as: UTF8.self))
        }
    }

    /// Converts the header to object metadata.
    /// - Parameters:
    ///   - isAWS: Whether the service is AWS, whose entity tag is the md5 even with its own encryption.
    ///   - tagsAreMD5: Whether the service's entity tags can be md5s.
    consuming func metadata(_ name: String, size: UInt64, isAWS: Bool, tagsAreMD5: Bool = true)
        -> ObjectMetadata
    {
        var tagged = tagsAreMD5 ? taggedMD5(isAWS: isAWS) : nil
        // The service's checksum confirms the bytes, so a tag that differs from the stored md5 is not an md5.
        if tagged != md5, md5 != nil, let crc32c, !isComposite, checksum == crc32c { tagged = nil }
        // If the bytes differ from those stored with these keys, another client copied the metadata.
        let isOwn = generation != nil && (tagged == nil || md5 == nil || tagged == md5)
        let etag = etag ?? S3Head.substitute(lastModified, size: size)
        let generation = isOwn ? generation ?? 0 : S3Head.generation(lastModified: lastModified, etag: etag)
        let created = generation / 1000
        if isOwn {
            attributes.system.uploadSession = uploadSession
            attributes.system.s3 = s3
        }
        // Moved, because a copy would retain each property.
        var moved = ObjectAttributes()
        swap(&moved, &attributes)
        return ObjectMetadata(
            name: name, generation: generation, metageneration: isOwn ? metageneration ?? 1 : 1,
            size: size, created: created,
            updated: isOwn ? max(updated ?? created, created) : created,
            md5: isOwn ? md5 ?? tagged : tagged,
            crc32c: (isOwn ? crc32c : nil) ?? (isComposite ? nil : checksum), etag: etag,
            attributes: moved)
    }

    /// The tag of an object without an entity tag.
    private static func substitute(_ lastModified: Int64, size: UInt64) -> String { "\(lastModified)-\(size)" }

    /// Whether a tag has the form of a substitute. No request can be pinned to it. A tag of an object in parts is longer:
    /// it has 32 digits before the hyphen.
    static func isSubstitute(_ etag: String, size: UInt64) -> Bool {
        guard etag.utf8.count < 32, let lastModified = Int64(etag.prefix { $0 != "-" }) else { return false }
        return BytewiseString.areEqual(etag, substitute(lastModified, size: size))
    }

    /// The md5 in the entity tag, for an object stored in one part without encryption that changes the tag.
    func taggedMD5(isAWS: Bool) -> [UInt8]? {
        guard encryption == nil || (encryption == .ofService && isAWS), let etag,
            etag.utf8.count == 32
        else { return nil }
        return Hexadecimal.decode(etag.utf8)
    }

    /// A generation for an object without one: its modification time in microseconds since 1970, with the microseconds
    /// of the second derived from the entity tag.
    static func generation(lastModified: Int64, etag: String) -> Int64 {
        max(1, lastModified * 1_000_000 + Int64(BytewiseString.hash(of: etag, below: 1_000_000)))
    }

    /// Removes the quotes and the prefix of a weak tag.
    static func opaqueTag(_ value: UnsafeBufferPointer<UInt8>) -> String {
        var rest = value[...]
        if rest.starts(with: "W/".utf8) { rest = rest.dropFirst(2) }
        if rest.count >= 2, rest.first == UInt8(ascii: "\""), rest.last == UInt8(ascii: "\"") {
            rest = rest.dropFirst().dropLast()
        }
        return String(decoding: rest, as: UTF8.self)
    }

    static func unquoted(_ text: String) -> String {
        Array(text.utf8).withUnsafeBufferPointer(opaqueTag)
    }

    /// Removes `aws-chunked`, which some services return although it only described the transfer.
    private static func contentEncoding(_ text: String) -> String? {
        if !text.hasPrefix("aws-chunked") { return text }
        let rest = text.dropFirst(11).drop { $0 == "," || $0 == " " }
        return rest.isEmpty ? nil : String(rest)
    }

    private static func bigEndian(_ bytes: [UInt8]?) -> UInt32? {
        guard let bytes, bytes.count == 4 else { return nil }
        return bytes.reduce(0) { $0 << 8 | UInt32($1) }
    }

    /// nil also above ``largestSize``.
    private static func decimal(_ value: UnsafeBufferPointer<UInt8>) -> UInt64? {
        Decimal.parse(value.span, maximumDigits: 19, maximum: largestSize)
    }
}

/// Writes object properties to request fields.
enum S3Fields {
    /// The type that S3 reports for an object stored without one.
    static let unknownType: StaticString = "binary/octet-stream"

    /// Appends all properties. One user metadata field has those that no field can represent, as base64url of JSON.
    static func append(_ attributes: ObjectAttributes, to fields: inout HeaderFields) {
        var json = JSONWriter(reserving: 256)
        var isPacked = false
        json.beginObject()
        func put(_ name: StaticString, _ key: StaticString, _ value: String?) {
            guard let value else { return }
            if isExact(value) {
                fields.append(name, value)
            } else {
                json.member(key, value)
                isPacked = true
            }
        }
        if let type = attributes.contentType, isExact(type), type != "\(unknownType)" {
            fields.append("content-type", type)
        } else {
            fields.append("content-type", "\(unknownType)")
            if let type = attributes.contentType {
                json.member("contentType", type)
                isPacked = true
            }
        }
        put("cache-control", "cacheControl", attributes.cacheControl)
        put("content-disposition", "contentDisposition", attributes.contentDisposition)
        put("content-encoding", "contentEncoding", attributes.contentEncoding)
        put("content-language", "contentLanguage", attributes.contentLanguage)
        let tokens = attributes.system.downloadTokens
        put(
            "x-amz-meta-firebasestoragedownloadtokens", "downloadTokens",
            tokens.isEmpty ? nil : SystemMetadata.joined(tokens))
        if let session = attributes.system.uploadSession {
            fields.append("x-amz-meta-sluice-session", session.text)
        }
        if let s3 = attributes.system.s3 { fields.append("x-amz-meta-sluice-s3", s3.text) }
        let pairs = attributes.customMetadata.sorted { $0.key < $1.key }
        let exact = pairs.filter { isKey($0.key) && isExact($0.value) }
        for (key, value) in exact { fields.append(name: "x-amz-meta-\(key.text)", value) }
        if exact.count < pairs.count {
            json.key("customMetadata")
            json.beginObject()
            for (key, value) in pairs where !(isKey(key) && isExact(value)) {
                json.member(key: key.text, value)
            }
            json.endObject()
            isPacked = true
        }
        json.endObject()
        if isPacked {
            fields.append("x-amz-meta-sluice-attributes", Base64.encodeForURL(json.bytes))
        }
    }

    /// Appends the properties that S3 lacks. `updated`: the time of the last patch, in milliseconds since 1970.
    static func append(
        generation: Int64, metageneration: Int64 = 1, updated: Int64? = nil, md5: [UInt8]?, crc32c: UInt32?,
        to fields: inout HeaderFields
    ) {
        fields.append("x-amz-meta-sluice-generation", generation)
        if let updated {
            fields.append("x-amz-meta-sluice-metageneration", metageneration)
            fields.append("x-amz-meta-sluice-updated", updated)
        }
        if let md5 { fields.append("x-amz-meta-sluice-md5", Hexadecimal.encode(md5)) }
        if let crc32c {
            fields.append(
                "x-amz-meta-sluice-crc32c", Hexadecimal.encode(crc32c.bigEndianBytes))
        }
    }

    /// Reads the field that ``append(_:to:)`` packed. Malformed text is ignored.
    static func unpack(_ text: [UInt8], into attributes: inout ObjectAttributes) {
        guard let bytes = Base64.decodeForURL(text[...]), case .object(let members)? = try? JSONReader.parse(bytes)
        else { return }
        for member in members {
            switch member.key {
            case "contentType": attributes.contentType = ObjectAttributes.property(member.value.text)
            case "cacheControl": attributes.cacheControl = ObjectAttributes.property(member.value.text)
            case "contentDisposition": attributes.contentDisposition = ObjectAttributes.property(member.value.text)
            case "contentEncoding": attributes.contentEncoding = ObjectAttributes.property(member.value.text)
            case "contentLanguage": attributes.contentLanguage = ObjectAttributes.property(member.value.text)
            case "customMetadata":
                guard case .object(let pairs) = member.value else { continue }
                for pair in pairs where !SystemMetadata.isReserved(pair.key) {
                    attributes.customMetadata[BytewiseString(pair.key)] = pair.value.text
                }
            case "downloadTokens":
                attributes.system.downloadTokens = SystemMetadata.tokens(
                    of: member.value.text ?? "")
            default: break
            }
        }
    }

    /// Whether every service and proxy returns a value unchanged: visible ASCII with single spaces inside, and not the
    /// start of an encoded word (RFC 2047), which S3 decodes.
    static func isExact(_ value: String) -> Bool {
        var previous = UInt8(ascii: " ")
        for byte in value.utf8 {
            guard ASCII.isVisible(byte) || byte == 0x20 && previous != 0x20 else { return false }
            previous = byte
        }
        return previous != 0x20 && !value.hasPrefix("=?")
    }

    static func isKey(_ key: BytewiseString) -> Bool {
        !key.text.isEmpty && key.utf8.count <= 128
            && key.utf8.allSatisfy {
                ASCII.isLowercase($0) || ASCII.isDigit($0) || $0 == UInt8(ascii: "-")
                    || $0 == UInt8(ascii: "_") || $0 == UInt8(ascii: ".")
            }
    }
}

extension UnsafeBufferPointer<UInt8> {
    fileprivate func starts(with text: StaticString) -> Bool {
        count >= text.utf8CodeUnitCount && memcmp(baseAddress!, text.utf8Start, text.utf8CodeUnitCount) == 0
    }
}
