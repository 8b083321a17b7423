import CSolver
import Glibc
import Wire

/// The solver can't be used.
package enum SolverError: Error, CustomStringConvertible {
    /// Z3 is not installed, for this reason.
    case missing(String)
    /// The process could not be started, for this reason.
    case failed(String)

    package var description: String {
        switch self {
        case .missing(let reason): "Z3, which proves this, is not installed (apt-get install libz3-4): \(reason)"
        case .failed(let reason): "The solver could not be started: \(reason)"
        }
    }
}

/// Z3, in a process of its own with limits on memory and time. The process is started again after it was ended.
package final class Solver {
    /// The memory that the process may use, in bytes.
    private static let memory: UInt64 = 1 << 30
    /// The processor time of one process, in seconds.
    private static let processorTime: UInt32 = 600
    /// The time that the process gets beyond the limit that Z3 itself keeps, in milliseconds.
    private static let grace: Int32 = 500

    /// The response to one script.
    enum Response {
        case text(String)
        /// The process ended: it needed too much memory, or it exceeded the time limit.
        case ended(String)
    }

    /// The largest number of responses that are kept.
    private static let maximumKept = 2_000

    /// The responses to scripts that were decided. Methods and lengths of paths often have the same formula.
    private var kept: [BytewiseString: String] = [:]
    private(set) var process: (id: pid_t, socket: Int32)?

    /// Starts the process.
    package init() throws(SolverError) { try start() }

    deinit { stop() }

    private func start() throws(SolverError) {
        var socket: Int32 = -1
        let id = sluice_solver_start(&socket, Self.memory, Self.processorTime)
        guard id > 0 else { throw .failed(String(cString: strerror(errno))) }
        process = (id, socket)
        guard let greeting = receive(deadline: Self.now() + 10_000) else {
            stop()
            throw .failed("no response")
        }
        guard greeting.isEmpty else {
            stop()
            throw .missing(greeting)
        }
    }

    private func stop() {
        guard let (id, socket) = process else { return }
        process = nil
        close(socket)
        kill(id, SIGKILL)
        var status: Int32 = 0
        while waitpid(id, &status, 0) < 0, errno == EINTR {}
    }

    /// Evaluates a script of SMT-LIB 2. `milliseconds` limits the time of each check.
    func evaluate(_ script: String, milliseconds: Int) -> Response {
        let key = BytewiseString(script)
        if let known = kept[key] { return .text(known) }
        let header = "(set-option :timeout \(milliseconds))\n(set-option :produce-models true)\n"
        let response = evaluate(whole: header + script, milliseconds: milliseconds)
        if case .text(let text) = response, text.utf8.starts(with: "sat".utf8) || text.utf8.starts(with: "unsat".utf8) {
            if kept.count >= Self.maximumKept { kept = [:] }
            kept[key] = text
        }
        return response
    }

    private func evaluate(whole script: String, milliseconds: Int) -> Response {
        if process == nil {
            do { try start() } catch { return .ended("\(error)") }
        }
        let deadline = Self.now() + Int64(milliseconds) + Int64(Self.grace)
        if send(Array(script.utf8), deadline), let response = receive(deadline: deadline) { return .text(response) }
        let isLate = Self.now() >= deadline
        stop()
        return .ended(isLate ? "the time limit" : "the memory limit of the solver")
    }

    // MARK: Messages

    static func now() -> Int64 {
        var time = timespec()
        clock_gettime(CLOCK_MONOTONIC, &time)
        return Int64(time.tv_sec) * 1000 + Int64(time.tv_nsec) / 1_000_000
    }

    /// Waits until the socket is ready for one of these events. false at the deadline.
    private func wait(for events: Int32, on socket: Int32, _ deadline: Int64) -> Bool {
        while true {
            let left = deadline - Self.now()
            guard left > 0 else { return false }
            var descriptor = pollfd(fd: socket, events: Int16(events), revents: 0)
            if poll(&descriptor, 1, Int32(clamping: left)) > 0 { return true }
        }
    }

    private func send(_ bytes: [UInt8], _ deadline: Int64) -> Bool {
        guard let socket = process?.socket else { return false }
        let length = withUnsafeBytes(of: UInt32(bytes.count)) { Array($0) }
        let message = length + bytes
        var sent = 0
        while sent < message.count {
            guard wait(for: POLLOUT, on: socket, deadline) else { return false }
            let count = message[sent...].withUnsafeBytes {
                Glibc.send(socket, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL | MSG_DONTWAIT))
            }
            if count < 0, errno == EINTR || errno == EAGAIN { continue }
            guard count > 0 else { return false }
            sent += count
        }
        return true
    }

    private func receive(deadline: Int64) -> String? {
        guard let header = receive(4, deadline) else { return nil }
        let length = header.withUnsafeBytes { $0.loadUnaligned(as: UInt32.self) }
        guard let bytes = receive(Int(length), deadline) else { return nil }
        return String(decoding: bytes, as: UTF8.self)
    }

    private func receive(_ count: Int, _ deadline: Int64) -> [UInt8]? {
        guard let socket = process?.socket else { return nil }
        var bytes: [UInt8] = []
        while bytes.count < count {
            guard wait(for: POLLIN, on: socket, deadline) else { return nil }
            var part = [UInt8](repeating: 0, count: min(count - bytes.count, 65_536))
            let received = recv(socket, &part, part.count, 0)
            if received < 0, errno == EINTR { continue }
            guard received > 0 else { return nil }
            bytes += part.prefix(received)
        }
        return bytes
    }
}
