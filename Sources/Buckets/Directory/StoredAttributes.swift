import Wire

// Attributes as columns: the five properties, custom metadata, system metadata.
extension SQLiteStatement {
    func attributes(_ first: Int32) -> ObjectAttributes {
        var attributes = ObjectAttributes(
            contentType: text(first), cacheControl: text(first + 1), contentDisposition: text(first + 2),
            contentEncoding: text(first + 3), contentLanguage: text(first + 4))
        // Keys may have been stored before they were reserved.
        for (key, value) in pairs(first + 5) where !SystemMetadata.isReserved(key.text) {
            attributes.customMetadata[key] = value
        }
        attributes.system = systemMetadata(first + 6)
        return attributes
    }

    func systemMetadata(_ column: Int32) -> SystemMetadata {
        var system = SystemMetadata()
        for (key, value) in pairs(column) { _ = system.take(key.text, value) }
        return system
    }

    private func pairs(_ column: Int32) -> [BytewiseString: String] {
        isNull(column) ? [:] : withBytes(column) { StoredPairs.decode($0) }
    }

    func bind(_ first: Int32, _ attributes: ObjectAttributes) {
        bind(first, attributes.contentType)
        bind(first + 1, attributes.cacheControl)
        bind(first + 2, attributes.contentDisposition)
        bind(first + 3, attributes.contentEncoding)
        bind(first + 4, attributes.contentLanguage)
        bind(first + 5, blob: StoredPairs.encode(attributes.customMetadata))
        bind(first + 6, systemMetadata: attributes.system)
    }

    func bind(_ column: Int32, systemMetadata: SystemMetadata) {
        bind(column, blob: StoredPairs.encode(systemMetadata.pairs))
    }
}

/// Pairs as one column: keys in order, each string after its length (32 bits, little-endian).
enum StoredPairs {
    static func encode(_ pairs: [BytewiseString: String]) -> [UInt8]? {
        if pairs.isEmpty { return nil }
        var bytes: [UInt8] = []
        for (key, value) in pairs.sorted(by: { $0.key < $1.key }) {
            for text in [key.text, value] {
                let count = UInt32(text.utf8.count)
                for shift in stride(from: UInt32(0), to: 32, by: 8) {
                    bytes.append(UInt8(truncatingIfNeeded: count >> shift))
                }
                bytes.append(contentsOf: text.utf8)
            }
        }
        return bytes
    }

    static func decode(_ bytes: UnsafeRawBufferPointer) -> [BytewiseString: String] {
        var offset = 0
        func next() -> String? {
            guard offset + 4 <= bytes.count else { return nil }
            let count = Int(UInt32(littleEndian: bytes.loadUnaligned(fromByteOffset: offset, as: UInt32.self)))
            offset += 4
            guard offset + count <= bytes.count else { return nil }
            defer { offset += count }
            return String(decoding: bytes[offset..<offset + count], as: UTF8.self)
        }
        var pairs: [BytewiseString: String] = [:]
        while let key = next(), let value = next() { pairs[BytewiseString(key)] = value }
        return pairs
    }
}
