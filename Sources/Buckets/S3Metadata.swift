import Glibc
import Wire

/// What the head of an answer about an object says, read in one pass.
///
/// What S3 has no place for stands in user metadata whose keys begin with `sluice-`. An object that others stored has
/// none: its generation is made of the time and the entity tag, so that it changes with every upload that changes bytes.
struct S3Head {
    /// Without quotes.
    var etag: String?
    /// Seconds since 1970.
    var lastModified: Int64 = 0
    var contentLength: UInt64?
    /// `Content-Range`: the part that follows, and the whole object's size.
    var part: (range: Range<UInt64>, size: UInt64)?
    var attributes = ObjectAttributes()
    private var generation: Int64?
    private var metageneration: Int64?
    private var updated: Int64?
    private var md5: [UInt8]?
    private var crc32c: UInt32?
    private var checksum: UInt32?
    private var isComposite = false
    private var encryption: Encryption?
    private var packed: [UInt8]?

    private enum Encryption { case ofService, byKey }
    /// Bytes that an object may be said to have: what a count of bytes holds.
    static let largestSize = UInt64(Int64.max)
    /// Of a generation or metageneration.
    private static let largestNumber = UInt64(Int64.max / 2)

    init(_ fields: HeaderFields) {
        fields.read { reader in
            while let (name, value) = reader.next() { take(name, value) }
        }
        if let packed { S3Fields.unpack(packed, into: &attributes) }
    }

