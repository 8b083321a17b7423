import System

/// A temporary file with the last bytes of an upload session, which the service does not have yet.
///
/// Safety: its calls are sequential.
final class SessionSpool: @unchecked Sendable {
    let file: Spool
    private let pool: BlockingPool

    private init(_ file: Spool, _ pool: BlockingPool) {
        self.file = file
        self.pool = pool
    }

    static func make(in directory: String, _ pool: BlockingPool) async throws(BucketError)
        -> SessionSpool
    {
        let file = try await pool.run { () throws(BucketError) in try Spool(in: directory, pool) }
        return SessionSpool(file, pool)
    }

    var count: UInt64 { file.count }

    /// Appends bytes and hashes them.
    func append(_ bytes: [UInt8], _ digests: SessionDigests) async throws(BucketError)
        -> SessionDigests
    {
        try await pool.run { [file] () throws(BucketError) in
            try bytes.span.bytes.withUnsafeBytes { (bytes) throws(BucketError) in
                try file.append(bytes)
            }
            var digests = digests
            digests.update(bytes.span.bytes)
            return digests
        }
    }

    func append(_ bytes: [UInt8]) async throws(BucketError) {
        try await pool.run { [file] () throws(BucketError) in
            try bytes.span.bytes.withUnsafeBytes { (bytes) throws(BucketError) in
                try file.append(bytes)
            }
        }
    }

    func append(_ other: SessionSpool) async throws(BucketError) {
        var offset: UInt64 = 0
        while offset < other.count {
            let bytes = try await other.read(at: offset, limit: CloudAppend.step)
            try await append(bytes)
            offset += UInt64(bytes.count)
        }
    }

    /// Returns at most `limit` bytes from `offset`; fewer only at the end.
    func read(at offset: UInt64, limit: Int) async throws(BucketError) -> [UInt8] {
        try await pool.run { [file] () throws(BucketError) in
            try file.read(at: offset, limit: limit)
        }
    }

    func clear() async { await pool.run { [file] in file.clear() } }
}
