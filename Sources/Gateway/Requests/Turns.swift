import System

/// Serializes changes of one object that are pinned to a version and would otherwise make each other fail.
///
/// Waiters are served in the order of arrival. Can be used from every loop.
final class Turns: Sendable {
    private typealias Waiter = CheckedContinuation<Void, Never>

    /// The waiters by object name. A name is present while a change holds its turn.
    private let queues = Lock<[[UInt8]: [Waiter]]>([:])

    /// Whether a change of this object holds the turn.
    func isTaken(_ name: String) -> Bool {
        queues.withLock { !$0.isEmpty && $0[Array(name.utf8)] != nil }
    }

    /// Waits for the turn. ``end(_:)`` must follow.
    func take(_ name: String) async {
        await withCheckedContinuation { waiter in
            let isFree = queues.withLock { queues in
                let isFree = queues[Array(name.utf8)] == nil
                if isFree {
                    queues[Array(name.utf8)] = []
                } else {
                    queues[Array(name.utf8)]?.append(waiter)
                }
                return isFree
            }
            if isFree { waiter.resume() }
        }
    }

    /// Passes the turn to the next waiter.
    func end(_ name: String) {
        let next: Waiter? = queues.withLock { queues in
            let key = Array(name.utf8)
            guard let first = queues[key]?.first else {
                queues[key] = nil
                return nil
            }
            queues[key]?.removeFirst()
            return first
        }
        next?.resume()
    }
}
