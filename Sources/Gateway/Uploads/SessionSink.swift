import Buckets
import OpenSSL
import System

/// Forwards the bytes of an append, counts them, and computes the expected digests. Confined to its loop.
final class SessionSink: ByteSink {
    private let append: any SessionAppend
    /// Called before bytes are forwarded, with the count of accepted bytes including the next ones. Throws if they
    /// exceed a limit of staged bytes.
    private let admit: (UInt64) throws -> Void
    private var crc32c: CRC32C?
    private var md5: Digest?
    private var sha1: Digest?
    private var others: [DigestAlgorithm: RunningDigest] = [:]
    /// The number of accepted bytes.
    private(set) var count: UInt64 = 0

    init(
        _ append: any SessionAppend, _ request: AppendRequest,
        admit: @escaping (UInt64) throws -> Void
    ) {
        self.append = append
        self.admit = admit
        let digests = request.digests
        if request.sha1 != nil { sha1 = Digest(.sha1) }
        if digests.crc32c != nil { crc32c = CRC32C() }
        if digests.md5 != nil { md5 = Digest(.md5) }
        for algorithm in digests.others.keys { others[algorithm] = RunningDigest(algorithm) }
    }

    func write(_ bytes: RawSpan) throws -> Int {
        try admit(count + UInt64(bytes.byteCount))
        let taken = try append.write(bytes)
        let part = bytes.extracting(0..<taken)
        crc32c?.update(part)
        md5?.update(part)
        sha1?.update(part)
        for algorithm in others.keys { others[algorithm]?.update(part) }
        count += UInt64(taken)
        return taken
    }

    func whenWritable(_ resume: @escaping () -> Void) { append.whenWritable(resume) }

    /// The name of the first digest that does not match; nil if all match. No byte may follow.
    func mismatch(_ request: AppendRequest) -> String? {
        if let sha1, sha1.finish() != request.sha1 { return "sha1" }
        let facts = ContentFacts(
            size: count, md5: md5?.finish(), crc32c: crc32c?.value ?? 0, digests: others.mapValues { $0.finish() })
        return request.digests.mismatch(facts)
    }
}

/// Discards the first bytes of a body and forwards the others. Confined to its loop.
final class SkippingSink: ByteSink {
    private let sink: any ByteSink
    /// The number of bytes still to be discarded.
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
