import Testing

@testable import HTTPServer

/// Walks every row of the table of ``ProtocolChoice``.
@Suite("The protocol of a connection")
struct ProtocolChoiceTests {
    @Test(
        "The first bytes choose",
        arguments: [
            ("", .undecided, .http1), ("P", .undecided, .http1), ("PR", .undecided, .http1),
            ("PRI", .undecided, .http1), ("PRI ", .http2, .http1), ("PRI * HTTP", .http2, .http1),
            ("PRI\t", .http1, .http1), ("PUT ", .http1, .http1), ("GET / HT", .http1, .http1),
            ("pri ", .http1, .http1),
        ] as [(String, ProtocolChoice, ProtocolChoice)])
    func choice(first: String, clear: ProtocolChoice, secure: ProtocolChoice) {
        #expect(ProtocolChoice(Array(first.utf8), isSecure: false) == clear)
        #expect(ProtocolChoice(Array(first.utf8), isSecure: true) == secure)
    }
}
