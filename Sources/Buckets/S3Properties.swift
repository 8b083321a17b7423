import OpenSSL
import Wire

/// What clients of S3 see of an object besides its other properties: the entity tag and the parts of an object that was
/// uploaded in parts, a checksum, and `Expires`. At most 1 KiB as stored.
public struct S3Properties: Sendable, Equatable {
    /// The checksum that the client has chosen.
    public struct Checksum: Sendable, Equatable {
        public var algorithm: ChecksumAlgorithm
        /// Whether it is the checksum of the parts' checksums (`COMPOSITE`) rather than of all bytes (`FULL_OBJECT`).
        public var isComposite: Bool
        /// Numbers are big-endian.
        public var value: [UInt8]

        public init(_ algorithm: ChecksumAlgorithm, _ value: [UInt8], isComposite: Bool = false) {
            self.algorithm = algorithm
            self.isComposite = isComposite
            self.value = value
        }
    }

    /// The entity tag without quotes, `MD5-COUNT`; nil if it is not stored.
    public var tag: String?
    /// The sizes of the parts; nil if they are not stored.
    public var parts: PartSizes?
    public var checksum: Checksum?
    /// Whether the checksum is the crc32c that the store has of all bytes, which is not repeated here.
    var hasStoresCRC32C = false
    /// The text of `Expires`. Longer text than ``maximumExpires`` bytes is dropped.
    public var expires: String? { didSet { expires = S3Properties.checked(expires) } }

    /// The maximum size of ``expires`` in bytes.
    public static let maximumExpires = 128

    public init(
        tag: String? = nil, parts: PartSizes? = nil, checksum: Checksum? = nil, expires: String? = nil
    ) {
        self.tag = tag
        self.parts = parts
        self.checksum = checksum
        self.expires = S3Properties.checked(expires)
    }

    var isEmpty: Bool { tag == nil && parts == nil && checksum == nil && expires == nil && !hasStoresCRC32C }

    private static func checked(_ expires: String?) -> String? {
        expires.flatMap { $0.utf8.count > maximumExpires ? nil : $0 }
    }

    /// Takes the crc32c that the store has of all bytes as the checksum, if it is.
    mutating func complete(crc32c: UInt32?) {
        guard hasStoresCRC32C, let crc32c else { return }
        checksum = Checksum(.crc32c, crc32c.bigEndianBytes)
        hasStoresCRC32C = false
    }

    /// The properties of a copy that is not made of the same parts; nil if nothing is left.
    package var withoutParts: S3Properties? {
        let full = checksum.flatMap { $0.isComposite ? nil : $0 }
        let left = S3Properties(checksum: full, expires: expires)
        return left.isEmpty ? nil : left
    }

    /// The entity tag that clients of S3 see (``ObjectMetadata/s3Tag``).
    /// - Parameter generation: nil if `etag` is the service's own.
    static func tag(stored: String?, etag: String, md5: [UInt8]?, generation: Int64?) -> String {
        if let stored { return stored }
        guard let generation else { return etag }
        let decimal = String(generation)
        // An S3 store has its own tag; the other stores' tag is the generation.
        if etag != decimal { return etag }
        if let md5 { return Hexadecimal.encode(md5) }
        return tag(ofParts: [Array(decimal.utf8)], count: 1)
    }

    /// The entity tag of an object in parts: the md5 of what identifies them, and their number.
    /// - Parameter digests: The md5s of the parts.
    package static func tag(ofParts digests: some Sequence<[UInt8]>, count: Int) -> String {
        let digest = Digest(.md5)
        for each in digests { digest.update(each.span.bytes) }
        return "\(Hexadecimal.encode(digest.finish()))-\(count)"
    }

    /// The number of parts in an entity tag `MD5-COUNT`; nil for other tags.
    static func partCount(tag: String) -> Int? {
        let words = tag.utf8.split(separator: UInt8(ascii: "-"), omittingEmptySubsequences: false)
        guard words.count == 2, words[0].count == 32, let text = String(words[1]),
            let count = Decimal.parse(Array(text.utf8).span, maximumDigits: 5, maximum: 10_000)
        else { return nil }
        return count > 0 ? Int(count) : nil
    }
}

extension ObjectAttributes {
    mutating func keep(_ checksum: S3Properties.Checksum) {
        var s3 = system.s3 ?? S3Properties()
        s3.checksum = checksum
        system.s3 = s3
    }
}

/// A checksum algorithm of S3.
public enum ChecksumAlgorithm: String, Sendable, Hashable, CaseIterable {
    /// 4 bytes; 4 bytes; 8 bytes; 20 bytes; 32 bytes.
    case crc32, crc32c, crc64nvme, sha1, sha256

