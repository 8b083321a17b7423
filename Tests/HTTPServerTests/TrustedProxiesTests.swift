import System
import Testing
import Wire

@testable import HTTPServer

@Suite("What trusted proxies say")
struct TrustedProxiesTests {
    private let proxies = TrustedProxies(["10.0.0.0/8", "2001:db8:1::/48"])!

    private func client(
        _ fields: (StaticString, String)..., field: TrustedProxies.Field = .auto
    ) -> ForwardedClient {
        var proxies = proxies
        proxies.field = field
        var all = HeaderFields()
        for (name, value) in fields { all.append(name, value) }
        let head = RequestHead(
            method: "GET", target: "/", authority: nil, fields: all, contentLength: nil,
            hasBody: false, expectsContinue: false)
        return ForwardedClient(head, proxies)
    }

    @Test(
        "The client is the last address that is not a proxy's",
        arguments: [
            ("192.0.2.1", "192.0.2.1:0"), ("192.0.2.1:77", "192.0.2.1:77"),
            ("6.6.6.6, 192.0.2.1", "192.0.2.1:0"), ("192.0.2.1, 10.1.2.3", "192.0.2.1:0"),
            ("6.6.6.6,192.0.2.1 ,\t10.1.2.3,10.9.9.9", "192.0.2.1:0"),
            ("2001:db8:2::1", "[2001:db8:2::1]:0"), ("[2001:db8:2::1]:80", "[2001:db8:2::1]:80"),
            ("[2001:db8:2::1]", "[2001:db8:2::1]:0"),
            ("6.6.6.6, 2001:db8:1::9", "6.6.6.6:0"), ("::ffff:192.0.2.1", "192.0.2.1:0"),
            // Only proxies: the first of them has a client that is one of them.
            ("10.1.1.1, 10.2.2.2", "10.1.1.1:0"),
            // An entry that is no address ends the list.
            ("192.0.2.1, unknown", nil), ("192.0.2.1, unknown, 10.1.1.1", "10.1.1.1:0"),
            ("", nil), (",", nil), ("192.0.2.1,", nil), ("192.0.2.256", nil),
        ] as [(String, String?)])
    func addresses(list: String, expected: String?) {
        #expect(client(("x-forwarded-for", list)).peer == expected)
    }

