import Testing

@testable import HTTPServer

/// Walks every row of the table of ``DrainState``.
@Suite("The drain of an HTTP/2 connection")
struct DrainStateTests {
    enum Phase: CaseIterable {
        case serving, announced, final
    }
    private static let timeout = DrainState.pingTimeout

    /// A drain that began at 0, in `phase`.
    private static func state(_ phase: Phase) -> DrainState {
        var state = DrainState()
        if phase != .serving { #expect(state.handle(.begin(now: 0)) == .announce) }
        if phase == .final { #expect(state.handle(.pingAnswered) == .finish) }
        return state
    }

    @Test(
        "Every row of the table",
        arguments: [
            (.serving, .begin(now: 0), .announce, .announced),
            (.serving, .noticeSent, .none, .serving),
            (.serving, .pingAnswered, .none, .serving),
            (.serving, .time(.max), .none, .serving),
            (.serving, .emptied, .none, .serving),
            (.announced, .begin(now: 7), .none, .announced),
            (.announced, .noticeSent, .ping, .announced),
            (.announced, .pingAnswered, .finish, .final),
            (.announced, .time(timeout - 1), .none, .announced),
            (.announced, .time(timeout), .finish, .final),
            (.announced, .emptied, .none, .announced),
            (.final, .begin(now: 7), .none, .final),
            (.final, .noticeSent, .none, .final),
            (.final, .pingAnswered, .none, .final),
            (.final, .time(.max), .none, .final),
            (.final, .emptied, .close, .final),
        ] as [(Phase, DrainState.Event, DrainState.Action, Phase)])
    func row(from: Phase, event: DrainState.Event, action: DrainState.Action, to: Phase) {
        var state = Self.state(from)
        #expect(state.handle(event) == action)
        #expect(state == Self.state(to))
    }

    @Test("Only an announced end has a deadline, and only the final state is final")
    func properties() {
        #expect(Self.state(.serving).deadline == .max)
        #expect(Self.state(.announced).deadline == Self.timeout)
        #expect(Self.state(.final).deadline == .max)
        #expect(Phase.allCases.map { Self.state($0).isFinal } == [false, false, true])
    }
}
