import Wire

// A state as bytes: a version, then all properties in a fixed order. Numbers are big-endian, and values of variable
// size are preceded by their size (32 bits). Unknown versions are rejected. The version tells an upload in parts from a
// session, so that a program without uploads in parts can read the sessions.
extension CloudSessionState {
    private static let version: UInt8 = 2
    private static let partsVersion: UInt8 = 3
    private static func isKnown(version: UInt8) -> Bool { [CloudSessionState.version, partsVersion].contains(version) }
    /// The maximum size of a state in bytes: 4 MiB, which 10,000 parts with long entity tags do not reach.
    static let maximumBytes = 4 << 20

    var bytes: [UInt8] {
        var writer = StateWriter()
        writer.put(isInParts ? CloudSessionState.partsVersion : CloudSessionState.version)
        writer.put(name)
        writer.put(attributes)
        writer.put(created)
        writer.put(context)
        writer.put(mark)
        writer.put(owner)
        writer.put(isTakenOver)
        writer.put(stamp)
        writer.put(isOpen)
        writer.put(expires)
        writer.put(length) { $0.put($1) }
        writer.put(offset)
        writer.put(digests)
        writer.put(pieces) {
            $0.put($1.number)
            $0.put($1.size)
        }
        writer.put(tail)
        writer.put(transfer)
        writer.put(intent) {
            $0.put($1.generation)
            $0.put($1.etag) { $0.put($1) }
            $0.put($1.source) {
                $0.put($1.piece) { $0.put($1) }
                $0.put($1.generation)
            }
        }
        writer.put(end) { $0.put($1) }
        return writer.bytes
    }

    /// Parses ``bytes``.
    /// - Throws: ``BucketError`` with `.internal` if they are malformed, inconsistent or of another version.
    init(_ bytes: [UInt8]) throws(BucketError) {
        guard bytes.count <= CloudSessionState.maximumBytes else {
            throw StateReader.malformed("\(bytes.count) bytes")
        }
        var reader = StateReader(bytes)
        let version: UInt8 = try reader.number()
        guard CloudSessionState.isKnown(version: version) else {
            throw StateReader.malformed("version \(version)")
        }
        isInParts = version == CloudSessionState.partsVersion
        name = try reader.text()
        attributes = try reader.attributes()
        created = try reader.number()
        context = try reader.data()
        mark = try reader.number()
        owner = try reader.number()
        isTakenOver = try reader.flag()
        stamp = try reader.number()
        isOpen = try reader.flag()
        expires = try reader.number()
        length = try reader.optional { (reader) throws(BucketError) in try reader.size() }
        offset = try reader.size()
        digests = try reader.data()
        pieces = try reader.array { (reader) throws(BucketError) in
            Piece(number: try reader.number(), size: try reader.size())
        }
        tail = try reader.data()
        transfer = try reader.transfer()
        intent = try reader.optional { (reader) throws(BucketError) in
            Intent(
                generation: try reader.number(),
                etag: try reader.property(),
                source: try reader.optional { (reader) throws(BucketError) in
                    Source(
                        piece: try reader.optional { (reader) throws(BucketError) in
                            try reader.number()
                        }, generation: try reader.number())
                })
        }
        end = try reader.optional { (reader) throws(BucketError) in try reader.end() }
        try reader.finish()
        guard isConsistent else { throw StateReader.malformed("sizes") }
    }

    /// Parses ``bytes``; nil if they are damaged, for example after a partial write.
    /// - Throws: ``BucketError`` with `.internal` if they have another version.
    init?(readable bytes: [UInt8]) throws(BucketError) {
        do throws(BucketError) { try self.init(bytes) } catch {
            if let first = bytes.first, !CloudSessionState.isKnown(version: first) { throw error }
            return nil
        }
    }

