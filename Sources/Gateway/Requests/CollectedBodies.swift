import System
import Wire

/// Bounds the memory of the bodies that are collected whole, such as lists of names, among all requests.
final class CollectedBodies: Sendable {
    /// The first bytes of each body, which are not counted: most bodies are no longer.
    static let uncounted = 16 << 10
    /// In bytes.
    private let limit: Int
    private let counted = Lock(0)

    init(limit: Int = 8 << 20) { self.limit = limit }

    fileprivate func reserve(_ bytes: Int) -> Bool {
        counted.withLock { counted in
            guard counted + bytes <= limit else { return false }
            counted += bytes
            return true
        }
    }

    fileprivate func release(_ bytes: Int) { counted.withLock { $0 -= bytes } }
}

/// Collects a body. Its bytes count until it is released.
final class CollectedBody: ByteSink {
    private let bodies: CollectedBodies
    private var counted = 0
    private var bytes: [UInt8] = []

    init(_ bodies: CollectedBodies) { self.bodies = bodies }

    deinit { if counted > 0 { bodies.release(counted) } }

    /// - Throws: ``Problem`` with `overloaded` if other requests hold too many bytes.
    func write(_ span: RawSpan) throws -> Int {
        let added = max(0, bytes.count + span.byteCount - CollectedBodies.uncounted) - counted
        if added > 0 {
            guard bodies.reserve(added) else {
                throw Problem(
                    .overloaded, "Other requests have too many bytes of lists now; try again.",
                    field: ("retry-after", "1"))
            }
            counted += added
        }
        span.withUnsafeBytes { bytes.append(contentsOf: $0) }
        return span.byteCount
    }

    func whenWritable(_ resume: @escaping () -> Void) { resume() }

    /// The bytes, which still count.
    func take() -> [UInt8] {
        defer { bytes = [] }
        return bytes
    }
}
