import EventLoop

/// A request's body between its connection and a sink: what the sink does not take waits here, and no more of it is
/// granted to the peer than was taken.
final class InboundBody {
    private enum Receiver {
        case none
        case sink(any ByteSink, limit: UInt64, (Result<UInt64, BodyError>) -> Void)
        case discarding
    }
    private var waiting: [UInt8] = []
    private var receiver = Receiver.none
    private var failure: BodyError?
    private(set) var isSinkBusy = false
    /// Whether the last byte has arrived.
    private(set) var isComplete = false
    /// Bytes that arrived.
    private(set) var received: UInt64 = 0
    /// The stream that owns this body, told what leaves the queue and how long it is.
    unowned var stream: ServerStream?

    /// Bytes that arrived and wait for the sink.
    var waitingCount: Int { waiting.count }

    /// Whether the sink waits for the peer.
    var isStarved: Bool {
        if case .sink = receiver { return !isComplete && !isSinkBusy && waiting.isEmpty }
        return false
    }

    /// Takes bytes from the connection.
    func push(_ bytes: RawSpan) {
        received += UInt64(bytes.byteCount)
        var taken = 0
        if waiting.isEmpty { taken = offer(bytes) }
        if taken < bytes.byteCount {
            bytes.withUnsafeBytes { waiting.append(contentsOf: $0[taken...]) }
            stream?.waitingChanged(bytes.byteCount - taken)
        }
        if taken > 0 { stream?.bodyConsumed(taken) }
    }

    /// The last byte has arrived.
    func end() {
        isComplete = true
        completeIfDone()
    }

    /// Nothing more will arrive.
    func fail(_ error: BodyError) {
        guard failure == nil else { return }
        failure = error
        drop()
        deliver(.failure(error))
    }

    /// Moves what came and what comes into `sink`.
    func start(
        _ sink: any ByteSink, limit: UInt64,
        _ completion: @escaping (Result<UInt64, BodyError>) -> Void
    ) {
        if let failure { return completion(.failure(failure)) }
        receiver = .sink(sink, limit: limit, completion)
        pump()
    }

    /// Drops what came and what comes.
    func discard() {
        if case .sink = receiver { return }
        receiver = .discarding
        drop()
    }

    private func drop() {
        let count = waiting.count
        waiting = []
        if count > 0 {
            stream?.waitingChanged(-count)
            stream?.bodyConsumed(count)
        }
    }

    private func pump() {
        isSinkBusy = false
        if !waiting.isEmpty {
            let bytes = waiting
            let taken = offer(bytes.span.bytes)
            if failure != nil { return }
            if taken == bytes.count { waiting = [] } else { waiting.removeFirst(taken) }
            if taken > 0 {
                stream?.waitingChanged(-taken)
                stream?.bodyConsumed(taken)
            }
        }
        completeIfDone()
    }

    /// Gives a prefix of `bytes` to the receiver; returns how many it took.
    private func offer(_ bytes: RawSpan) -> Int {
        switch receiver {
        case .none: return 0
        case .discarding: return bytes.byteCount
        case .sink(let sink, let limit, _):
            if received > limit {
                fail(.tooLarge)
                return bytes.byteCount
            }
            if isSinkBusy { return 0 }
            do {
                let taken = try sink.write(bytes)
                if taken < bytes.byteCount {
                    isSinkBusy = true
                    sink.whenWritable { [weak self] in self?.pump() }
                }
                return taken
            } catch {
                fail(.sink(error))
                return bytes.byteCount
            }
        }
    }

    private func completeIfDone() {
        if isComplete && waiting.isEmpty && failure == nil { deliver(.success(received)) }
    }

    private func deliver(_ result: Result<UInt64, BodyError>) {
        guard case .sink(_, _, let completion) = receiver else { return }
        receiver = .discarding
        completion(result)
    }
}
