import ArgumentParser
import ClientCommands
import Glibc

/// The program that performs the client's verbs. It is beside this one.
enum ClientExecutable {
    /// Runs it with the arguments of this process, in its place.
    /// - Throws: ``ExitCode`` if it is not there.
    static func replaceThisProcess() throws {
        var buffer = [CChar](repeating: 0, count: Int(PATH_MAX))
        let count = readlink("/proc/self/exe", &buffer, buffer.count)
        let own = buffer.prefix(max(0, count)).map { UInt8(bitPattern: $0) }
        let folder = own[...(own.lastIndex(of: UInt8(ascii: "/")) ?? own.startIndex)]
        let path = String(decoding: folder, as: UTF8.self) + ClientCommands.executable
        // Return freed chunks of transfers to the system instead of keeping them in a heap per thread (mallopt(3)).
        setenv("MALLOC_MMAP_THRESHOLD_", "262144", 0)
        setenv("MALLOC_ARENA_MAX", "2", 0)
        execv(path, CommandLine.unsafeArgv)
        let cause = String(cString: strerror(errno))
        complain("\(path): \(cause). Install \(ClientCommands.executable) beside sluice.")
        throw ExitCode(EX_UNAVAILABLE)
    }
}
