/// A store that records the changes of its objects, each in the transaction that makes it.
///
/// Every change has its event and every event its change, whenever the process ends. Numbers grow in the order of the
/// commits: who has read up to a number has seen all events up to it.
public protocol EventLog: BucketDriver {
    /// Chooses the events that are recorded; nil records none, which is the state after opening.
    ///
    /// May be called again at any time. When it returns, changes that begin are recorded as `filter` says.
    /// - Throws: ``BucketError`` if the index can't be written. The filter is then in effect for later changes anyway.
    func recordEvents(_ filter: EventFilter?) async throws(BucketError)

    /// The recorded events, as of the last commit that was reported; nil if ``eventBounds()`` must find out.
    var knownBounds: EventBounds? { get }

    /// The recorded events, as of the last commit.
    func eventBounds() async throws(BucketError) -> EventBounds

    /// Events with numbers above `sequence`, in order. Each commit that was reported before the call is included.
    ///
    /// The result ends after `limit` events, or 256 KiB of names and metadata. It is empty only if there are no more.
    /// Events that were trimmed are left out silently: compare `sequence` with ``EventBounds/start`` after the call.
    func events(after sequence: Int64, limit: Int) async throws(BucketError) -> [BucketEvent]

    /// Has `observer` called after each commit that recorded events, until ``removeEventObserver(_:)``. It is retained.
    func addEventObserver(_ observer: any EventObserver)

    /// Does nothing if it is not an observer. A call that is under way on another thread may still arrive.
    func removeEventObserver(_ observer: any EventObserver)

    /// Deletes the oldest events: those before `time`, and those beyond the newest `maximum`. Events that a cursor has
    /// not passed, and those that wait for a retry or are dead, are kept.
    /// - Parameters:
    ///   - time: Microseconds since 1970.
    ///   - maximum: The most events to keep for readers without a cursor.
    ///   - limit: The most events to look at in one transaction.
    /// - Returns: The number of events that were looked at and deleted. Below `limit`, there is nothing left to do.
    func trimEvents(before time: Int64, keeping maximum: Int, limit: Int) async throws(BucketError) -> Int
}

/// The events that a bucket records, compiled from its subscriptions and whether it is watched.
public struct EventFilter: Sendable {
    /// Whether everything but ``BucketEvent/Kind/replaced`` is recorded. Only then can a reader follow the bucket's
    /// state; after a time in which it was not, ``EventBounds/start`` is above all earlier numbers.
    public var isComplete: Bool
    /// Whether an event of this kind is recorded for this name. Called on the committer's thread for each change, in its
    /// transaction: it must be fast, must not block, and must not call the bucket.
    public var wants: @Sendable (BucketEvent.Kind, String) -> Bool

    /// Records the events that `wants` names.
    public init(wants: @escaping @Sendable (BucketEvent.Kind, String) -> Bool) {
        isComplete = false
        self.wants = wants
    }

    /// Records everything but `replaced`, and `replaced` where `wants` says so.
    /// - Parameter wants: Called for `replaced` only.
    public static func complete(
        wantsReplaced wants: @escaping @Sendable (String) -> Bool = { _ in false }
    ) -> EventFilter {
        var filter = EventFilter { kind, name in kind != .replaced || wants(name) }
        filter.isComplete = true
        return filter
    }
}

/// The numbers of a bucket's recorded events.
public struct EventBounds: Sendable, Equatable {
    /// The lowest number after which no event is missing: a reader that has read less than this must start over.
    public var start: Int64
    /// The number of the newest event, trimmed or not; 0 if there has never been one. A reader that has read more has
    /// read another history, such as that before a backup was restored.
    public var newest: Int64

    public init(start: Int64, newest: Int64) {
        self.start = start
        self.newest = newest
    }

    /// Whether a reader that has read up to this number can go on.
    public func contains(_ sequence: Int64) -> Bool { start <= sequence && sequence <= newest }
}

/// What one commit recorded.
public struct RecordedEvents: Sendable {
    /// Kind and name of each event, in order. Their numbers are contiguous and end with ``last``.
    public var events: [(kind: BucketEvent.Kind, name: String)]
    /// The number of the last one.
    public var last: Int64
    /// Changes when another directory has taken the place of the bucket's, such as a restored backup.
    public var history: UInt64 = 0

    public init(_ events: [(kind: BucketEvent.Kind, name: String)], last: Int64) {
        self.events = events
        self.last = last
    }
}

/// Learns of recorded events, once for each batch of changes.
public protocol EventObserver: AnyObject, Sendable {
    /// The events are on stable storage and can be read. Called on the committer's thread, before the changes are
    /// reported to their callers: it must not block, and must not call the bucket.
    func recorded(_ events: RecordedEvents)
}
