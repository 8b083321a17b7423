import Testing

@testable import HTTPServer

/// Walks every row of the table of ``LingerState``.
@Suite("A connection after its last response")
struct LingerStateTests {
    private static let limits = ServerLimits()

    private func state(sending: Bool, allowance: Int = .max) -> LingerState {
        var state = LingerState(now: 0, allowance: allowance, hasPeerEnded: false)
        if !sending { #expect(state.handle(.flushed) == .endSending) }
        return state
    }

    @Test("The sending side ends once, when everything was sent")
    func flushed() {
        var state = state(sending: true)
        #expect(state.handle(.flushed) == .endSending)
        #expect(state.handle(.flushed) == .none)
    }

    @Test("If the peer has ended, the connection closes when everything was sent")
    func flushedAfterEnd() {
        var state = LingerState(now: 0, hasPeerEnded: true)
        #expect(state.handle(.flushed) == .close)
    }

    @Test("The end of the peer closes the connection", arguments: [true, false])
    func peerEnded(sending: Bool) {
        var state = state(sending: sending)
        #expect(state.handle(.peerEnded) == .close)
    }

    @Test("Bytes are dropped up to the allowance", arguments: [true, false])
    func received(sending: Bool) {
        var state = state(sending: sending, allowance: 10)
        #expect(state.handle(.received(9, now: 1)) == .none)
        #expect(state.handle(.received(1, now: 2)) == .none)
        #expect(state.handle(.received(1, now: 3)) == .close)
    }

    @Test("HTTP/1.1 has no allowance")
    func unbounded() {
        var state = state(sending: false)
        #expect(state.handle(.received(1 << 40, now: 1)) == .none)
    }

    @Test("The deadline follows the last bytes, and ends after the whole time")
    func deadline() {
        let limits = Self.limits
        var state = state(sending: false)
        #expect(state.deadline(limits, isDraining: false) == limits.lingerInterval)
        #expect(state.deadline(limits, isDraining: true) == LingerState.drainGrace)
        _ = state.handle(.received(1, now: 5))
        #expect(state.deadline(limits, isDraining: false) == 5 + limits.lingerInterval)
        #expect(state.deadline(limits, isDraining: true) == 5 + LingerState.drainGrace)
        _ = state.handle(.received(1, now: limits.lingerTimeout))
        #expect(state.deadline(limits, isDraining: false) == limits.lingerTimeout)
    }
}
