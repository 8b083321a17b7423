import Gateway
import Glibc
import SecurityRules
import System
import Wire

/// The last requests, for those who watch. Nothing is kept before somebody polls, nor 30 seconds after the last poll.
///
/// A request enters the ring if the filter of any viewer wants it, so a rare one is not displaced by those that nobody
/// asked for.
public final class RequestFeed: RequestObserver {
    /// A finished request.
    struct Entry: Sendable {
        /// Counts up from 1.
        let sequence: UInt64
        let record: RequestRecord
        /// When it ended.
        let time: timespec
        fileprivate let bytes: Int

        init(_ sequence: UInt64, _ record: RequestRecord) {
            self.sequence = sequence
            self.record = record
            time = SystemClock.time()
            bytes =
                1024 + record.path.utf8.count + (record.cause?.utf8.count ?? 0)
                + (record.evaluation?.request.byteCount ?? 0)
        }
    }

    /// One answer to a viewer.
    struct Page {
        /// In order.
        var entries: [Entry] = []
        /// The `after` of the next poll.
        var next: UInt64 = 0
        /// Requests that left the ring before the viewer got them, or were too many to enter it.
        var lost: UInt64 = 0
    }

    fileprivate struct Viewer {
        let filter: RequestFilter
        var until: UInt64
    }
    fileprivate struct State {
        /// A circle: the oldest is at ``first``.
        var ring: [Entry] = []
        var first = 0
        var bytes = 0
        var last: UInt64 = 0
        /// One for each filter.
        var viewers: [Viewer] = []
        var waiting: [(id: UInt64, filter: RequestFilter, pause: Pause)] = []
        var nextID: UInt64 = 0
    }

    static let capacity = 512
    /// The approximate size of all entries, in bytes.
    static let maximumBytes = 2 << 20
    /// The maximum size of the sources of all kept rulesets, in bytes: a request is kept with the rules of its moment.
    static let maximumRules = 2 << 20
    /// How long requests are kept without a poll, in nanoseconds.
    static let patience: UInt64 = 30_000_000_000
    /// The maximum number of requests in one answer.
    static let pageSize = 200
    /// The maximum number of polls that wait. One more ends the oldest: it may be that of a viewer who has left, or has
    /// another filter now.
    static let maximumViewers = 4
    /// The maximum number of filters. One more displaces the oldest without a poll that waits.
    static let maximumFilters = 16
    /// How many denials are remembered while nobody looks.
    static let rememberedDenials = 64
    /// How long a poll collects after its first request, so that many of them make few answers.
    private static let collection: UInt64 = 200_000_000

    private let period: RequestWatch
    private let state = Lock(State())
    private let now: @Sendable () -> UInt64

    /// - Parameter remembersDenials: Whether denials are kept also while nobody looks.
    public init(
        remembersDenials: Bool = false, now: @escaping @Sendable () -> UInt64 = { EventLoop.monotonicNow() }
    ) {
        self.now = now
        period = RequestWatch(until: remembersDenials ? .max : 0)
        guard remembersDenials else { return }
        state.withLock { $0.viewers = [Viewer(filter: RequestFilter(decision: .denied), until: .max)] }
    }

    // MARK: Requests

    public var readsDetails: Bool { false }

    public var watch: RequestWatch? { period }

    public func finished(_ record: RequestRecord) {
        guard period.until > record.started else { return }
        let isDenied = record.decision == .denied || record.statusClass == 5
        let isKept = record.evaluation != nil || period.admits(isDenied, at: now())
        let waiting = state.withLock { state -> [Pause] in
            guard state.viewers.contains(where: { $0.filter.matches(record) }) else { return [] }
            state.last += 1
            if !isKept { return [] }
            state.append(Entry(state.last, record))
            if state.waiting.isEmpty { return [] }
            let woken = state.waiting.filter { $0.filter.matches(record) }.map(\.pause)
            if !woken.isEmpty { state.waiting.removeAll { $0.filter.matches(record) } }
            return woken
        }
        for pause in waiting { pause.end() }
    }

