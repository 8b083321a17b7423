/// The treatment of a request body that still arrives after the response (RFC 9113, section 8.1). The stream is not
/// reset at once: nghttp2 does not check bytes on a reset stream, some clients read no response before they have sent all
/// of a small body, and curl before 8.1 drops a response that it reads together with RST_STREAM. For a few seconds the
/// body is read, checked and dropped.
///
/// | state      | `responseSent`, streams free, crowded | `consumed`                     | `time` before, after |
/// |------------|---------------------------------------|--------------------------------|----------------------|
/// | `wanted`   | –, `reset`                            | `growWindow`                   | –, –                 |
/// | `unwanted` | –, –                                  | `reset` beyond the byte limit  | –, `reset`           |
/// | `reset`    | –, –                                  | –                              | –, –                 |
///
/// `responseSent` leads from `wanted` to `unwanted`. The action `reset` leads to `reset`.
struct UnwantedBody: Equatable {
    enum Event: Equatable {
        /// The response was sent before the body was complete. `isCrowded`: more than half of the streams are in use.
        case responseSent(now: UInt64, isCrowded: Bool)
        /// Bytes of the body left the stream's queue.
        case consumed(Int)
        /// The loop's time.
        case time(UInt64)
    }
    enum Action: Equatable {
        case none
        /// The body is wanted: its receive window may grow.
        case growWindow
        /// Send RST_STREAM with NO_ERROR.
        case reset
    }
    /// The maximum number of dropped bytes.
    static let most = 1024 * 1024
    private enum State: Equatable {
        case wanted
        case unwanted(since: UInt64, bytes: Int)
        case reset
    }
    private var state = State.wanted

    /// When an unwanted body ends its stream; `.max` in the other states.
    func deadline(_ limits: ServerLimits) -> UInt64 {
        if case .unwanted(let since, _) = state { since + limits.unwantedBodyTimeout } else { .max }
    }

    mutating func handle(_ event: Event, _ limits: ServerLimits) -> Action {
        switch (state, event) {
        case (.wanted, .consumed):
            return .growWindow
        case (.wanted, .responseSent(let now, let isCrowded)):
            state = isCrowded ? .reset : .unwanted(since: now, bytes: 0)
            return isCrowded ? .reset : .none
        case (.unwanted(let since, let bytes), .consumed(let count)):
            let isTooMuch = bytes + count > UnwantedBody.most
            state = isTooMuch ? .reset : .unwanted(since: since, bytes: bytes + count)
            return isTooMuch ? .reset : .none
        case (.unwanted(let since, _), .time(let now)) where since + limits.unwantedBodyTimeout <= now:
            state = .reset
            return .reset
        default:
            return .none
        }
    }
}
