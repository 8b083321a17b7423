import Testing

@testable import HTTPClient

/// Walks every row of the table of ``HTTP1ExchangeState``.
@Suite("The state of an HTTP/1.1 exchange")
struct HTTP1ExchangeStateTests {
    typealias Event = HTTP1ExchangeState.Event
    typealias Row = (
        after: [Event], event: Event, action: HTTP1ExchangeState.Action,
        phase: HTTP1ExchangeState.Phase
    )
    private static let none = head(.none)
    private static let length = head(.length(10))
    private static let chunked = head(.chunked)
    private static let untilClose = head(.untilClose, keepAlive: false)
    private static let reset = Event.connectionLost(isOrderly: false, mayResend: false)
    private static let end = Event.connectionLost(isOrderly: true, mayResend: false)
    private static let stale = Event.connectionLost(isOrderly: true, mayResend: true)
    private static let all = Event.bodyRead(10, hasSurplus: false)

    private static func head(
        _ framing: HTTP1ResponseHead.Framing, keepAlive: Bool = true, hasSurplus: Bool = false
    ) -> Event {
        .head(framing, keepAlive: keepAlive, hasSurplus: hasSurplus)
    }

    private func expect(_ row: Row) {
        var state = HTTP1ExchangeState()
        for event in row.after { _ = state.handle(event) }
        #expect(state.handle(row.event) == row.action)
        #expect(state.phase == row.phase)
    }

    @Test(
        "A response without a body completes the exchange",
        arguments: [
            ([], none, .release, .over),
            ([], head(.none, keepAlive: false), .discard, .over),
            ([], head(.none, hasSurplus: true), .discard, .over),
            ([.received, .interim, .received], none, .release, .over),
        ] as [Row])
    func withoutBody(row: Row) { expect(row) }

    @Test(
        "A connection is kept only after a complete body without surplus bytes",
        arguments: [
            ([], length, .readBody, .body),
            ([length], .bodyRead(9, hasSurplus: true), .none, .body),
            (
                [length, .bodyRead(9, hasSurplus: true)], .bodyRead(1, hasSurplus: false), .release,
                .over
            ),
            ([length], all, .release, .over),
            ([length], .bodyRead(10, hasSurplus: true), .discard, .over),
            ([head(.length(10), keepAlive: false)], all, .discard, .over),
            ([head(.length(10), hasSurplus: true)], all, .release, .over),
            ([], chunked, .readBody, .body),
            ([chunked], .lastChunk(hasSurplus: false), .release, .over),
            ([chunked], .lastChunk(hasSurplus: true), .discard, .over),
            ([head(.chunked, keepAlive: false)], .lastChunk(hasSurplus: false), .discard, .over),
        ] as [Row])
    func reuse(row: Row) { expect(row) }

    @Test(
        "The end of a connection ends the body only if nothing else does",
        arguments: [
            ([], untilClose, .readBody, .body),
            ([untilClose], end, .discard, .over),
            ([untilClose], reset, .reject, .body),
            ([length], end, .reject, .body),
            ([length], reset, .reject, .body),
            ([chunked], end, .reject, .body),
            ([chunked], stale, .reject, .body),
        ] as [Row])
    func brokenBody(row: Row) { expect(row) }

    @Test(
        "A request is sent again only if no byte of a response came",
        arguments: [
            ([], stale, .startOver, .head),
            ([stale], stale, .startOver, .head),
            ([], .connectionLost(isOrderly: false, mayResend: true), .startOver, .head),
            ([], end, .reject, .head),
            ([], reset, .reject, .head),
            ([.received], stale, .reject, .head),
            ([.received, .interim], stale, .reject, .head),
            ([stale, .received], stale, .reject, .head),
        ] as [Row])
    func resending(row: Row) { expect(row) }

    @Test("Interim responses have a limit")
    func interim() {
        let limit = HTTP1ExchangeState.maximumInterim
        let most = [Event](repeating: .interim, count: limit - 1)
        expect((most, .interim, .none, .head))
        expect((most + [.interim], .interim, .reject, .head))
    }

    @Test(
        "A failure closes the connection",
        arguments: [[], [.received], [length], [untilClose]] as [[Event]])
    func failed(after: [Event]) { expect((after, .failed, .discard, .over)) }

    @Test(
        "Nothing has an effect after the end",
        arguments: [
            .received, .interim, none, length, all, .lastChunk(hasSurplus: false), end, stale,
            .failed,
        ] as [Event])
    func over(event: Event) {
        expect(([Self.none], event, .none, .over))
        expect(([.failed], event, .none, .over))
    }

    @Test("The bytes still to come are counted")
    func remaining() {
        var state = HTTP1ExchangeState()
        _ = state.handle(Self.length)
        #expect(state.remaining == 10 && state.isPersistent)
        _ = state.handle(.bodyRead(4, hasSurplus: false))
        #expect(state.remaining == 6)
    }
}