    /// Whether the sizes of all parts add up to the offset.
    private var isConsistent: Bool {
        let sent: UInt64 =
            switch transfer {
            case .none: 0
            case .s3(let state): state.sent
            case .gcs(let state): state.sent
            case .gcsParts(let state): state.sent
            }
        var sum = sent
        for size in pieces.map(\.size) + [UInt64(tail.count)] {
            let (next, isOver) = sum.addingReportingOverflow(size)
            if isOver { return false }
            sum = next
        }
        // An ended session owns no bytes.
        return end != nil || sum == offset && (isInParts || SessionDigests(saved: digests) != nil)
    }
}

private struct StateWriter {
    private(set) var bytes: [UInt8] = []

    mutating func put(_ number: some FixedWidthInteger) {
        withUnsafeBytes(of: number.bigEndian) { bytes += $0 }
    }

    mutating func put(_ flag: Bool) { bytes.append(flag ? 1 : 0) }

    mutating func put(_ data: [UInt8]) {
        put(UInt32(data.count))
        bytes += data
    }

    mutating func put(_ text: String) { put(Array(text.utf8)) }

    mutating func put<Value>(_ value: Value?, _ body: (inout StateWriter, Value) -> Void) {
        put(value != nil)
        if let value { body(&self, value) }
    }

    mutating func put<Value>(_ values: [Value], _ body: (inout StateWriter, Value) -> Void) {
        put(UInt32(values.count))
        for value in values { body(&self, value) }
    }

    mutating func put(_ attributes: ObjectAttributes) {
        for value in [
            attributes.contentType, attributes.cacheControl, attributes.contentDisposition,
            attributes.contentEncoding, attributes.contentLanguage,
        ] { put(value) { $0.put($1) } }
        for pairs in [attributes.customMetadata, attributes.system.pairs] {
            put(pairs.sorted { $0.key < $1.key }) {
                $0.put($1.key.text)
                $0.put($1.value)
            }
        }
    }

    mutating func put(_ parts: [S3TransferState.Part]) {
        put(parts) {
            $0.put($1.number)
            $0.put($1.etag)
        }
    }

    mutating func put(_ transfer: CloudSessionState.Transfer) {
        switch transfer {
        case .none: put(UInt8(0))
        case .s3(let state):
            put(UInt8(1))
            put(state.upload) { $0.put($1) }
            put(state.lostSince) { $0.put($1) }
            put(state.discarded) { $0.put($1) }
            put(state.generation)
            put(state.parts)
            put(state.sent)
            put(state.nextNumber)
        case .gcs(let state):
            put(UInt8(2))
            put(state.session) { $0.put($1) }
            put(state.sent)
            put(state.isAhead)
        case .gcsParts(let state):
            put(UInt8(3))
            put(state.upload)
            put(state.parts)
            put(state.sent)
            put(state.isFixed)
        }
    }

    mutating func put(_ end: CloudSessionState.End) {
        switch end {
        case .committed(let object):
            put(UInt8(0))
            put(object.generation)
            put(object.created)
            put(object.updated)
            put(object.etag)
            put(object.md5) { $0.put($1) }
            put(object.crc32c) { $0.put($1) }
            put(object.replaced)
        case .closed(let record):
            put(UInt8(1))
            put(record)
        case .cancelled: put(UInt8(2))
        }
    }
}

/// Parses the properties of a state. No value exceeds the remaining bytes.
private struct StateReader {
    private let bytes: [UInt8]
    private var offset = 0

    init(_ bytes: [UInt8]) { self.bytes = bytes }

    static func malformed(_ what: String) -> BucketError {
        BucketError(.internal, "the state of an upload session can't be read: \(what)")
    }

    private mutating func take(_ count: Int) throws(BucketError) -> ArraySlice<UInt8> {
        guard count <= bytes.count - offset else { throw StateReader.malformed("it is cut off") }
        defer { offset += count }
        return bytes[offset..<offset + count]
    }

    func finish() throws(BucketError) {
        if offset != bytes.count { throw StateReader.malformed("bytes after its end") }
    }