    /// The digest to compute; nil for crc32c, which is always computed.
    public var digest: DigestAlgorithm? {
        switch self {
        case .crc32: .crc32
        case .crc32c: nil
        case .crc64nvme: .crc64nvme
        case .sha1: .sha1
        case .sha256: .sha256
        }
    }

    /// The size of a value in bytes.
    public var size: Int {
        switch self {
        case .crc32, .crc32c: 4
        case .crc64nvme: 8
        case .sha1: 20
        case .sha256: 32
        }
    }
}

extension S3Properties {
    /// The properties of an object of these parts; without a tag if a part's tag is not an md5.
    init(of parts: [Part], _ checksum: SelectedChecksum?) {
        let digests = parts.compactMap { Hexadecimal.decode($0.etag.utf8) }.filter { $0.count == 16 }
        self.init(
            tag: digests.count == parts.count ? S3Properties.tag(ofParts: digests, count: parts.count) : nil,
            parts: PartSizes(parts.lazy.map(\.size)))
        switch checksum {
        case .computed(let value): self.checksum = value
        case .storesCRC32C(let expected?): self.checksum = Checksum(.crc32c, expected)
        case .storesCRC32C(nil): hasStoresCRC32C = true
        case nil: break
        }
    }
}

extension S3Properties.Checksum {
    /// The checksum of an object of these parts, without reading their bytes.
    /// - Parameters:
    ///   - parts: Ordered by number, at least one.
    ///   - isComposite: Only CRCs have a checksum of the whole from those of the parts.
    /// - Returns: nil if a part lacks the checksum, or the algorithm has no such checksum.
    public init?(of parts: [Part], _ algorithm: ChecksumAlgorithm, isComposite: Bool) {
        var values: [[UInt8]] = []
        values.reserveCapacity(parts.count)
        for part in parts {
            guard let value = part.value(algorithm) else { return nil }
            values.append(value)
        }
        if values.isEmpty { return nil }
        if isComposite {
            guard algorithm != .crc64nvme else { return nil }
            let digests = ContentDigests(UploadPlan(digests: Set(algorithm.digest.map { [$0] } ?? [])))
            for value in values { digests.update(value.span.bytes) }
            guard let value = digests.facts().checksum(algorithm) else { return nil }
            self.init(algorithm, value, isComposite: true)
            return
        }
        var (whole, isFirst) = (values[0], true)
        for (part, value) in zip(parts, values) {
            defer { isFirst = false }
            if isFirst { continue }
            guard let combined = algorithm.combined(whole, value, count: part.size) else { return nil }
            whole = combined
        }
        // One part needs nothing to combine, but sha1 and sha256 have no such checksum in S3.
        guard algorithm.combined(whole, whole, count: 0) != nil else { return nil }
        self.init(algorithm, whole)
    }
}

extension Part {
    fileprivate func value(_ algorithm: ChecksumAlgorithm) -> [UInt8]? {
        if let checksum, checksum.algorithm == algorithm { return checksum.value }
        return algorithm == .crc32c ? crc32c?.bigEndianBytes : nil
    }
}

extension ChecksumAlgorithm {
    /// The checksum of bytes followed by `count` others; nil if it is no CRC.
    fileprivate func combined(_ first: [UInt8], _ second: [UInt8], count: UInt64) -> [UInt8]? {
        switch self {
        case .crc32, .crc32c:
            guard let first = UInt32(bigEndianBytes: first), let second = UInt32(bigEndianBytes: second) else {
                return nil
            }
            let combine = self == .crc32 ? CRC32.combined : CRC32CMatrix.combined
            return combine(first, second, count).bigEndianBytes
        case .crc64nvme:
            guard let first = UInt64(bigEndianBytes: first), let second = UInt64(bigEndianBytes: second) else {
                return nil
            }
            return CRC64NVME.combined(first, second, count: count).bigEndianBytes
        case .sha1, .sha256: return nil
        }
    }
}

/// The sizes of an object's parts, as runs of equal sizes.
public struct PartSizes: Sendable, Equatable {
    struct Run: Sendable, Equatable {
        var size: UInt64
        var count: Int
    }
    /// The maximum number of runs. The sizes of other objects are not stored.
    static let maximumRuns = 12
    let runs: [Run]

    /// - Parameter sizes: In bytes, in order.
    /// - Returns: nil if there are too many different ones, or none.
    public init?(_ sizes: some Sequence<UInt64>) {
        var runs: [Run] = []
        for size in sizes {
            if let last = runs.last, last.size == size {
                runs[runs.count - 1].count += 1
            } else {
                if runs.count == PartSizes.maximumRuns { return nil }
                runs.append(Run(size: size, count: 1))
            }
        }
        if runs.isEmpty { return nil }
        self.runs = runs
    }

