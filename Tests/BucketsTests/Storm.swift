import Glibc
import System
import TestSupport
import Testing

/// Runs the storm program, kills it after it printed `ready` and `lines` more lines, and returns all that it printed.
///
/// The reads block, so they have a thread of their own: the test threads are few, and other tests wait for them.
func killedStorm(_ arguments: [String], after lines: Int) async throws -> [String] {
    let child = try Child([try stormProgram()] + arguments)
    let (printed, status) = await withCheckedContinuation { continuation in
        _ = startThread { continuation.resume(returning: child.read(killingAfter: lines)) }
    }
    #expect(status == SIGKILL, "the storm ended by itself")
    return printed
}

/// The storm program is next to the test executable.
private func stormProgram() throws -> String {
    var buffer = [CChar](repeating: 0, count: 4096)
    let count = readlink("/proc/self/exe", &buffer, buffer.count - 1)
    try #require(count > 0)
    let own = String(decoding: buffer[..<count].map { UInt8(bitPattern: $0) }, as: UTF8.self)
    let beside = own[...own.lastIndex(of: "/")!] + "BucketStorm"
    try #require(access(String(beside), X_OK) == 0, "\(beside) is not built")
    return String(beside)
}

/// A child process whose standard output is read line by line.
private struct Child: Sendable {
    private let identifier: pid_t
    private let output: Int32

    init(_ arguments: [String]) throws {
        var ends: [Int32] = [0, 0]
        let kind = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue)
        try #require(socketpair(AF_UNIX, kind, 0, &ends) == 0)
        defer { close(ends[1]) }
        identifier = try spawn(arguments, output: ends[1])
        output = ends[0]
    }

    /// Reads until it has seen `ready` and `lines` lines, kills the process, and reads the rest.
    /// - Returns: The complete lines, and the status of the process.
    func read(killingAfter lines: Int) -> ([String], Int32) {
        var text: [UInt8] = []
        var buffer = [UInt8](repeating: 0, count: 65_536)
        var isKilled = false
        while true {
            let count = Glibc.read(output, &buffer, buffer.count)
            guard count > 0 else { break }
            text += buffer[..<count]
            guard !isKilled else { continue }
            let complete = String(decoding: text, as: UTF8.self).split(separator: "\n")
            if complete.contains("ready"), complete.count >= lines {
                kill(identifier, SIGKILL)
                isKilled = true
            }
        }
        close(output)
        var status: Int32 = 0
        waitpid(identifier, &status, 0)
        let end = text.lastIndex(of: UInt8(ascii: "\n")).map { $0 + 1 } ?? 0
        let printed = String(decoding: text[..<end], as: UTF8.self).split(separator: "\n")
        return (printed.map(String.init), status)
    }
}