    @Test(
        "Forwarded has elements with parameters and quoted strings",
        arguments: [
            ("for=192.0.2.1", "192.0.2.1:0", nil),
            ("For=192.0.2.1;Proto=HTTPS", "192.0.2.1:0", true),
            ("for=6.6.6.6, for=192.0.2.1;proto=http;by=10.0.0.1", "192.0.2.1:0", false),
            (#"for="[2001:db8:2::1]:4711""#, "[2001:db8:2::1]:4711", nil),
            (#"for="192.0.2.1:9";host="a,b;c\"d""#, "192.0.2.1:9", nil),
            (#"for="192.0.2.1:_hidden""#, "192.0.2.1:0", nil),
            ("proto=https;for=192.0.2.1 , for=10.1.1.1;proto=http", "192.0.2.1:0", true),
            ("for=_hidden", nil, nil), ("by=10.0.0.1", nil, nil), ("for", nil, nil),
            // What a client begins may hide what the proxy appends, but is never believed.
            (#"for=6.6.6.6;x=", for=192.0.2.1"#, nil, nil),
            (#"for=6.6.6.6;x=", for="192.0.2.1:9""#, nil, nil),
            (#"for=6.6.6.6;x="\, for=192.0.2.1"#, nil, nil),
        ] as [(String, String?, Bool?)])
    func forwarded(value: String, expected: String?, isSecure: Bool?) {
        let client = client(("forwarded", value))
        #expect(client.peer == expected)
        #expect(client.isSecure == isSecure)
    }

    @Test(
        "Of two fields that contradict each other, X-Forwarded-For counts",
        arguments: ["for=6.6.6.6;proto=https", #"for=6.6.6.6;x=""#, "for=_hidden", ""])
    func contradiction(value: String) {
        let spoofed = client(("forwarded", value), ("x-forwarded-for", "6.6.6.6, 192.0.2.1"))
        #expect(spoofed.peer == "192.0.2.1:0" && spoofed.isSecure == nil)
        #expect(spoofed.ignored == "Forwarded: \(value)")
    }

    @Test("Only the named field counts")
    func field() {
        let both: [(StaticString, String)] = [
            ("forwarded", "for=6.6.6.6;proto=https"), ("x-forwarded-for", "192.0.2.1"),
        ]
        let first = client(both[0], both[1], field: .forwarded)
        #expect(first.peer == "6.6.6.6:0" && first.ignored == "X-Forwarded-For: 192.0.2.1")
        let second = client(both[0], both[1], field: .xForwardedFor)
        #expect(second.peer == "192.0.2.1:0" && second.isSecure == nil)
        let alone = client(both[0], field: .xForwardedFor)
        #expect(alone.peer == nil && alone.ignored == "Forwarded: for=6.6.6.6;proto=https")
        #expect(client(both[1], field: .xForwardedFor).ignored == nil)
    }

    @Test("Two fields that name the same client")
    func agreement() {
        let same = client(
            ("forwarded", "for=192.0.2.1;proto=https"), ("x-forwarded-for", "192.0.2.1"))
        #expect(same.peer == "192.0.2.1:0" && same.isSecure == true)
        // Several lines are one list.
        let lines = client(("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "192.0.2.1"))
        #expect(lines.peer == "192.0.2.1:0")
    }

    @Test(
        "The scheme is the last one",
        arguments: [
            ("https", true), ("HTTPS", true), ("http", false), ("http, https", true),
            ("ftp", nil), ("", nil),
        ] as [(String, Bool?)])
    func scheme(value: String, isSecure: Bool?) {
        #expect(client(("x-forwarded-proto", value)).isSecure == isSecure)
    }

    @Test("Entries are addresses, ranges and unix")
    func entries() {
        #expect(TrustedProxies(["unix"])?.includesProcesses == true)
        for text in ["10.0.0.1/8", "10.0.0.0/33", "::/129", "10.0.0", "a", "", "10.0.0.0/", "/8"] {
            #expect(TrustedProxies([text]) == nil, "\(text)")
        }
    }
}

@Suite("The header of the PROXY protocol")
struct ProxyHeaderTests {
    private func read(_ bytes: [UInt8]) -> ProxyHeader {
        bytes.withUnsafeBytes { ProxyHeader($0) }
    }

    private func read(_ text: String) -> ProxyHeader { read(Array(text.utf8)) }

    private static let signature: [UInt8] = [13, 10, 13, 10, 0, 13, 10, 0x51, 0x55, 0x49, 0x54, 10]

    @Test("Version 1")
    func lines() throws {
        let line = "PROXY TCP4 192.0.2.1 10.0.0.1 5000 80\r\n"
        let client = try #require(IPAddress("192.0.2.1"))
        let whole = ProxyHeader.complete(length: line.utf8.count, client: client, port: 5000)
        #expect(read(line) == whole)
        #expect(read(line + "GET / HTTP/1.1\r\n") == whole)
        for count in 1..<line.utf8.count {
            #expect(read(Array(line.utf8.prefix(count))) == .incomplete)
        }
        let six = "PROXY TCP6 2001:db8::1 ::1 1 2\r\n"
        #expect(
            read(six)
                == .complete(length: six.utf8.count, client: IPAddress("2001:db8::1"), port: 1))
        #expect(read("PROXY UNKNOWN\r\n") == .complete(length: 15, client: nil, port: 0))
        #expect(
            read("PROXY UNKNOWN ffff::1 x y\r\n") == .complete(length: 27, client: nil, port: 0))
        for malformed in [
            "PROXY TCP4 192.0.2.1 10.0.0.1 5000\r\n", "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.1 10.0.0.1 1 2\r\n", "PROXY TCP4 192.0.2.1 10.0.0.1 65536 80\r\n",
            "PROXY TCP4  192.0.2.1 10.0.0.1 1 2\r\n", "PROXY TCP4 192.0.2.1 10.0.0.1 1 2\n",
            "PROXY UDP4 192.0.2.1 10.0.0.1 1 2\r\n", "PROXY \n",
            "PROXY UNKNOWN " + String(repeating: "x", count: 107),
        ] {
            #expect(read(malformed) == .malformed, "\(malformed)")
        }
    }

    @Test("Other first bytes are no header")
    func others() {
        for first in ["GET /", "PRI *", "PUT", "\u{16}\u{3}\u{1}", "\r\nGET", "PROXIES"] {
            #expect(read(first) == .absent, "\(first)")
        }
        #expect(read("P") == .incomplete && read("\r") == .incomplete && read([]) == .incomplete)
    }

    @Test("Version 2")
    func binary() {
        func header(_ command: UInt8, _ family: UInt8, _ rest: [UInt8]) -> [UInt8] {
            ProxyHeaderTests.signature + [0x20 | command, family]
                + [UInt8(rest.count >> 8), UInt8(rest.count & 0xff)] + rest
        }
        let four: [UInt8] = [192, 0, 2, 1, 10, 0, 0, 1, 0x13, 0x88, 0, 80]
        let whole = header(1, 0x11, four)
        let client = IPAddress("192.0.2.1")
        #expect(read(whole) == .complete(length: 28, client: client, port: 5000))
        for count in 1..<whole.count { #expect(read(Array(whole.prefix(count))) == .incomplete) }
        // Extensions are skipped.
        #expect(
            read(header(1, 0x11, four + [4, 0, 1, 7]) + [1])
                == .complete(length: 32, client: client, port: 5000))
        let six = [UInt8](repeating: 0, count: 15) + [9] + [UInt8](repeating: 0, count: 16)
        #expect(
            read(header(1, 0x21, six + [0, 1, 0, 2]))
                == .complete(length: 52, client: IPAddress("::9"), port: 1))
        // A health check of the proxy, UDP, and a Unix domain socket.
        #expect(read(header(0, 0, [])) == .complete(length: 16, client: nil, port: 0))
        #expect(read(header(1, 0x12, four)) == .complete(length: 28, client: nil, port: 0))
        #expect(
            read(header(1, 0x31, [UInt8](repeating: 1, count: 216)))
                == .complete(length: 232, client: nil, port: 0))
        #expect(read(header(1, 0x11, [1, 2])) == .malformed)
        #expect(read(header(2, 0x11, four)) == .malformed)
        #expect(read(header(1, 0x11, [UInt8](repeating: 0, count: 5000))) == .malformed)
        var version = whole
        version[12] = 0x11
        #expect(read(version) == .malformed)
    }
}