    // MARK: Viewers

    /// The requests after a number that a filter wants. Called on a loop.
    /// - Parameters:
    ///   - after: nil for those that are there.
    ///   - wait: How long to wait for the first one, in nanoseconds.
    func poll(_ filter: RequestFilter, after: UInt64?, wait: UInt64) async -> Page {
        let begin = now()
        let until = begin + wait + RequestFeed.patience
        let pause = Pause()
        let (page, id, displaced) = state.withLock { state -> (Page, UInt64?, Pause?) in
            state.watch(filter, until: until, now: begin)
            let page = state.page(filter, after)
            if !page.entries.isEmpty || after == nil || wait == 0 { return (page, nil, nil) }
            let isFull = state.waiting.count == RequestFeed.maximumViewers
            let displaced = isFull ? state.waiting.removeFirst().pause : nil
            state.nextID += 1
            state.waiting.append((state.nextID, filter, pause))
            return (page, state.nextID, displaced)
        }
        displaced?.end()
        period.extend(to: until)
        guard let id else { return page }
        await pause.wait(atMost: wait)
        let isWoken = state.withLock { state in
            let count = state.waiting.count
            state.waiting.removeAll { $0.id == id }
            return state.waiting.count == count
        }
        if isWoken { await Pause.sleep(RequestFeed.collection) }
        return state.withLock { $0.page(filter, after) }
    }

    /// The entry of a request, by its id.
    func entry(_ request: String) -> Entry? {
        state.withLock { state in state.ring.first { BytewiseString.areEqual($0.record.requestId, request) } }
    }

    /// The entries of a bucket whose evaluation was kept, in order.
    func evaluated(in bucket: String) -> [Entry] {
        state.withLock { state in
            state.entries.filter { entry in
                entry.record.evaluation != nil
                    && entry.record.bucket.map { BytewiseString.areEqual($0, bucket) } ?? false
            }
        }
    }

    /// The number of polls that wait.
    var waitingCount: Int { state.withLock { $0.waiting.count } }

    /// Forgets what nobody has asked for since ``patience``, and requests whose rules were replaced too often. Called
    /// periodically.
    public func expire() {
        let time = now()
        state.withLock { state in
            if state.viewers.isEmpty { return }
            state.limitRules()
            state.viewers.removeAll { $0.until <= time }
            if state.viewers.isEmpty {
                state.keep([])
            } else if state.viewers.allSatisfy({ $0.until == .max }) {
                state.keep(state.entries.filter { $0.record.decision == .denied }.suffix(RequestFeed.rememberedDenials))
            }
        }
    }
}

extension RequestFeed.State {
    /// In order.
    fileprivate var entries: [RequestFeed.Entry] { Array(ring[first...] + ring[..<first]) }

    fileprivate mutating func keep(_ kept: some Sequence<RequestFeed.Entry>) {
        ring = Array(kept)
        first = 0
        bytes = ring.reduce(0) { $0 + $1.bytes }
    }

    fileprivate mutating func append(_ entry: RequestFeed.Entry) {
        bytes += entry.bytes
        if ring.count < RequestFeed.capacity {
            if first > 0 { (ring, first) = (entries, 0) }
            ring.append(entry)
        } else {
            bytes -= ring[first].bytes
            ring[first] = entry
            first = (first + 1) % ring.count
        }
        if bytes <= RequestFeed.maximumBytes || ring.count == 1 { return }
        (ring, first) = (entries, 0)
        var removed = 0
        while bytes > RequestFeed.maximumBytes / 2, removed < ring.count - 1 {
            bytes -= ring[removed].bytes
            removed += 1
        }
        ring.removeFirst(removed)
    }