    private mutating func take(
        _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>
    ) {
        func text() -> String { String(decoding: value, as: UTF8.self) }
        switch name.first {
        case UInt8(ascii: "x"): takeExtension(name, value)
        case UInt8(ascii: "e") where name.matches("etag"): etag = S3Head.opaqueTag(value)
        case UInt8(ascii: "l") where name.matches("last-modified"):
            lastModified = HTTPDate.parse(Array(value)[...], now: 0) ?? 0
        case UInt8(ascii: "c"):
            if name.matches("content-length") {
                contentLength = decimal(value)
            } else if name.matches("content-type") {
                if !value.matches(S3Fields.unknownType) { attributes.contentType = text() }
            } else if name.matches("content-range") {
                part = S3Head.contentRange(Array(value)[...])
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
            attributes.customMetadata[BytewiseString(String(decoding: key, as: UTF8.self))] =
                String(decoding: value, as: UTF8.self)
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
        // Others may have stored what no counter of ours comes to, and one more of it must still be a number.
        func number() -> Int64? {
            decimal(value).flatMap { (1...S3Head.largestNumber).contains($0) ? Int64($0) : nil }
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
        }
    }

    /// The object that this head describes.
    /// - Parameter isAWS: Whether the service is AWS: with its own encryption the entity tag is still the md5.
    consuming func metadata(_ name: String, size: UInt64, isAWS: Bool) -> ObjectMetadata {
        let tagged = taggedMD5(isAWS: isAWS)
        // Other bytes than were stored with these keys: someone has carried them over to another object.
        let isOwn = generation != nil && (tagged == nil || md5 == nil || tagged == md5)
        let etag = etag ?? "\(lastModified)-\(size)"
        let generation =
            isOwn ? generation ?? 0 : S3Head.generation(lastModified: lastModified, etag: etag)
        let created = generation / 1000
        return ObjectMetadata(
            name: name, generation: generation, metageneration: isOwn ? metageneration ?? 1 : 1,
            size: size, created: created,
            updated: isOwn ? max(updated ?? created, created) : created,
            md5: isOwn ? md5 ?? tagged : tagged,
            crc32c: (isOwn ? crc32c : nil) ?? (isComposite ? nil : checksum), etag: etag,
            attributes: attributes)
    }

    /// The md5 in the entity tag: of an object that was stored in one part, and not encrypted with a key that matters.
    func taggedMD5(isAWS: Bool) -> [UInt8]? {
        guard encryption == nil || (encryption == .ofService && isAWS), let etag,
            etag.utf8.count == 32
        else { return nil }
        return Hexadecimal.decode(etag.utf8)
    }

    /// The generation of an object that has none: microseconds since 1970 of its second, and within it a place that
    /// depends on the entity tag.
    static func generation(lastModified: Int64, etag: String) -> Int64 {
        max(1, lastModified * 1_000_000 + Int64(BytewiseString.place(of: etag, among: 1_000_000)))
    }

    /// Without quotes, and without the mark of a weak tag.
    static func opaqueTag(_ value: UnsafeBufferPointer<UInt8>) -> String {
        var rest = value[...]
        if rest.starts(with: "W/".utf8) { rest = rest.dropFirst(2) }
        if rest.count >= 2, rest.first == UInt8(ascii: "\""), rest.last == UInt8(ascii: "\"") {
            rest = rest.dropFirst().dropLast()
        }
        return String(decoding: rest, as: UTF8.self)
    }

    /// The same of a text in XML.
    static func unquoted(_ text: String) -> String {
        Array(text.utf8).withUnsafeBufferPointer(opaqueTag)
    }

    /// Some services give back how the body was framed when it was sent.
    private static func contentEncoding(_ text: String) -> String? {
        if !text.hasPrefix("aws-chunked") { return text }
        let rest = text.dropFirst(11).drop { $0 == "," || $0 == " " }
        return rest.isEmpty ? nil : String(rest)
    }

    /// `bytes 0-9/100`.
    static func contentRange(_ text: ArraySlice<UInt8>) -> (range: Range<UInt64>, size: UInt64)? {
        guard text.starts(with: "bytes ".utf8) else { return nil }
        let rest = text.dropFirst(6)
        guard let dash = rest.firstIndex(of: UInt8(ascii: "-")),
            let slash = rest.firstIndex(of: UInt8(ascii: "/")), dash < slash,
            let first = ASCII.saturatingDecimal(rest[..<dash]),
            let last = ASCII.saturatingDecimal(rest[(dash + 1)..<slash]),
            let size = ASCII.saturatingDecimal(rest[(slash + 1)...]), first <= last, last < size,
            size <= S3Head.largestSize
        else { return nil }
        return (first..<last + 1, size)
    }

    private static func bigEndian(_ bytes: [UInt8]?) -> UInt32? {
        guard let bytes, bytes.count == 4 else { return nil }
        return bytes.reduce(0) { $0 << 8 | UInt32($1) }
    }

    /// nil also where it is more than ``largestSize``.
    private func decimal(_ value: UnsafeBufferPointer<UInt8>) -> UInt64? {
        var number: UInt64 = 0
        guard !value.isEmpty, value.count <= 19 else { return nil }
        for byte in value {
            guard ASCII.isDigit(byte) else { return nil }
            number = number * 10 + UInt64(byte - 0x30)
        }
        return number <= S3Head.largestSize ? number : nil
    }
}

/// How an object's properties are written into the fields of a request.
enum S3Fields {
    /// What S3 calls an object whose type was not given.
    static let unknownType: StaticString = "binary/octet-stream"

    /// Adds all properties. What a field can't carry exactly goes into one field of our own, as base64url of JSON.
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

    /// Adds what S3 has no place for.
    /// - Parameter updated: Milliseconds since 1970 of the last patch; nil where there was none.
    static func append(
        generation: Int64, metageneration: Int64 = 1, updated: Int64? = nil, md5: [UInt8]?,
        crc32c: UInt32?,
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

    /// Adds what ``append(_:to:)`` packed; what is not of that form is passed over.
    static func unpack(_ text: [UInt8], into attributes: inout ObjectAttributes) {
        guard let bytes = Base64.decodeForURL(text[...]),
            case .object(let members)? = try? JSONReader.parse(bytes)
        else { return }
        for member in members {
            switch member.key {
            case "contentType":
                attributes.contentType = ObjectAttributes.property(member.value.text)
            case "cacheControl":
                attributes.cacheControl = ObjectAttributes.property(member.value.text)
            case "contentDisposition":
                attributes.contentDisposition = ObjectAttributes.property(member.value.text)
            case "contentEncoding":
                attributes.contentEncoding = ObjectAttributes.property(member.value.text)
            case "contentLanguage":
                attributes.contentLanguage = ObjectAttributes.property(member.value.text)
            case "customMetadata":
                guard case .object(let pairs) = member.value else { continue }
                for pair in pairs {
                    attributes.customMetadata[BytewiseString(pair.key)] = pair.value.text
                }
            default: break
            }
        }
    }

    /// Whether a field carries a value so that every service and proxy gives it back as it is: visible ASCII, single
    /// spaces within, and not the beginning of an encoded word (RFC 2047), which S3 decodes.
    static func isExact(_ value: String) -> Bool {
        var previous = UInt8(ascii: " ")
        for byte in value.utf8 {
            guard ASCII.isVisible(byte) || byte == 0x20 && previous != 0x20 else { return false }
            previous = byte
        }
        return previous != 0x20 && !value.hasPrefix("=?")
    }

    /// Whether a field's name carries a key: lower case, and not one of our own.
    private static func isKey(_ key: BytewiseString) -> Bool {
        !key.text.isEmpty && key.utf8.count <= 128 && !key.text.hasPrefix("sluice-")
            && key.utf8.allSatisfy {
                ASCII.isLowercase($0) || ASCII.isDigit($0) || $0 == UInt8(ascii: "-")
                    || $0 == UInt8(ascii: "_") || $0 == UInt8(ascii: ".")
            }
    }
}

extension UnsafeBufferPointer<UInt8> {
    /// Whether the bytes are those of `text`.
    func matches(_ text: StaticString) -> Bool {
        // An empty buffer may have no address.
        count == text.utf8CodeUnitCount && count > 0
            && memcmp(baseAddress!, text.utf8Start, count) == 0
    }

    func starts(with text: StaticString) -> Bool {
        count >= text.utf8CodeUnitCount
            && memcmp(baseAddress!, text.utf8Start, text.utf8CodeUnitCount) == 0
    }
}

extension UInt32 {
    /// Most significant first, as checksums are written.
    var bigEndianBytes: [UInt8] { withUnsafeBytes(of: bigEndian) { Array($0) } }
}
