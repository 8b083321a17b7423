import Synchronization
import Wire

/// Generates request IDs: 13 characters, unique within this process. An ID reveals nothing about other requests. A
/// request's `X-Request-Id` is ignored, so that every ID in the log is our own.
package final class RequestIDs: Sendable {
    /// The generator of this process.
    package static let shared = RequestIDs()
    private let counter: Atomic<UInt64>

    /// - Parameter start: Random, so that IDs of several processes are unlikely to collide.
    package init(start: UInt64 = .random(in: 0...(.max))) { counter = Atomic(start) }

    /// 64 bits in Crockford's base 32. The string needs no allocation.
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
