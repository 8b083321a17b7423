import Dispatch
import SluiceStorage
import Synchronization

/// The progress of one transfer.
final class TransferProgress: Sendable {
    struct Value: Sendable {
        var name: String
        /// nil if it is not known.
        var size: Int64?
        var done: Int64 = 0
        /// Bytes of an earlier transfer, which do not count for the rate.
        var before: Int64 = 0
        var began: ContinuousClock.Instant = .now

        /// Bytes per second since the beginning.
        var rate: Double {
            let time = began.duration(to: .now).components
            let seconds = Double(time.seconds) + Double(time.attoseconds) / 1e18
            return seconds > 0.01 ? Double(done - before) / seconds : 0
        }
    }
    private let state: Mutex<Value>

    init(_ name: String, size: Int64?) { state = Mutex(Value(name: name, size: size)) }

    var value: Value { state.withLock { $0 } }

    func set(_ done: Int64) {
        state.withLock { $0.done = done }
    }

    /// - Parameter before: Bytes of an earlier transfer, which `done` includes.
    func set(_ done: Int64, before: Int64) {
        state.withLock { state in
            state.done = done
            state.before = before
        }
    }

    /// The size is known now.
    func setSize(_ size: Int64) {
        state.withLock { $0.size = size }
    }

    /// An interrupted transfer continues.
    func resumed(at offset: Int64) {
        state.withLock { state in
            state.before = offset
            state.done = offset
        }
    }
}

/// Notices that a value is new.
final class Once<Value: Sendable & Equatable>: Sendable {
    private let last = Mutex<Value?>(nil)

    func isFirst(_ data: Value) -> Bool {
        last.withLock { last in
            if last == data { return false }
            last = data
            return true
        }
    }
}
