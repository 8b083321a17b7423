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
        #expect((first.network == second.network) == isSame)
    }
}
