import Synchronization
import Wire

/// Makes request ids: 13 characters that no other request of this process has, and that tell nothing of others.
///
/// What a client sends as `X-Request-Id` is never taken over: an id in the log is ours alone.
package final class RequestIDs: Sendable {
    /// Those of this process.
    package static let shared = RequestIDs()
    private let counter: Atomic<UInt64>

    /// - Parameter start: Different for each process, so that ids of several processes hardly ever meet.
    package init(start: UInt64 = .random(in: 0...(.max))) { counter = Atomic(start) }

    /// 64 bits in Crockford's base 32. It fits into a string without allocation.
    package func next() -> String {
        var rest = mixed(counter.wrappingAdd(1, ordering: .relaxed).newValue)
        return String(unsafeUninitializedCapacity: 13) { buffer in
            let digits: StaticString = "0123456789abcdefghjkmnpqrstvwxyz"
            for index in 0..<13 {
                buffer[index] = digits.utf8Start[Int(rest & 31)]
                rest >>= 5
            }
            return 13
        }
    }
}
