import System
import Testing

@Suite struct SocketAddressTests {
    @Test(arguments: [
        ("192.0.2.1:1", "192.0.2.1:2", true), ("192.0.2.1:1", "192.0.2.2:1", false),
        ("[2001:db8::1]:1", "[2001:db8::ffff:2]:1", true),
        ("[2001:db8:0:1::1]:1", "[2001:db8:0:2::1]:1", false),
        ("[::ffff:192.0.2.1]:1", "192.0.2.1:1", true),
        ("[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.2]:1", false),
        ("[::1]:1", "0.0.0.0:1", false),
    ])
    func anAddressCountsAsItsNetwork(first: String, second: String, isSame: Bool) throws {
        let first = try #require(SocketAddress(first))
        let second = try #require(SocketAddress(second))
        #expect((first.ip?.network == second.ip?.network) == isSame)
    }

    @Test(arguments: [
        ("10.0.0.0/8", "10.255.0.1", true), ("10.0.0.0/8", "11.0.0.0", false),
        ("10.0.0.0/8", "::ffff:10.1.1.1", true), ("192.0.2.1", "192.0.2.1", true),
        ("192.0.2.1", "192.0.2.2", false), ("0.0.0.0/0", "1.2.3.4", true),
        ("0.0.0.0/0", "::1", false), ("::/0", "2001:db8::1", true), ("::/0", "1.2.3.4", false),
        ("2001:db8::/33", "2001:db8:7fff::1", true), ("2001:db8::/33", "2001:db8:8000::", false),
    ])
    func aRangeContainsAddresses(range: String, address: String, isInside: Bool) throws {
        let range = try #require(AddressRange(range))
        #expect(range.contains(try #require(IPAddress(address))) == isInside)
    }

    @Test(arguments: ["127.0.0.1:80", "[2001:db8::1]:443", "[::1]:0", "unix:/run/a.sock"])
    func anAddressIsPrintedAsItIsRead(text: String) throws {
        #expect(try #require(SocketAddress(text)).description == text)
    }

    @Test(arguments: [
        "unix:", "unix:run/a", "unix:/" + String(repeating: "a", count: 107), "127.0.0.1", ":80",
    ])
    func otherTextIsNoAddress(text: String) { #expect(SocketAddress(text) == nil) }

    @Test(arguments: [
        ("127.9.9.9:1", true), ("[::1]:1", true), ("unix:/a", true), ("128.0.0.1:1", false),
        ("[::ffff:127.0.0.1]:1", true), ("[::2]:1", false),
    ])
    func loopback(text: String, isLoopback: Bool) throws {
        #expect(try #require(SocketAddress(text)).isLoopback == isLoopback)
    }
}
