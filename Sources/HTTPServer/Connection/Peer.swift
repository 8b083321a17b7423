import System

/// The other end of an accepted connection.
struct Peer {
    /// `host:port`, or `unix:USER:PROCESS` with the IDs of a process on this host.
    let description: String
    /// The key under which the connection is counted.
    let network: NetworkPrefix
    /// Whether it is a trusted proxy, which names its clients.
    let isProxy: Bool

    init(_ socket: Int32, _ address: SocketAddress, _ proxies: TrustedProxies) {
        if let ip = address.ip {
            self.init(ip, port: address.port, proxies)
        } else {
            let (user, process) = Socket.peerProcess(socket) ?? (.max, 0)
            self.init(
                description: "\(SocketAddress.unixPrefix)\(user):\(process)",
                network: .user(user), isProxy: proxies.includesProcesses)
        }
    }

    init(_ ip: IPAddress, port: UInt16, _ proxies: TrustedProxies) {
        self.init(description: ip.with(port: port), network: ip.network, isProxy: proxies.contains(ip))
    }

    private init(description: String, network: NetworkPrefix, isProxy: Bool) {
        self.description = description
        self.network = network
        self.isProxy = isProxy
    }
}
