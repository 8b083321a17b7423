import Testing

@testable import HTTPServer

/// Walks every row of the table of ``HTTP1State``.
@Suite("The state of an HTTP/1.1 connection")
struct HTTP1StateTests {
    typealias Event = HTTP1State.Event
    typealias Row = (
        after: [Event], event: Event, action: HTTP1State.Action, phase: HTTP1State.Phase,
        isPersistent: Bool
    )
    private static let most = HTTP1State.discardedBytes
    private static let get = Event.head(.none, keepAlive: true)
    private static let put = Event.head(.length(10), keepAlive: true)
    private static let large = Event.head(.length(most + 1), keepAlive: true)
    private static let chunked = Event.head(.chunked, keepAlive: true)
    private static let begun = Event.responseBegun(isContinueDue: false)
    private static let whole: [Event] = [begun, .responseProduced]

    private func expect(_ row: Row, isDraining: Bool = false) {
        var state = HTTP1State(isDraining: isDraining)
        for event in row.after { _ = state.handle(event) }
        #expect(state.handle(row.event) == row.action)
        #expect(state.phase == row.phase)
        #expect(state.isPersistent == row.isPersistent)
    }

    @Test(
        "A request is delimited by its head",
        arguments: [
            ([], get, .endBody, .responding, true),
            ([], .head(.length(0), keepAlive: true), .endBody, .responding, true),
            ([], .head(.none, keepAlive: false), .endBody, .responding, false),
            ([], put, .none, .body(remaining: 10), true),
            ([], .head(.length(10), keepAlive: false), .none, .body(remaining: 10), false),
            ([], chunked, .none, .chunkedBody, true),
            ([put], .bodyReceived(9), .none, .body(remaining: 1), true),
            ([put, .bodyReceived(9)], .bodyReceived(1), .endBody, .responding, true),
            ([chunked], .lastChunk, .endBody, .responding, true),
        ] as [Row])
    func framing(row: Row) { expect(row) }

    @Test(
        "A response before the body's end keeps the connection only if the rest is short and in transit",
        arguments: [
            ([get], begun, .none, .responding, true),
            ([put], begun, .discardBody, .body(remaining: 10), true),
            ([put], .responseBegun(isContinueDue: true), .discardBody, .body(remaining: 10), false),
            ([large], begun, .discardBody, .body(remaining: most + 1), false),
            ([large, .bodyReceived(1)], begun, .discardBody, .body(remaining: most), true),
            ([chunked], begun, .discardBody, .chunkedBody, false),
        ] as [Row])
    func early(row: Row) { expect(row) }

    @Test(
        "After the response comes the next request, the rest of the body, or the end",
        arguments: [
            ([], .flushed, .none, .head, true),
            ([get], .flushed, .none, .responding, true),
            ([get, begun], .flushed, .none, .responding, true),
            ([get] + whole, .flushed, .readNext, .head, true),
            ([put, .bodyReceived(10)] + whole, .flushed, .readNext, .head, true),
            ([chunked, .lastChunk] + whole, .flushed, .readNext, .head, true),
            ([.head(.none, keepAlive: false)] + whole, .flushed, .finish, .finished, false),
            ([get, .closeAfterResponse] + whole, .flushed, .finish, .finished, false),
            ([get] + whole + [.closeAfterResponse], .flushed, .finish, .finished, false),
            ([put] + whole, .flushed, .none, .body(remaining: 10), true),
            ([put] + whole + [.flushed], .bodyReceived(10), .endBody, .responding, true),
            ([put] + whole + [.flushed, .bodyReceived(10)], .flushed, .readNext, .head, true),
            ([large] + whole, .flushed, .abandon, .finished, false),
            ([chunked] + whole, .flushed, .abandon, .finished, false),
            ([get] + whole + [.flushed], get, .endBody, .responding, true),
            ([get] + whole + [.flushed, get], .flushed, .none, .responding, true),
        ] as [Row])
    func flushed(row: Row) { expect(row) }

    @Test(
        "A complete request is served after the peer has ended, an incomplete one is not",
        arguments: [
            ([], .peerEnded, .finish, .finished, false),
            ([put], .peerEnded, .abandon, .finished, false),
            ([chunked], .peerEnded, .abandon, .finished, false),
            ([get], .peerEnded, .none, .responding, true),
            ([], .inputParsed, .none, .head, true),
            ([get, .peerEnded] + whole, .flushed, .readNext, .head, true),
            ([get, .peerEnded] + whole + [.flushed], .inputParsed, .finish, .finished, false),
            ([get, .peerEnded] + whole + [.flushed, get], .inputParsed, .none, .responding, true),
        ] as [Row])
    func peerEnded(row: Row) { expect(row) }

    @Test(
        "A drain ends an idle connection at once, and others after the response",
        arguments: [
            ([], .drain(hasInput: false), .finish, .finished, false),
            ([], .drain(hasInput: true), .none, .head, false),
            ([.drain(hasInput: true)], get, .endBody, .responding, false),
            ([get], .drain(hasInput: false), .none, .responding, false),
            ([put], .drain(hasInput: false), .none, .body(remaining: 10), false),
            ([put] + whole + [.drain(hasInput: false)], .flushed, .abandon, .finished, false),
        ] as [Row])
    func drain(row: Row) { expect(row) }

    @Test("A connection that is accepted during a drain serves one request")
    func acceptedInDrain() {
        expect(([], Self.get, .endBody, .responding, false), isDraining: true)
        expect(([Self.get] + Self.whole, .flushed, .finish, .finished, false), isDraining: true)
    }

    @Test(
        "A failure ends the connection in every phase, an idle timeout between requests",
        arguments: [
            ([], .failed, .abandon, .finished, false),
            ([put], .failed, .abandon, .finished, false),
            ([chunked], .failed, .abandon, .finished, false),
            ([get] + whole, .failed, .abandon, .finished, false),
            ([], .idleTimeout, .finish, .finished, false),
        ] as [Row])
    func ends(row: Row) { expect(row) }

    @Test(
        "Nothing has an effect after the end",
        arguments: [
            get, chunked, .bodyReceived(1), .lastChunk, begun, .responseProduced, .flushed,
            .inputParsed, .peerEnded, .closeAfterResponse, .drain(hasInput: false), .idleTimeout,
            .failed,
        ] as [Event])
    func finished(event: Event) {
        expect(([.failed], event, .none, .finished, false))
    }

    @Test("A response is being sent from its head to its last byte")
    func response() {
        var state = HTTP1State(isDraining: false)
        var steps = [(state.isSendingResponse, state.isResponseComplete)]
        for event in [Self.get, Self.begun, .responseProduced, .flushed] {
            _ = state.handle(event)
            steps.append((state.isSendingResponse, state.isResponseComplete))
        }
        #expect(steps.map(\.0) == [false, false, true, false, false])
        #expect(steps.map(\.1) == [false, false, false, true, false])
    }
}