    mutating func number<Number: FixedWidthInteger>() throws(BucketError) -> Number {
        try take(Number.bitWidth / 8).reduce(0) { $0 << 8 | Number(truncatingIfNeeded: $1) }
    }

    /// A size in bytes within the limit of an object.
    mutating func size() throws(BucketError) -> UInt64 {
        let size: UInt64 = try number()
        guard size <= UInt64(Int64.max) else { throw StateReader.malformed("a size of \(size)") }
        return size
    }

    mutating func flag() throws(BucketError) -> Bool {
        let byte: UInt8 = try number()
        guard byte <= 1 else { throw StateReader.malformed("a flag of \(byte)") }
        return byte == 1
    }

    mutating func data() throws(BucketError) -> [UInt8] {
        let count: UInt32 = try number()
        return Array(try take(Int(count)))
    }

    mutating func text() throws(BucketError) -> String {
        guard let text = String(validating: try data(), as: UTF8.self) else {
            throw StateReader.malformed("a text that is not UTF-8")
        }
        return text
    }

    mutating func optional<Value>(
        _ body: (inout StateReader) throws(BucketError) -> Value
    ) throws(BucketError) -> Value? {
        try flag() ? try body(&self) : nil
    }

    mutating func array<Value>(
        _ body: (inout StateReader) throws(BucketError) -> Value
    ) throws(BucketError) -> [Value] {
        let count: UInt32 = try number()
        var values: [Value] = []
        // Reserve nothing: the remaining bytes are the limit.
        for _ in 0..<count { values.append(try body(&self)) }
        return values
    }

    mutating func property() throws(BucketError) -> String? {
        try optional { (reader) throws(BucketError) in try reader.text() }
    }

    mutating func attributes() throws(BucketError) -> ObjectAttributes {
        var attributes = ObjectAttributes()
        attributes.contentType = try property()
        attributes.cacheControl = try property()
        attributes.contentDisposition = try property()
        attributes.contentEncoding = try property()
        attributes.contentLanguage = try property()
        for _ in 0..<2 {
            let pairs = try array { (reader) throws(BucketError) in
                (key: try reader.text(), value: try reader.text())
            }
            for (key, value) in pairs { attributes.take(stored: key, value) }
        }
        return attributes
    }

    mutating func parts() throws(BucketError) -> [S3TransferState.Part] {
        try array { (reader) throws(BucketError) in
            S3TransferState.Part(number: try reader.number(), etag: try reader.text())
        }
    }

    mutating func transfer() throws(BucketError) -> CloudSessionState.Transfer {
        let kind: UInt8 = try number()
        switch kind {
        case 0: return .none
        case 1:
            var state = S3TransferState()
            state.upload = try property()
            state.lostSince = try optional { (reader) throws(BucketError) in try reader.number() }
            state.discarded = try array { (reader) throws(BucketError) in try reader.text() }
            state.generation = try number()
            state.parts = try parts()
            state.sent = try size()
            state.nextNumber = try number()
            if state.nextNumber == 0 { throw StateReader.malformed("a part number of 0") }
            return .s3(state)
        case 2:
            return .gcs(
                GCSTransferState(
                    session: try property(), sent: try size(), isAhead: try flag()))
        case 3:
            return .gcsParts(
                GCSPartsState(upload: try text(), parts: try parts(), sent: try size(), isFixed: try flag()))
        default: throw StateReader.malformed("a transfer of kind \(kind)")
        }
    }

    mutating func end() throws(BucketError) -> CloudSessionState.End {
        let kind: UInt8 = try number()
        switch kind {
        case 0:
            return .committed(
                CommittedObject(
                    generation: try number(), created: try number(), updated: try number(), etag: try text(),
                    md5: try optional { (reader) throws(BucketError) in try reader.data() },
                    crc32c: try optional { (reader) throws(BucketError) in try reader.number() }, replaced: try flag()))
        case 1: return .closed(try data())
        case 2: return .cancelled
        default: throw StateReader.malformed("an end of kind \(kind)")
        }
    }
}
