import System

@testable import Buckets

/// Hidden objects in memory, with faults.
final class HiddenObjects: CloudSessionStore {
    enum Fault {
        /// The next write is not executed, and fails.
        case before
        /// The next write is executed, and its response is lost.
        case after
        /// The next write fails, and is executed by ``HiddenObjects/deliver()``.
        case late
    }
    private struct State {
        var objects: [String: HiddenObject] = [:]
        var versions = 0
        var fault: Fault?
        var late: (() -> Void)?
        var reads = 0
        var writes = 0
    }
    private let state = Lock(State())

    func fail(_ fault: Fault) { state.withLock { $0.fault = fault } }

    /// Executes a late write.
    func deliver() { state.withLock { $0.late.take() }?() }

    var names: [String] { state.withLock { $0.objects.keys.sorted() } }

    /// The requests since the last call.
    func takeCounts() -> (reads: Int, writes: Int) {
        state.withLock { state in
            defer { (state.reads, state.writes) = (0, 0) }
            return (state.reads, state.writes)
        }
    }

    func readHidden(_ name: String) async throws(BucketError) -> HiddenObject? {
        state.withLock { state in
            state.reads += 1
            return state.objects[name]
        }
    }

    func writeHidden(_ name: String, _ bytes: [UInt8], replacing version: String?)
        async throws(BucketError) -> String?
    {
        let fault = state.withLock { state in
            state.writes += 1
            return state.fault.take()
        }
        func execute() -> String? {
            state.withLock { state in
                guard state.objects[name]?.version == version else { return nil }
                state.versions += 1
                let version = String(state.versions)
                state.objects[name] = HiddenObject(bytes: bytes, version: version)
                return version
            }
        }
        switch fault {
        case nil: return execute()
        case .before: break
        case .after: _ = execute()
        case .late: state.withLock { $0.late = { _ = execute() } }
        }
        throw BucketError(.unavailable, "a fault of the test")
    }

    func deleteHidden(_ name: String) async throws(BucketError) {
        state.withLock { $0.objects[name] = nil }
    }

    func listHidden(_ prefix: String, after name: String?) async throws(BucketError) -> [String] {
        Array(names.filter { $0.hasPrefix(prefix) && $0 > name ?? "" }.prefix(1000))
    }
}
