import Buckets
import Wire

/// A moment for ``DeliveryState``, in microseconds.
package struct DeliveryTime: Sendable, Equatable {
    /// Since 1970, by a clock that can be set. It decides how old events are.
    package var wall: Int64
    /// By a clock that only goes forward. It decides when something is sent.
    package var ticks: Int64

    package init(wall: Int64, ticks: Int64) {
        self.wall = wall
        self.ticks = ticks
    }
}

/// What a request to a sink has come to.
package enum DeliveryResult: Sendable, Equatable {
    /// 2xx
    case delivered
    /// 410
    case gone
    /// - Parameter retryAfter: How long the sink asks for silence, in microseconds.
    case failed(cause: String, retryAfter: Int64? = nil)
}

/// Events that are sent in one request.
package struct Shipment: Sendable, Equatable {
    package var id: Int
    /// In order.
    package var sequences: [Int64]
}

/// The limits of a subscription's delivery. Times are in microseconds.
package struct DeliveryLimits: Sendable, Equatable {
    /// Requests at the same time.
    package var concurrency = 8
    /// Events in a request.
    package var batch = 1
    /// The age at which an event is given up.
    package var maximumAge: Int64 = 72 * 3_600_000_000
    /// Events that lie further than this behind the newest one are given up.
    package var maximumPending: Int64 = 1_000_000
    /// The shortest time between the beginnings of two requests.
    package var interval: Int64 = 0

    package init() {}

    /// The bytes of a batch.
    static let batchBytes = 256 << 10
    /// Events that are read at once.
    package static let window = 256
    /// The most events that wait for another attempt. Above it, no further ones are read until some are settled.
    static let maximumWaiting = 16_384
    /// How long an object has failed before its events can be given up because too many wait.
    static let failingTime: Int64 = 3_600_000_000
    /// The most settled events whose settlement is not written. Above it, no further ones are read.
    static let maximumUnwritten = 4_096
    /// The longest pause before another attempt, and the longest `Retry-After` that is kept.
    static let maximumDelay: Int64 = 3_600_000_000
    static let firstDelay: Int64 = 1_000_000
    /// Failures in a row after which one event at a time tests the sink.
    static let failuresBeforePause = 8
    static let maximumPause: Int64 = 60_000_000

    /// Unsettled events in memory.
    var capacity: Int { max(DeliveryLimits.window, min(4 * batch, 2048)) }
}

/// The number of events by what has become of them, since the start.
package struct DeliveryCounts: Sendable, Equatable {
    package var settled = 0
    /// Requests that failed, times their events.
    package var failed = 0
    package var dead = 0
    /// Given up because too many were pending.
    package var discarded = 0
}

/// The times at which events are sent again, earliest first. Entries that no longer count are skipped by the reader.
struct DueHeap {
    struct Entry {
        var due: Int64
        var sequence: Int64
    }
    private var entries: [Entry] = []

    var first: Entry? { entries.first }
    var count: Int { entries.count }

    mutating func insert(_ entry: Entry) {
        entries.append(entry)
        var child = entries.count - 1
        while child > 0, case let parent = (child - 1) / 2, entries[child].due < entries[parent].due {
            entries.swapAt(child, parent)
            child = parent
        }
    }

    mutating func removeFirst() {
        entries.swapAt(0, entries.count - 1)
        entries.removeLast()
        var parent = 0
        while case let left = 2 * parent + 1, left < entries.count {
            let right = left + 1
            let least = right < entries.count && entries[right].due < entries[left].due ? right : left
            if entries[parent].due <= entries[least].due { return }
            entries.swapAt(parent, least)
            parent = least
        }
    }
}
