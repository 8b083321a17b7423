import Buckets
import HTTPServer
import OpenSSL
import System
import Wire

/// The settings of upload sessions. Times are in seconds.
public struct UploadSettings: Sendable {
    /// The maximum lifetime of a session from its creation. Appends do not extend it.
    public var lifetime: Int64 = 24 * 3600
    /// How long a finished session reports its result.
    public var resultLifetime: Int64 = 3600
    /// The maximum number of open sessions of each caller; 0 is no limit.
    public var sessions = 64
    /// The same of multipart uploads of S3.
    public var s3Uploads = 1000
    /// The maximum size of each caller's open sessions in bytes; 0 is no limit.
    public var stagedBytes: UInt64 = 256 << 30
    /// The origin of session URLs, without a slash at the end; nil for the request's origin.
    public var publicURL: String?
    /// Whether the tus protocol is served.
    public var servesTus = true
    /// Whether a 104 response with the session's URL is sent to every client that sends `Upload-Complete`.
    public var announcesAlways = false

    public init() {}
}

/// The settings, keys and counts that all upload sessions of a gateway share. They outlive the gateway's snapshots.
public final class Uploads: Sendable {
    let settings: UploadSettings
    let ledger = UploadLedger()
    let statistics = UploadStatistics()
    /// Serializes the completion of a session, by its id. A second request gets the result of the first.
    let finishing = Turns()
    let ends = UploadEnds()
    private struct Refresh: Hashable {
        var bucket: BytewiseString
        var owner: CallerLimits.Key?
    }
    /// Serializes corrections of a bucket's count.
    private let refreshing = Turns()
    /// When counts were last corrected, in seconds since 1970.
    private let refreshes = Lock<[Refresh: Int64]>([:])
    /// When a sweep looks up all sessions of a bucket next, in seconds since 1970.
    private let nextCorrections = Lock<[BytewiseString: Int64]>([:])
    private let firstCorrection = SystemClock.seconds() + Uploads.correctionInterval
    private let currentKeys: Lock<UploadKeys>
    private let start: UploadStart

    /// - Parameters:
    ///   - keys: The keys of session tokens.
    ///   - awaitsSessions: Whether ``load(_:)`` will be called. No session is created before it returns.
    ///   - waitLimit: How long a creation waits for it, in nanoseconds.
    public init(
        _ settings: UploadSettings = UploadSettings(), keys: UploadKeys = .random(),
        awaitsSessions: Bool = false, waitLimit: UInt64 = 10_000_000_000
    ) {
        self.settings = settings
        currentKeys = Lock(keys)
        start = UploadStart(isOver: !awaitsSessions, limit: waitLimit)
    }

    var keys: UploadKeys { currentKeys.withLock { $0 } }

    /// Replaces the keys. Tokens of a removed key are no longer valid.
    public func replace(_ keys: UploadKeys) { currentKeys.withLock { $0 = keys } }

    /// The origin of session URLs without a final slash: configured, or the request's; empty if neither is known.
    func origin(_ context: RequestContext) -> String {
        if let origin = settings.publicURL, !origin.isEmpty { return origin }
        let exchange = context.exchange
        guard let authority = exchange.head.authority else { return "" }
        return "\(exchange.isSecure ? "https" : "http")://\(authority)"
    }

    // MARK: Sessions of an earlier process

    /// Counts the open sessions that an earlier process has left in these buckets. Called once.
    /// - Returns: The reasons why some could not be read.
    public func load(_ buckets: [(name: String, driver: any SessionDriver)]) async -> [String] {
        var failures: [String] = []
        for (name, driver) in buckets {
            do throws(BucketError) {
                try await forEach(name, driver) { found in
                    adopt(found)
                    return true
                }
            } catch {
                failures.append("bucket \(name): \(error)")
            }
        }
        start.end()
        return failures
    }

    /// Waits until the sessions of an earlier process are counted.
    /// - Throws: ``Problem`` with `overloaded` if that takes too long.
    func loaded() async throws(Problem) {
        guard await start.wait() else {
            throw Problem(
                .overloaded, "The uploads of an earlier process are still being counted.", field: ("retry-after", "5"))
        }
    }

    private func adopt(_ found: StoredUpload) {
        if found.state.end == nil { _ = ledger.adopt(found.id, found.entry) }
    }

    /// The page size of a list of sessions. One page is in memory at a time.
    private static let page = 100

    /// Calls `body` with each unexpired session of a bucket that this program has begun, until `body` returns false.
    /// Lets the loop do other work meanwhile.
    func forEach(
        _ bucket: String, _ driver: any SessionDriver, _ body: (StoredUpload) -> Bool
    ) async throws(BucketError) {
        var last: UploadSessionID?
        while true {
            let page = try await driver.listSessions(after: last, limit: Uploads.page)
            for (id, state) in page where id.expires > SystemClock.seconds() {
                await EventLoop.giveWay()
                guard let found = StoredUpload(bucket, id, state) else { continue }
                guard body(found) else { return }
            }
            guard page.count == Uploads.page, let end = page.last?.id else { return }
            last = end
        }
    }

    // MARK: Sessions that other gateways have ended

    /// The most sessions that one correction looks up in the store.
    private static let refreshedSessions = 256
    /// The least time between two corrections of one count, in seconds, unless one session in ``worthwhileShare`` had ended. So
    /// a caller at its limit does not cost look-ups with each request.
    private static let refreshInterval: Int64 = 10
    private static let worthwhileShare = 4
    /// How long a creation waits for a correction, in nanoseconds.
    private static let refreshLimit: UInt64 = 5_000_000_000

