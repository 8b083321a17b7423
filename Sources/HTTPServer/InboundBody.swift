import EventLoop

/// A request's body between its connection and a sink: what the sink does not take waits here, and no more of it is
/// granted to the peer than was taken.
final class InboundBody {
    private enum Receiver {
        case none
        case sink(any ByteSink, limit: UInt64, (Result<UInt64, BodyError>) -> Void)
        case discarding
    }
    /// Pieces as they came: a queue of small blocks neither grows by doubling nor moves what is left.
    @exclusivity(unchecked) private var waiting: [[UInt8]] = []
    /// Pieces of ``waiting`` that are used up, and bytes of the next one.
    private var used = (pieces: 0, bytes: 0)
    @exclusivity(unchecked) private var receiver = Receiver.none
    private var failure: BodyError?
    private(set) var isSinkBusy = false
    /// Whether the last byte has arrived.
    private(set) var isComplete = false
    /// Bytes that arrived.
    private(set) var received: UInt64 = 0
    /// The stream that owns this body, told what leaves the queue and how long it is.
    unowned var stream: ServerStream?

    /// Bytes that arrived and wait for the sink.
    private(set) var waitingCount = 0

    /// Whether the sink waits for the peer.
    var isStarved: Bool {
        if case .sink = receiver { return !isComplete && !isSinkBusy && waitingCount == 0 }
        return false
    }

    /// Takes bytes from the connection.
    func push(_ bytes: RawSpan) {
        received += UInt64(bytes.byteCount)
        var taken = 0
        if waitingCount == 0 { taken = offer(bytes) }
        if taken < bytes.byteCount {
            waiting.append(bytes.withUnsafeBytes { Array($0[taken...]) })
            changeWaiting(bytes.byteCount - taken)
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
        stream?.restartProgress()
        pump()
    }

    /// Drops what came and what comes.
    func discard() {
        if case .sink = receiver { return }
        receiver = .discarding
        drop()
    }

    private func drop() {
        let count = waitingCount
        waiting = []
        used = (0, 0)
        if count > 0 {
            changeWaiting(-count)
            stream?.bodyConsumed(count)
        }
    }

    private func changeWaiting(_ change: Int) {
        waitingCount += change
        stream?.waitingChanged(change)
    }

    private func pump() {
        isSinkBusy = false
        stream?.restartProgress()
        var total = 0
        while waitingCount > 0 && !isSinkBusy {
            let piece = waiting[used.pieces]
            let taken = offer(piece.span.bytes.extracting(used.bytes...))
            if failure != nil || taken == 0 { break }
            total += taken
            changeWaiting(-taken)
            used.bytes += taken
            if used.bytes == piece.count {
                waiting[used.pieces] = []
                used = (used.pieces + 1, 0)
            }
        }
        if waitingCount == 0 {
            waiting = []
            used = (0, 0)
        }
        if total > 0 { stream?.bodyConsumed(total) }
        if failure != nil { return }
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
        if isComplete && waitingCount == 0 && failure == nil { deliver(.success(received)) }
    }

    private func deliver(_ result: Result<UInt64, BodyError>) {
        guard case .sink(_, _, let completion) = receiver else { return }
        receiver = .discarding
        completion(result)
    }
}
