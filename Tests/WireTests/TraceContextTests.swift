import Testing
import Wire

@Suite("The fields of W3C Trace Context")
struct TraceContextTests {
    private func parse(_ text: String) -> TraceContext? {
        Array(text.utf8).withUnsafeBufferPointer(TraceContext.init)
    }

    private let trace = "0af7651916cd43dd8448eb211c80319c"
    private let span = "b7ad6b7169203331"

    @Test func aWellFormedTraceparentIsRead() throws {
        let context = try #require(parse("00-\(trace)-\(span)-01"))
        #expect(context.traceID == trace && context.spanID == span && context.isSampled)
        #expect(context.field == "00-\(trace)-\(span)-01")
        #expect(parse("00-\(trace)-\(span)-00")?.isSampled == false)
    }

    @Test("A later version is read as version 00", arguments: ["01", "cc", "fe"])
    func laterVersions(version: String) {
        for rest in ["", "-", "-what the future brings"] {
            let context = parse("\(version)-\(trace)-\(span)-ff\(rest)")
            #expect(context?.field == "00-\(trace)-\(span)-03")
        }
        #expect(parse("\(version)-\(trace)-\(span)-01.more") == nil)
    }

    @Test func aMalformedTraceparentIsIgnored() {
        let malformed = [
            "", "00", "00-\(trace)-\(span)", "00-\(trace)-\(span)-0", "00-\(trace)-\(span)-011",
            "00-\(trace)-\(span)-01-", "ff-\(trace)-\(span)-01", "0-\(trace)-\(span)-010",
            "00-\(trace.uppercased())-\(span)-01", "00-\(trace)-\(span.uppercased())-01",
            "0A-\(trace)-\(span)-01", "00-\(trace)-\(span)-0A", "00_\(trace)_\(span)_01",
            "00-\(String(repeating: "0", count: 32))-\(span)-01",
            "00-\(trace)-\(String(repeating: "0", count: 16))-01",
            "00-\(trace.dropLast())g-\(span)-01", " 00-\(trace)-\(span)-01",
        ]
        for text in malformed { #expect(parse(text) == nil, "\(text)") }
    }

    @Test func aChildHasTheTraceAndASpanOfItsOwn() throws {
        let context = try #require(parse("00-\(trace)-\(span)-03"))
        let child = context.child()
        #expect(child.traceID == trace && child.flags == 3 && child.spanID != span)
        #expect(parse(child.field) == child)
        let roots = (0..<100).map { TraceContext.root(isSampled: $0 % 2 == 0) }
        #expect(Set(roots.map(\.traceID)).count == 100)
        for (index, root) in roots.enumerated() {
            #expect(parse(root.field) == root && root.isSampled == (index % 2 == 0))
        }
    }

    @Test func aTraceStateIsPassedUnchanged() {
        #expect(TraceState.joined([]) == nil)
        #expect(TraceState.joined(["rojo=00f0, congo=t61"]) == "rojo=00f0, congo=t61")
        #expect(TraceState.joined(["a=1", "b=2,,c=3"]) == "a=1,b=2,,c=3")
        for text in ["a", "=1", "a=", "a=b=c", "a=\u{e9}", ",,", "a=1\u{1}"] {
            #expect(TraceState.joined([text]) == nil, "\(text)")
        }
    }

    @Test func aTraceStateHas512BytesAnd32Members() {
        let members = (0..<33).map { "k\($0)=v" }
        #expect(TraceState.joined(Array(members.dropLast())) != nil)
        #expect(TraceState.joined(members) == nil)
        #expect(TraceState.joined(["a=" + String(repeating: "b", count: 510)]) != nil)
        #expect(TraceState.joined(["a=" + String(repeating: "b", count: 511)]) == nil)
    }
}
