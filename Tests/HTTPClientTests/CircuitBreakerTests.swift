import Testing

@testable import HTTPClient

/// Events with their times, and what must follow, without a socket.
@Suite("The circuit breaker and the retry budget")
struct CircuitBreakerTests {
    enum Event {
        case failures(Int)
        case success
        case admitted
        case rejected
    }

    @Test(
        "Eight failures in a row open the circuit, and one success closes it",
        arguments: [
            // Seven failures are not enough, and a success starts the count again.
            [(0, .failures(7)), (0, .admitted), (0, .success), (0, .failures(7)), (0, .admitted)],
            // One request may try after each pause, and each pause is twice as long.
            [
                (0, .failures(8)), (0, .rejected), (499, .rejected), (500, .admitted),
                (500, .rejected), (1499, .rejected), (1500, .admitted), (3499, .rejected),
                (3500, .admitted), (7499, .rejected), (7500, .admitted),
            ],
            // No pause is longer than five seconds.
            [
                (0, .failures(8)), (500, .admitted), (1500, .admitted), (3500, .admitted),
                (7500, .admitted), (12_499, .rejected), (12_500, .admitted), (17_499, .rejected),
                (17_500, .admitted),
            ],
            // A failure of the request that tries does not prolong the pause.
            [(0, .failures(8)), (500, .admitted), (900, .failures(1)), (1500, .admitted)],
            // After a success the first pause is short again.
            [
                (0, .failures(8)), (500, .admitted), (600, .success), (600, .admitted),
                (700, .failures(8)), (1199, .rejected), (1200, .admitted),
            ],
        ] as [[(UInt64, Event)]])
    func events(steps: [(milliseconds: UInt64, event: Event)]) {
        let breaker = CircuitBreaker()
        for (milliseconds, event) in steps {
            let now = milliseconds * 1_000_000
            switch event {
            case .failures(let count):
                for _ in 0..<count { breaker.failed("down", now: now) }
            case .success: breaker.succeeded()
            case .admitted: #expect(breaker.rejection(now: now) == nil, "at \(milliseconds) ms")
            case .rejected: #expect(breaker.rejection(now: now) == "down", "at \(milliseconds) ms")
            }
        }
    }

    @Test("Retries are limited to the reserve, a tenth of the requests, and ten per second")
    func budget() {
        let budget = RetryBudget()
        func retries(_ now: UInt64) -> Int {
            (0..<1000).prefix { _ in budget.take(now: now) }.count
        }
        #expect(retries(0) == RetryBudget.reserve)
        for _ in 0..<9 { budget.requestBegan() }
        #expect(retries(0) == 0)
        budget.requestBegan()
        #expect(retries(0) == 1)
        #expect(retries(99_999_999) == 0)
        #expect(retries(100_000_000) == 1)
        #expect(retries(1_100_000_000) == 10)
        // The reserve has a limit.
        #expect(retries(1_000_000_000_000) == RetryBudget.reserve)
    }
}
