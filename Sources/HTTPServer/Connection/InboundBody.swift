import System

/// A request's body between its connection and a sink. Bytes that the sink does not accept are queued; only accepted
/// bytes enlarge the peer's window. Confined to the loop of its stream.
final class InboundBody {
    private enum Receiver {
        case none
        case sink(any ByteSink, limit: UInt64, (Result<UInt64, BodyError>) -> Void)
        case discarding
    }
    /// The queued bytes in pieces as they arrived, with small pieces joined. This neither doubles a capacity nor moves
    /// bytes, and a body that arrives byte by byte needs little more memory than its bytes.
    private(set) var waiting: [[UInt8]] = []
    /// The maximum size of a joined piece.
    private static let joinedBytes = 4096
    /// The number of consumed pieces of ``waiting``, and of consumed bytes of the next piece.
    private var used = (pieces: 0, bytes: 0)
    private var receiver = Receiver.none
    private var failure: BodyError?
    private(set) var isSinkBusy = false
    private(set) var isComplete = false
    /// The number of received bytes.
    private(set) var received: UInt64 = 0
    /// The owning stream, which is notified of consumed bytes and of the queue's length.
    unowned var stream: ServerStream?

    private(set) var waitingCount = 0

    /// Whether the sink waits for the peer.
    var isStarved: Bool {
        if case .sink = receiver { return !isComplete && !isSinkBusy && waitingCount == 0 }
        return false
    }

    /// The declared length of the body in bytes.
    var declared: UInt64?

    /// The number of bytes that have not arrived; 0 if the length is not declared.
    var unreceived: UInt64 { max(received, declared ?? 0) - received }

    /// The number of bytes that the sink waits for; 0 if it does not wait, or the length is not declared.
    var missing: Int { isStarved ? Int(clamping: unreceived) : 0 }

    /// Delivers or queues bytes from the connection.
    func push(_ bytes: RawSpan) {
        received += UInt64(bytes.byteCount)
        var taken = 0
        if waitingCount == 0 { taken = offer(bytes) }
        if taken < bytes.byteCount {
            bytes.withUnsafeBytes { keep(UnsafeRawBufferPointer(rebasing: $0[taken...])) }
            changeWaiting(bytes.byteCount - taken)
        }
        if taken > 0 { stream?.bodyConsumed(taken) }
    }

    private func keep(_ bytes: UnsafeRawBufferPointer) {
        if let last = waiting.indices.last, last >= used.pieces,
            waiting[last].count + bytes.count <= InboundBody.joinedBytes
        {
            waiting[last].append(contentsOf: bytes)
        } else {
            waiting.append(Array(bytes))
        }
    }

    /// Handles the end of the body.
    func end() {
        isComplete = true
        completeIfDone()
    }

    /// Ends the body with an error.
    func fail(_ error: BodyError) {
        guard failure == nil else { return }
        failure = error
        drop()
        deliver(.failure(error))
    }

    /// Moves the received and further bytes into `sink`.
    func start(
        _ sink: any ByteSink, limit: UInt64,
        _ completion: @escaping (Result<UInt64, BodyError>) -> Void
    ) {
        if let failure { return completion(.failure(failure)) }
        receiver = .sink(sink, limit: limit, completion)
        stream?.restartProgress()
        pump()
    }

    /// Drops the received and further bytes.
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

    /// Offers `bytes` to the receiver; returns the number accepted.
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
