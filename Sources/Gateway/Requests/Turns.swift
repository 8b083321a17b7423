import System

/// Turns for changes of one object, which get into each other's way where each is pinned to what it was decided on.
///
/// Waiters are served in the order of arrival. Safe to use from every loop.
final class Turns: Sendable {
    private typealias Waiter = CheckedContinuation<Void, Never>

    /// Those that wait, by the bytes of the name; a name is here while somebody has the turn.
    private let queues = Lock<[[UInt8]: [Waiter]]>([:])

    /// Whether somebody has the turn.
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

    /// Gives the turn to the next.
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