    /// Removes the oldest requests whose rulesets exceed ``RequestFeed/maximumRules``.
    fileprivate mutating func limitRules() {
        var seen: Set<ObjectIdentifier> = []
        var rest = RequestFeed.maximumRules
        let all = entries
        let tooOld = all.lastIndex { entry in
            guard let rules = entry.record.evaluation?.rules, seen.insert(rules.identity).inserted else { return false }
            rest -= rules.source.utf8.count
            return rest < 0 && seen.count > 1
        }
        if let tooOld { keep(all.dropFirst(tooOld + 1)) }
    }

    /// Keeps what the filter wants.
    fileprivate mutating func watch(_ filter: RequestFilter, until: UInt64, now: UInt64) {
        viewers.removeAll { $0.until <= now }
        if let index = viewers.firstIndex(where: { $0.filter == filter }) {
            viewers[index].until = max(viewers[index].until, until)
            return
        }
        let idle = viewers.indices.filter { index in !waiting.contains { $0.filter == viewers[index].filter } }
        if viewers.count >= RequestFeed.maximumFilters,
            let oldest = idle.min(by: { viewers[$0].until < viewers[$1].until })
        {
            viewers.remove(at: oldest)
        }
        viewers.append(RequestFeed.Viewer(filter: filter, until: until))
    }

    fileprivate func page(_ filter: RequestFilter, _ after: UInt64?) -> RequestFeed.Page {
        var page = RequestFeed.Page(next: last)
        let all = entries
        // A number of another process, or of a time before this one.
        let after = after.map { $0 > last ? 0 : $0 }
        let wanted = all.filter { $0.sequence > after ?? 0 && filter.matches($0.record) }
        if after == nil {
            page.entries = Array(wanted.suffix(RequestFeed.pageSize))
        } else if wanted.count > RequestFeed.pageSize {
            page.entries = Array(wanted.prefix(RequestFeed.pageSize))
            page.next = page.entries.last?.sequence ?? last
        } else {
            page.entries = wanted
        }
        if let after {
            let present = all.count { $0.sequence > after && $0.sequence <= page.next }
            page.lost = page.next - after - UInt64(present)
        }
        return page
    }
}

/// Which requests a viewer wants.
struct RequestFilter: Equatable, Sendable {
    enum Decision: String { case allowed, denied, shadow }
    enum Status: Equatable {
        case status(Int)
        case statusClass(Int)
    }

    var decision: Decision?
    var status: Status?
    var bucket: String?
    /// The beginning of the object's path, as received.
    var path = ""
    /// The beginning of the caller's uid; `anonymous` for a caller without one.
    var caller = ""

    func matches(_ record: RequestRecord) -> Bool {
        switch decision {
        case nil: break
        case .allowed where record.decision == .allowed: break
        case .denied where record.decision == .denied: break
        case .shadow where record.shadow != nil: break
        default: return false
        }
        switch status {
        case nil: break
        case .status(let status) where record.status == status: break
        case .statusClass(let statusClass) where record.statusClass == statusClass: break
        default: return false
        }
        if let bucket, record.bucket.map({ BytewiseString.areEqual($0, bucket) }) != true { return false }
        if !caller.isEmpty, !(record.principal ?? "anonymous").utf8.starts(with: caller.utf8) { return false }
        return path.isEmpty || RequestFilter.objectPath(record.path).starts(with: path.utf8)
    }

    /// The part of a path after `/b/BUCKET/o/`, or after the first segment.
    private static func objectPath(_ path: String) -> Substring.UTF8View {
        var rest = Substring(path).utf8
        func skip(_ count: Int) {
            for _ in 0..<count {
                guard let slash = rest.dropFirst().firstIndex(of: UInt8(ascii: "/")) else { return }
                rest = rest[slash...]
            }
        }
        skip(path.utf8.starts(with: "/b/".utf8) ? 3 : path.utf8.starts(with: "/v0/b/".utf8) ? 4 : 1)
        return rest.dropFirst()
    }
}
