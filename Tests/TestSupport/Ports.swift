import Glibc
import System

private let givenPorts = Lock<Set<UInt16>>([])

/// Ports without a listener, each returned once. They are below the kernel's range for client ports, so that no client
/// takes one before the server is up.
public func freePorts(_ count: Int) -> [UInt16] {
    var ports: [UInt16] = []
    while ports.count < count {
        let port = UInt16.random(in: 10_000..<32_000)
        guard givenPorts.withLock({ $0.insert(port).inserted }) else { continue }
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        defer { close(descriptor) }
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = port.bigEndian
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        let isFree = withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                bind(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in>.size)) == 0
            }
        }
        if isFree { ports.append(port) }
    }
    return ports
}

/// The descriptor of this process's TCP connection to this port; nil if there is none.
public func connection(to port: UInt16) -> Int32? {
    entries("/proc/self/fd").compactMap { Int32($0) }.first { descriptor in
        var address = sockaddr_in()
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        let result = withUnsafeMutablePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                getpeername(descriptor, $0, &length)
            }
        }
        return result == 0 && address.sin_family == AF_INET && address.sin_port == port.bigEndian
    }
}

/// The number of bytes from which the kernel reports a socket (socket(7), `SO_RCVLOWAT`); 0 if it is none.
public func lowWaterMark(_ descriptor: Int32) -> Int {
    var (mark, length) = (Int32(0), socklen_t(4))
    getsockopt(descriptor, SOL_SOCKET, SO_RCVLOWAT, &mark, &length)
    return Int(mark)
}
