import Wire

/// An event that a subscription sends again later, or has given up.
public struct EventRetry: Sendable, Equatable {
    /// The event's number.
    public var sequence: Int64
    /// The number of failed attempts. 0 for an event that waits behind an earlier one of its object.
    public var attempts: Int
    /// When it is sent again; for a dead event, when it was given up. In microseconds since 1970.
    public var due: Int64
    /// Whether it is not sent again.
    public var isDead: Bool
    /// Why the last attempt failed; it names no object.
    public var cause: String?

    public init(sequence: Int64, attempts: Int, due: Int64, isDead: Bool = false, cause: String? = nil) {
        self.sequence = sequence
        self.attempts = attempts
        self.due = due
        self.isDead = isDead
        self.cause = cause
    }
}

/// A change of what a subscription has settled. It is written as a whole.
public struct EventSettlement: Sendable, Equatable {
    /// The subscription's name.
    public var subscription: String
    /// All events up to this number are settled, or have a retry.
    public var cursor: Int64
    /// New and changed retries.
    public var kept: [EventRetry]
    /// The numbers of events whose retries end.
    public var settled: [Int64]
    /// ``SubscriptionProgress/history``: it is not written to another directory.
    public var history: UInt64

    public init(
        subscription: String, cursor: Int64, kept: [EventRetry] = [], settled: [Int64] = [], history: UInt64 = 0
    ) {
        self.history = history
        self.subscription = subscription
        self.cursor = cursor
        self.kept = kept
        self.settled = settled
    }
}

/// What a subscription had settled when it was last written.
public struct SubscriptionProgress: Sendable {
    /// A retry with the properties of its event that decide when it may be sent.
    public struct Waiting: Sendable {
        public var retry: EventRetry
        /// The name of the object.
        public var name: String
        /// When the event was committed, in microseconds since 1970.
        public var time: Int64

        public init(_ retry: EventRetry, name: String, time: Int64) {
            self.retry = retry
            self.name = name
            self.time = time
        }
    }

    /// See ``EventSettlement/cursor``.
    public var cursor: Int64
    /// Events that are sent again, in order of their numbers.
    public var waiting: [Waiting]
    /// The numbers above ``cursor`` of dead events.
    public var deadAbove: [Int64]
    /// The number of dead events.
    public var dead: Int
    /// When events were last sent again by ``EventDeliveryLog/replayEvents(_:_:)``, in microseconds since 1970; or 0. From
    /// then on they wait as long as new ones.
    public var since: Int64
    /// The same as in ``RecordedEvents/history`` of the directory.
    public var history: UInt64

    public init(
        cursor: Int64, waiting: [Waiting] = [], deadAbove: [Int64] = [], dead: Int = 0, since: Int64 = 0,
        history: UInt64 = 0
    ) {
        self.history = history
        self.since = since
        self.cursor = cursor
        self.waiting = waiting
        self.deadAbove = deadAbove
        self.dead = dead
    }
}

/// What an operator changes in a subscription's progress.
public enum EventReplay: Sendable, Equatable {
    /// Every event from this number on is sent again, as far as it is still kept.
    case from(Int64)
    /// Every event from this time on, in microseconds since 1970.
    case since(Int64)
    /// At most `limit` dead events, the oldest first.
    case dead(limit: Int)
}

/// A store that also keeps what subscriptions have settled.
public protocol EventDeliveryLog: EventLog {
    /// Chooses the events that are recorded, as ``EventLog/recordEvents(_:)`` does, and begins subscriptions that have no
    /// cursor yet at the newest event. Both are written before every later change of the bucket; the call does not wait
    /// for that.
    func beginSubscriptions(_ names: [String], recording filter: EventFilter?)

    /// Begins a subscription at the newest event, if it has not begun.
    func beginSubscription(_ name: String) async throws(BucketError)

    /// nil if the subscription has not begun.
    func subscriptionProgress(_ name: String) async throws(BucketError) -> SubscriptionProgress?

    /// Writes a settlement. If it is lost with the process, its events are sent again.
    func settleEvents(_ settlement: EventSettlement) async throws(BucketError)

    /// Changes the progress for a replay. Nothing of the subscription may be under way.
    /// - Returns: The number of dead events that are sent again, or of events from the number or time on.
    func replayEvents(_ name: String, _ replay: EventReplay) async throws(BucketError) -> Int

    /// Removes dead events that were given up before a time in microseconds since 1970.
    /// - Returns: Their number.
    func removeDeadEvents(_ name: String, before time: Int64) async throws(BucketError) -> Int

    /// Retries of a subscription, in order of their numbers, with their events.
    func eventRetries(_ name: String, dead: Bool, limit: Int) async throws(BucketError) -> [(EventRetry, BucketEvent)]

    /// Notes that other subscriptions are absent, and removes what is kept of those that have been since `time`, in
    /// microseconds since 1970, so that their events can be trimmed.
    func removeSubscriptions(except names: [String], since time: Int64) async throws(BucketError)
}