    /// Removes sessions from the count that have ended at other gateways: those of a caller in a bucket, or of all callers. One
    /// correction of a bucket runs at a time; the others wait for it, at most ``refreshLimit``.
    func refresh(_ bucket: String, _ driver: any SessionDriver, owner: CallerLimits.Key?) async {
        await withTaskGroup(of: Void.self) { group in
            group.addTask { await self.refreshed(bucket, driver, owner) }
            group.addTask { try? await Task.sleep(nanoseconds: Uploads.refreshLimit) }
            await group.next()
            group.cancelAll()
        }
    }

    private func refreshed(
        _ bucket: String, _ driver: any SessionDriver, _ owner: CallerLimits.Key?
    ) async {
        await refreshing.take(bucket)
        defer { refreshing.end(bucket) }
        let now = SystemClock.seconds()
        let key = Refresh(bucket: BytewiseString(bucket), owner: owner)
        let isDue = refreshes.withLock { refreshes in
            refreshes = refreshes.filter { $0.value > now - Uploads.refreshInterval }
            return refreshes[key] == nil
        }
        guard isDue, !Task.isCancelled else { return }
        let ids = ledger.largest(of: bucket, owner: owner, limit: Uploads.refreshedSessions)
        let found = await forgetEnded(ids, driver)
        if found * Uploads.worthwhileShare < ids.count {
            refreshes.withLock { $0[key] = now }
        }
    }

    /// Removes those of these sessions from the count that have ended, until the store does not respond.
    /// - Returns: How many were removed.
    @discardableResult
    private func forgetEnded(_ ids: [UploadSessionID], _ driver: any SessionDriver) async -> Int {
        var found = 0
        for id in ids {
            guard !Task.isCancelled, let isOpen = try? await driver.isOpen(id) else { break }
            if !isOpen {
                ended(id, nil)
                found += 1
            }
            await EventLoop.giveWay()
        }
        return found
    }

    // MARK: The sweep

    /// The number of sessions that are removed at a time.
    private static let sweepBatch = 100
    /// How often a sweep looks up all counted sessions of a bucket, in seconds.
    private static let correctionInterval: Int64 = 3600

    /// Removes a bucket's expired sessions and their bytes.
    /// - Parameter looksUpAll: Whether all counted sessions are looked up in the store; otherwise once an hour.
    /// - Returns: The number of removed sessions.
    public func sweep(
        _ bucket: String, _ driver: any SessionDriver, looksUpAll: Bool = false
    ) async throws(BucketError) -> Int {
        var removed = 0
        var failure: BucketError?
        do throws(BucketError) {
            while true {
                let count = try await driver.removeExpiredSessions(limit: Uploads.sweepBatch)
                removed += count
                if count < Uploads.sweepBatch { break }
                await EventLoop.giveWay()
            }
        } catch {
            failure = error
        }
        // Expired sessions count for nobody, also if the store can't remove what they left.
        while true {
            let entries = ledger.removeExpired(of: bucket, SystemClock.seconds(), limit: Uploads.sweepBatch)
            for entry in entries { statistics.ended(entry, .expired) }
            guard entries.count == Uploads.sweepBatch else { break }
            await EventLoop.giveWay()
        }
        ledger.lapse(SystemClock.seconds())
        if let failure { throw failure }
        // Those that other gateways have ended do not count either. One read for each open session: not each time.
        let now = SystemClock.seconds()
        let isDue = nextCorrections.withLock { next in
            let key = BytewiseString(bucket)
            guard looksUpAll || next[key, default: firstCorrection] <= now else { return false }
            next[key] = now + Uploads.correctionInterval
            return true
        }
        if isDue { await forgetEnded(ledger.largest(of: bucket, owner: nil, limit: .max), driver) }
        return removed
    }

    /// Counts a session that has ended.
    /// - Parameter end: How it ended; nil if another gateway counts it, unless its time was over: a sweep may have removed it
    ///   from the store a moment ago.
    func ended(_ id: UploadSessionID, _ end: UploadStatistics.End?) {
        guard let entry = ledger.remove(id) else { return }
        if let end = end ?? (entry.expires <= SystemClock.seconds() ? .expired : nil) { statistics.ended(entry, end) }
    }
}

/// A session in a store, with the context that this program has stored in it.
struct StoredUpload {
    let bucket: String
    let id: UploadSessionID
    let state: SessionState
    let context: UploadContext

    /// nil if the context was not written by this program.
    init?(_ bucket: String, _ id: UploadSessionID, _ state: SessionState) {
        guard let context = UploadContext(json: state.context, bucket: bucket, name: state.name) else { return nil }
        self.bucket = bucket
        self.id = id
        self.state = state
        self.context = context
    }

    /// The name of the session for operators. Its id and token can't be derived from it.
    var publicID: String {
        let hash = HMAC.sha256(key: Array("sluice upload id 1".utf8), id.bytes.span.bytes)
        return Hexadecimal.encode(Array(hash.prefix(10)))
    }

    var entry: UploadLedger.Entry {
        UploadLedger.Entry(
            bucket: bucket, dialect: context.dialect, owner: context.owner, creator: context.caller?.principal.identity,
            bytes: state.length ?? state.offset, expires: id.expires, received: state.offset,
            parts: context.dialect.hasParts ? UploadLedger.PartCount(declared: state.length) : nil)
    }
}
