import Testing

@testable import HTTPServer

/// Walks every row of the table of ``UnwantedBody``.
@Suite("A request body after the response")
struct UnwantedBodyTests {
    enum State: CaseIterable {
        case wanted, unwanted, reset
    }
    private static let limits = ServerLimits()
    private static let timeout = limits.unwantedBodyTimeout
    private static let most = UnwantedBody.most

    /// A body whose response was sent at 0, in `state`.
    private static func body(_ state: State) -> UnwantedBody {
        var body = UnwantedBody()
        switch state {
        case .wanted: break
        case .unwanted: _ = body.handle(.responseSent(now: 0, isCrowded: false), limits)
        case .reset: _ = body.handle(.responseSent(now: 0, isCrowded: true), limits)
        }
        return body
    }

    @Test(
        "Every row of the table",
        arguments: [
            (.wanted, .responseSent(now: 0, isCrowded: false), .none, .unwanted),
            (.wanted, .responseSent(now: 0, isCrowded: true), .reset, .reset),
            (.wanted, .consumed(most + 1), .growWindow, .wanted),
            (.wanted, .time(.max), .none, .wanted),
            (.unwanted, .responseSent(now: 5, isCrowded: true), .none, .unwanted),
            (.unwanted, .consumed(0), .none, .unwanted),
            (.unwanted, .consumed(most + 1), .reset, .reset),
            (.unwanted, .time(timeout - 1), .none, .unwanted),
            (.unwanted, .time(timeout), .reset, .reset),
            (.reset, .responseSent(now: 5, isCrowded: false), .none, .reset),
            (.reset, .consumed(most + 1), .none, .reset),
            (.reset, .time(.max), .none, .reset),
        ] as [(State, UnwantedBody.Event, UnwantedBody.Action, State)])
    func row(from: State, event: UnwantedBody.Event, action: UnwantedBody.Action, to: State) {
        var body = Self.body(from)
        #expect(body.handle(event, Self.limits) == action)
        #expect(body == Self.body(to))
    }

    @Test("The bytes of an unwanted body are added up")
    func sum() {
        var body = Self.body(.unwanted)
        #expect(body.handle(.consumed(Self.most - 1), Self.limits) == .none)
        #expect(body.handle(.consumed(1), Self.limits) == .none)
        #expect(body.handle(.consumed(1), Self.limits) == .reset)
    }

    @Test("Only an unwanted body has a deadline")
    func deadline() {
        #expect(Self.body(.wanted).deadline(Self.limits) == .max)
        #expect(Self.body(.unwanted).deadline(Self.limits) == Self.timeout)
        #expect(Self.body(.reset).deadline(Self.limits) == .max)
    }
}
