import Buckets
import OpenSSL
import System

/// Passes the bytes of an append on, counts them, and computes the digests that they must have. Confined to its loop.
final class SessionSink: ByteSink {
    private let append: any SessionAppend
    /// Called with all bytes that were taken, and those that would be; throws where they may not be staged.
    private let admit: (UInt64) throws -> Void
    private var crc32c: CRC32C?
    private var md5: Digest?
    private var sha1: Digest?
    private var others: [DigestAlgorithm: Digest] = [:]
    /// Bytes that were taken.
    private(set) var count: UInt64 = 0

    init(
        _ append: any SessionAppend, _ request: AppendRequest,
        admit: @escaping (UInt64) throws -> Void
    ) {
        self.append = append
        self.admit = admit
        let digests = request.digests
        if request.sha1 != nil { sha1 = Digest.sha1() }
        if digests.crc32c != nil { crc32c = CRC32C() }
        if digests.md5 != nil { md5 = Digest(.md5) }
        for algorithm in digests.others.keys {
            others[algorithm] = Digest(algorithm == .sha256 ? .sha256 : .sha512)
        }
    }

    func write(_ bytes: RawSpan) throws -> Int {
        try admit(count + UInt64(bytes.byteCount))
        let taken = try append.write(bytes)
        let part = bytes.extracting(0..<taken)
        crc32c?.update(part)
        md5?.update(part)
        sha1?.update(part)
        for digest in others.values { digest.update(part) }
        count += UInt64(taken)
        return taken
    }

    func whenWritable(_ resume: @escaping () -> Void) { append.whenWritable(resume) }

    /// The name of the first digest that all bytes do not have. No byte may follow.
    func mismatch(_ request: AppendRequest) -> String? {
        if let sha1, sha1.finish() != request.sha1 { return "sha1" }
        let facts = ContentFacts(
            size: count, md5: md5?.finish(), crc32c: crc32c?.value ?? 0,
            digests: others.mapValues { $0.finish() })
        return request.digests.mismatch(facts)
    }
}

/// Drops the first bytes of a body, and passes the others on. Confined to its loop.
final class SkippingSink: ByteSink {
    private let sink: any ByteSink
    /// Bytes that are still to be dropped.
    private(set) var rest: UInt64

    init(_ sink: any ByteSink, _ count: UInt64) {
        self.sink = sink
        rest = count
    }

    func write(_ bytes: RawSpan) throws -> Int {
        let dropped = Int(min(rest, UInt64(bytes.byteCount)))
        rest -= UInt64(dropped)
        if dropped == bytes.byteCount { return dropped }
        return dropped + (try sink.write(bytes.extracting(dropped...)))
    }

    func whenWritable(_ resume: @escaping () -> Void) { sink.whenWritable(resume) }
}
