import Configuration
import System
import Wire

extension ServiceManager {
    /// The inherited sockets, by the address of the listener that uses each.
    /// - Throws: An error that names a socket without a listener: the manager would hold its connections forever.
    func sockets(for configuration: Configuration) throws -> [BytewiseString: Int32] {
        let wanted = try [
            configuration.http, configuration.https.address, configuration.operatorAddress, configuration.s3.http,
            configuration.s3.https, configuration.console.address,
        ].compactMap { try resolved($0)?.description }
        var found: [BytewiseString: Int32] = [:]
        for socket in sockets {
            let address = socket.address.description
            guard wanted.contains(where: { BytewiseString.areEqual($0, address) }) else {
                throw StraySocket(address: address)
            }
            found[address] = socket.descriptor
        }
        return found
    }
}

extension Service {
    /// Reports to the service manager's watchdog in half of its interval, after each loop has run.
    func startWatchdog(_ loops: [EventLoop]) {
        guard let interval = manager.watchdogInterval else { return }
        repeated(every: max(1_000_000, interval / 2), on: loop) { [manager] in
            Service.pass(through: loops[...]) { manager.alive() }
        }
    }

    /// Runs `job` on the last loop, after each other one has run. A loop that is stuck stops it.
    private static func pass(
        through loops: ArraySlice<EventLoop>, _ job: @escaping @Sendable () -> Void
    ) {
        guard let first = loops.first else { return job() }
        first.execute { pass(through: loops.dropFirst(), job) }
    }
}

/// The service manager has bound an address that no listener has.
private struct StraySocket: Error, CustomStringConvertible {
    let address: String
    var description: String {
        "the inherited socket \(address) is the address of no listener (listen.http, listen.https, listen.operator, listen.s3)"
    }
}
