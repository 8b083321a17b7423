/// The state of an exchange, and the fate of its connection: it is reused (RFC 9112, section 9.3) or closed, or the
/// request is resent on a new one (section 9.3.1).
///
/// | event            | `head`                        | `body`                                                |
/// |------------------|-------------------------------|-------------------------------------------------------|
/// | `received`       | –                             |                                                       |
/// | `interim`        | –; `reject` beyond the limit  |                                                       |
/// | `head`           | `readBody` if a body follows, otherwise `release` or `discard` |                      |
/// | `bodyRead`       |                               | –; `release` or `discard` at the declared length      |
/// | `lastChunk`      |                               | `release` or `discard`                                |
/// | `connectionLost` | `startOver` or `reject`       | `discard` if that is the body's end, otherwise `reject` |
/// | `failed`         | `discard`                     | `discard`                                             |
///
/// `readBody` leads to `body`, `release` and `discard` to `over`, which ignores all events. `reject` changes nothing:
/// `failed` follows. Empty cells can't occur.
struct HTTP1ExchangeState: Equatable {
    enum Phase: Equatable {
        case head
        case body
        /// The response is complete or can't continue.
        case over
    }
    enum Event: Equatable {
        case received
        case interim
        /// The final head was parsed. `keepAlive`: the response and the request, which must be completely sent, allow
        /// the connection to persist. `hasSurplus`: bytes follow the head.
        case head(HTTP1ResponseHead.Framing, keepAlive: Bool, hasSurplus: Bool)
        /// Bytes of a body of declared length were read. `hasSurplus`: more bytes have been received after them.
        case bodyRead(Int, hasSurplus: Bool)
        case lastChunk(hasSurplus: Bool)
        /// The connection ended or failed. `isOrderly`: the upstream ended it without an error. `mayResend`: it was
        /// idle before this exchange, and the request may be sent again.
        case connectionLost(isOrderly: Bool, mayResend: Bool)
        case failed
    }
    enum Action: Equatable {
        case none
        case readBody
        /// The response is complete: keep the connection for another exchange.
        case release
        /// The exchange is over: close the connection.
        case discard
        case startOver
        case reject
    }
    static let maximumInterim = 16

    private(set) var phase = Phase.head
    private(set) var framing = HTTP1ResponseHead.Framing.none
    /// The number of remaining body bytes, if known.
    private(set) var remaining: UInt64 = 0
    /// Whether the connection can carry another exchange after the body.
    private(set) var isPersistent = false
    private var hasReceived = false
    private var interimResponses = 0

    mutating func handle(_ event: Event) -> Action {
        if phase == .over { return .none }
        switch event {
        case .received: hasReceived = true
        case .interim:
            interimResponses += 1
            if interimResponses > HTTP1ExchangeState.maximumInterim { return .reject }
        case .head(let framing, let keepAlive, let hasSurplus):
            self.framing = framing
            isPersistent = keepAlive
            if framing == .none { return complete(hasSurplus) }
            if case .length(let length) = framing { remaining = length }
            phase = .body
            return .readBody
        case .bodyRead(let count, let hasSurplus):
            remaining -= UInt64(count)
            if remaining == 0 { return complete(hasSurplus) }
        case .lastChunk(let hasSurplus): return complete(hasSurplus)
        case .connectionLost(let isOrderly, let mayResend):
            // Without a byte of a response, the upstream most likely closed the idle connection before the request
            // came.
            if phase == .head { return mayResend && !hasReceived ? .startOver : .reject }
            return isOrderly && framing == .untilClose ? end(.discard) : .reject
        case .failed: return end(.discard)
        }
        return .none
    }

    /// The response is complete. Bytes after it belong to no request.
    private mutating func complete(_ hasSurplus: Bool) -> Action {
        end(isPersistent && !hasSurplus ? .release : .discard)
    }

    private mutating func end(_ action: Action) -> Action {
        phase = .over
        return action
    }
}
