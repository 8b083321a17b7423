import Testing

@testable import SecurityRules

/// Decisions over a period: a request is allowed only if it is allowed at every moment.
@Suite struct PeriodTests {
    /// From noon to one o'clock on 2024-05-01.
    private var period: Request {
        var request = Request(.get, bucket: "B", object: "a", caller: alice, time: noon)
        request.setTime(through: Timestamp(seconds: noon.seconds + 3600)!)
        return request
    }

    private static let noonText = "timestamp.value(1714564800000)"
    private static let oneText = "timestamp.value(1714568400000)"
    private static let conditions = [
        ("true", "allowed"), ("request.auth.uid == 'bob'", "denied"),
        ("request.time < timestamp.date(2024, 5, 2)", "allowed"),
        ("timestamp.date(2024, 5, 2) > request.time", "allowed"),
        ("request.time > timestamp.date(2024, 5, 2)", "denied"),
        ("timestamp.date(2024, 5, 1) >= request.time", "denied"),
        // Both bounds, to the second.
        ("request.time >= \(noonText)", "allowed"), ("request.time > \(noonText)", "time"),
        ("request.time < \(noonText)", "denied"), ("request.time <= \(noonText)", "time"),
        ("request.time <= \(oneText)", "allowed"), ("request.time < \(oneText)", "time"),
        ("request.time > \(oneText)", "denied"), ("request.time >= \(oneText)", "time"),
        ("\(noonText) <= request.time && request.time <= \(oneText)", "allowed"),
        // Allowed at both ends does not mean allowed in between.
        ("request.time <= \(noonText) || request.time >= \(oneText)", "time"),
        ("request.time.minutes() == 0", "time"), ("request.time != \(noonText)", "time"),
        ("request.time == request.time", "time"), ("request.time < request.time", "time"),
        ("(request.time == \(noonText)) < timestamp.date(2030, 1, 1)", "time"),
        ("request.time + duration.value(1, 's') < timestamp.date(2030, 1, 1)", "time"),
        ("request.time < 5", "time"), ("request.time.date() < timestamp.date(2030, 1, 1)", "time"),
        ("request['time'] < timestamp.date(2030, 1, 1)", "time"),
        ("[request.time][0] < timestamp.date(2030, 1, 1)", "time"),
        ("request.keys().size() > 0", "time"), ("'time' in request", "allowed"),
        ("resource == null || request.time.hours() < 13", "resource time"),
        ("request.time < timestamp.date(2024, 5, 2) && resource == null", "resource"),
    ]

    @Test(arguments: conditions) func decisions(_ condition: String, _ expected: String) throws {
        let found: String =
            switch try rules(condition).decide(period) {
            case .allowed: "allowed"
            case .denied: "denied"
            case .needs(let needs):
                ((needs.existing ? ["resource"] : []) + (needs.time ? ["time"] : [])).joined(
                    separator: " ")
            }
        #expect(found == expected, "\(condition)")
    }

    /// A period's decision holds at each of its moments.
    @Test(arguments: conditions) func itIsEveryMoment(_ condition: String, _: String) throws {
        let rules = try rules(condition)
        let whole = rules.decide(period)
        if case .needs = whole { return }
        for second in stride(from: 0, through: Int64(3600), by: 1) {
            let time = try #require(Timestamp(seconds: noon.seconds + second))
            let moment = Request(.get, bucket: "B", object: "a", caller: alice, time: time)
            #expect(rules.decide(moment).isAllowed == whole.isAllowed, "\(condition) at \(second)")
        }
    }

    @Test func explanationsNameIt() throws {
        let explanation = try rules("request.time.hours() < 13").explain(period)
        #expect("\(explanation)".contains("request.time"))
        guard case .needs(let needs) = explanation.decision else {
            Issue.record("decided")
            return
        }
        #expect(needs.time && !needs.existing)
    }
}
