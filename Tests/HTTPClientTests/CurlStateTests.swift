import Testing

@testable import HTTPClient

/// Walks every row of the table of ``CurlPauses``.
@Suite("The pauses of a transfer of libcurl")
struct CurlPausesTests {
    private static let limit = CurlPauses.bufferLimit

    /// Pauses with the given directions paused.
    private static func pauses(receive: Bool, send: Bool) -> CurlPauses {
        var pauses = CurlPauses()
        if receive { #expect(pauses.receive(buffered: limit) == false) }
        if send { pauses.sourceIsEmpty() }
        return pauses
    }

    @Test(
        "Receiving pauses when the buffer is full",
        arguments: [(0, true), (limit - 1, true), (limit, false), (limit + 1, false)])
    func receive(buffered: Int, isAccepted: Bool) {
        var pauses = CurlPauses()
        #expect(pauses.receive(buffered: buffered) == isAccepted)
        #expect(pauses == Self.pauses(receive: !isAccepted, send: false))
    }

    /// What is paused before, the buffered bytes, whether there are bytes to send; what is paused after.
    typealias Row = (
        receive: Bool, send: Bool, buffered: Int, canSend: Bool, receiveAfter: Bool, sendAfter: Bool
    )

    @Test(
        "A direction continues once its reason is gone",
        arguments: [
            (false, false, 0, true, false, false),
            (true, false, limit / 2, true, true, false),
            (true, false, limit / 2 - 1, false, false, false),
            (false, true, 0, false, false, true),
            (false, true, limit, true, false, false),
            (true, true, limit / 2, false, true, true),
            (true, true, limit / 2, true, true, false),
            (true, true, limit / 2 - 1, false, false, false),
            (true, true, limit / 2 - 1, true, false, false),
        ] as [Row])
    func resume(row: Row) {
        let before = Self.pauses(receive: row.receive, send: row.send)
        let after = Self.pauses(receive: row.receiveAfter, send: row.sendAfter)
        var pauses = before
        #expect(
            pauses.resume(buffered: row.buffered, canSend: row.canSend) == (before != after))
        #expect(pauses == after)
    }
}

/// Walks every row of the table of ``CurlProgress``.
@Suite("The progress of a transfer of libcurl")
struct CurlProgressTests {
    /// Limits of 100 for progress of 10 bytes, and 50 for the response.
    private let settings = {
        var settings = UpstreamSettings(name: "x", origin: Origin("https://x.test")!)
        settings.progressTimeout = 100
        settings.firstByteTimeout = 50
        settings.progressBytes = 10
        return settings
    }()

    private func progress(
        _ phase: CurlProgress.Phase, waitLimit: UInt64? = nil
    ) -> CurlProgress {
        var progress = CurlProgress(hasBody: phase == .sending, waitLimit: waitLimit, now: 0)
        if phase == .receiving { progress.headDelivered(received: 0, 0) }
        return progress
    }

    /// Checks `progress` after `received` body bytes, while it waits for the upstream.
    private func check(_ progress: CurlProgress, received: UInt64 = 0, at now: UInt64)
        -> CurlProgress.Verdict
    {
        var progress = progress
        return progress.check(received: received, isUpstreamsTurn: true, settings, now)
    }

    @Test(
        "Each phase has its limit",
        arguments: [
            (.sending, nil, 100, .sendTimedOut), (.waiting, nil, 50, .receiveTimedOut),
            (.receiving, nil, 100, .receiveTimedOut), (.sending, 300, 300, .sendTimedOut),
            (.waiting, 300, 300, .receiveTimedOut), (.waiting, 20, 50, .receiveTimedOut),
            (.receiving, 300, 300, .receiveTimedOut),
        ] as [(CurlProgress.Phase, UInt64?, UInt64, CurlProgress.Verdict)])
    func limits(
        phase: CurlProgress.Phase, waitLimit: UInt64?, limit: UInt64, verdict: CurlProgress.Verdict
    ) {
        let progress = progress(phase, waitLimit: waitLimit)
        #expect(progress.limit(settings) == limit)
        #expect(progress.deadline(settings, 0) == limit)
        #expect(check(progress, at: limit - 1) == .inTime)
        #expect(check(progress, at: limit) == verdict)
    }

    @Test("Sending ends with the last byte, waiting with the head")
    func phases() {
        var progress = progress(.sending)
        progress.sent(5, isLast: false, received: 0, settings, 10)
        #expect(progress.phase == .sending)
        progress.sent(5, isLast: true, received: 0, settings, 20)
        #expect(progress.phase == .waiting)
        #expect(progress.deadline(settings, 20) == 70)
        progress.headDelivered(received: 0, 30)
        #expect(progress.phase == .receiving)
        #expect(progress.deadline(settings, 30) == 130)
    }

    @Test(
        "After an early response, the rest of the request does not change the phase")
    func earlyResponse() {
        var progress = progress(.sending)
        progress.headDelivered(received: 0, 10)
        progress.sent(5, isLast: true, received: 0, settings, 20)
        #expect(progress.phase == .receiving)
        #expect(progress.deadline(settings, 20) == 120)
    }

    @Test(
        "Only enough accepted bytes extend the time for sending", arguments: [(9, 100), (10, 190)])
    func sending(bytes: Int, deadline: UInt64) {
        var progress = progress(.sending)
        progress.sent(bytes, isLast: false, received: 0, settings, 90)
        #expect(check(progress, at: deadline - 1) == .inTime)
        #expect(check(progress, at: deadline) == .sendTimedOut)
    }

    @Test("While the request's body has no bytes, the upstream has time")
    func emptySource() {
        var progress = progress(.sending)
        progress.sourceIsEmpty(60)
        #expect(progress.deadline(settings, 500) == 600)
        #expect(check(progress, at: 1000) == .inTime)
        // 60 of 100 are used up.
        progress.sent(1, isLast: false, received: 0, settings, 1000)
        #expect(check(progress, at: 1039) == .inTime)
        #expect(check(progress, at: 1040) == .sendTimedOut)
    }

    @Test(
        "Only enough received bytes extend the time for receiving, or any with a wait limit",
        arguments: [
            (nil, 9, .receiveTimedOut), (nil, 10, .inTime), (100, 0, .receiveTimedOut),
            (100, 1, .inTime),
        ] as [(UInt64?, UInt64, CurlProgress.Verdict)])
    func receiving(waitLimit: UInt64?, bytes: UInt64, verdict: CurlProgress.Verdict) {
        #expect(
            check(progress(.receiving, waitLimit: waitLimit), received: bytes, at: 100) == verdict)
    }

    @Test("An interval begins after progress, and when a reader begins to wait")
    func intervals() {
        var progress = progress(.receiving)
        #expect(progress.check(received: 10, isUpstreamsTurn: true, settings, 100) == .inTime)
        #expect(check(progress, received: 19, at: 199) == .inTime)
        #expect(check(progress, received: 19, at: 200) == .receiveTimedOut)
        progress.restart(received: 19, 150)
        #expect(check(progress, received: 19, at: 249) == .inTime)
        #expect(check(progress, received: 19, at: 250) == .receiveTimedOut)
    }

    @Test("A slow reader does not count against the upstream")
    func readersTurn() {
        var progress = progress(.receiving)
        #expect(progress.check(received: 0, isUpstreamsTurn: false, settings, 100) == .inTime)
        #expect(progress.deadline(settings, 100) == 200)
    }
}