    private init(runs: [Run]) { self.runs = runs }

    /// The number of parts.
    public var count: Int { runs.reduce(0) { $0 + $1.count } }

    /// The size of the object in bytes.
    public var total: UInt64 { runs.reduce(0) { $0 &+ $1.size &* UInt64($1.count) } }

    /// The bytes of a part; nil if there is none of this number.
    /// - Parameter number: From 1 to ``count``, whatever the numbers were during the upload.
    public func range(_ number: Int) -> Range<UInt64>? {
        var (left, start) = (number - 1, UInt64(0))
        guard left >= 0 else { return nil }
        for run in runs {
            if left < run.count {
                let first = start &+ UInt64(left) &* run.size
                return first..<first &+ run.size
            }
            left -= run.count
            start &+= UInt64(run.count) &* run.size
        }
        return nil
    }

    /// `SIZE*COUNT,…`
    fileprivate var text: String { runs.map { "\($0.size)*\($0.count)" }.joined(separator: ",") }

    fileprivate init?(text: Substring.UTF8View) {
        func number(_ text: Substring.UTF8View, _ maximum: UInt64) -> UInt64? {
            Decimal.parse(Array(text).span, maximumDigits: 19, maximum: maximum)
        }
        var runs: [Run] = []
        var total: UInt64 = 0
        for run in text.split(separator: UInt8(ascii: ","), omittingEmptySubsequences: false) {
            let words = run.split(separator: UInt8(ascii: "*"), omittingEmptySubsequences: false)
            guard words.count == 2, runs.count < PartSizes.maximumRuns,
                let size = number(words[0], UInt64(Int64.max)), let count = number(words[1], 10_000), count > 0
            else { return nil }
            let (product, isOver) = size.multipliedReportingOverflow(by: count)
            guard !isOver, product <= UInt64(Int64.max) - total else { return nil }
            total += product
            runs.append(Run(size: size, count: Int(count)))
        }
        guard !runs.isEmpty else { return nil }
        self.init(runs: runs)
    }
}

// As stored: members in a fixed order, separated by semicolons. Visible ASCII, for header fields.
//
//     tag=MD5-COUNT;parts=SIZE*COUNT,…;sum=ALGORITHM:full|composite:BASE64;expires=PERCENT-ENCODED
//
// `sum=store` is the crc32c that the store has.
extension S3Properties {
    var text: String {
        var members: [String] = []
        if let tag { members.append("tag=\(PercentEncoding.encodeSegment(tag))") }
        if let parts { members.append("parts=\(parts.text)") }
        if let checksum {
            let kind = checksum.isComposite ? "composite" : "full"
            members.append("sum=\(checksum.algorithm.rawValue):\(kind):\(Base64.encode(checksum.value))")
        } else if hasStoresCRC32C {
            members.append("sum=store")
        }
        if let expires { members.append("expires=\(PercentEncoding.encodeSegment(expires))") }
        return members.joined(separator: ";")
    }

    /// Parses ``text``. Unknown and malformed members are ignored. nil if there is none left.
    init?(text: String) {
        self.init()
        func decoded(_ text: Substring.UTF8View) -> String? {
            guard let bytes = try? PercentEncoding.decode(Array(text)[...]) else { return nil }
            return String(validating: bytes, as: UTF8.self).flatMap { $0.isFieldValue ? $0 : nil }
        }
        for member in text.utf8.split(separator: UInt8(ascii: ";")) {
            guard let equals = member.firstIndex(of: UInt8(ascii: "=")) else { continue }
            let value = member[member.index(after: equals)...]
            switch String(member[..<equals]) ?? "" {
            case "tag": tag = decoded(value)
            case "parts": parts = PartSizes(text: value)
            case "sum":
                checksum = Checksum(text: value)
                hasStoresCRC32C = value.elementsEqual("store".utf8)
            case "expires": expires = decoded(value)
            default: break
            }
        }
        if isEmpty { return nil }
    }
}

extension S3Properties.Checksum {
    fileprivate init?(text: Substring.UTF8View) {
        let words = text.split(separator: UInt8(ascii: ":"), omittingEmptySubsequences: false)
        guard words.count == 3, let algorithm = String(words[0]).flatMap(ChecksumAlgorithm.init(rawValue:)),
            let value = Base64.decode(Array(words[2])[...]), value.count == algorithm.size
        else { return nil }
        switch String(words[1]) ?? "" {
        case "full": self.init(algorithm, value)
        case "composite": self.init(algorithm, value, isComposite: true)
        default: return nil
        }
    }
}
