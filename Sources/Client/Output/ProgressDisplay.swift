import Dispatch
import Foundation
import Synchronization
import Wire

/// Shows transfers on a terminal: a line for each, and one for all of them. On a dumb terminal it prints only completed transfers.
final class ProgressDisplay: Sendable {
    private struct State {
        var running: [Int: TransferProgress] = [:]
        var next = 0
        /// Lines that stay.
        var finished: [String] = []
        var linesShown = 0
        var count = 0
        var files = 0
        var done: Int64 = 0
        var before: Int64 = 0
        var isEnded = false
        /// The total of all transfers, if it is known.
        var expected: (files: Int, bytes: Int64)?
    }
    private let state = Mutex(State())
    private let isDumb: Bool
    private let began = ContinuousClock.now
    // Safety: set once in the initializer, and never changed.
    nonisolated(unsafe) private let timer: any DispatchSourceTimer

    init() {
        let terminal = Gateways.variable("TERM")
        isDumb = terminal == nil || terminal == "dumb"
        timer = DispatchSource.makeTimerSource(queue: DispatchQueue(label: "sluice.progress"))
        timer.schedule(deadline: .now() + 0.1, repeating: 0.1)
        timer.setEventHandler { [weak self] in self?.show() }
        timer.resume()
    }

    /// Whether standard output and standard error are terminals.
    static var isWanted: Bool { isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1 }

    /// Everything that will be transferred.
    func expect(files: Int, bytes: Int64) {
        state.withLock { state in
            let before = state.expected ?? (0, 0)
            state.expected = (before.files + files, before.bytes + bytes)
        }
    }

    /// - Returns: A closure that ends it.
    func begin(_ progress: TransferProgress) -> Int {
        state.withLock { state in
            state.next += 1
            state.count += 1
            state.running[state.next] = progress
            return state.next
        }
    }

    /// - Parameter isDone: Whether it has succeeded; otherwise an error is printed elsewhere.
    func end(_ handle: Int, isDone: Bool) {
        let value: TransferProgress.Value? = state.withLock { state in
            guard let value = state.running.removeValue(forKey: handle)?.value else { return nil }
            state.done += value.done
            state.before += value.before
            if isDone { state.files += 1 }
            return value
        }
        guard isDone, let value else { return }
        let seconds = value.began.duration(to: .now).components
        let line = ProgressLine(
            name: value.name, text: Text.size(value.done), rate: value.rate,
            time: Double(seconds.seconds) + Double(seconds.attoseconds) / 1e18, fraction: nil)
        let text = line.text(Self.columns)
        state.withLock { $0.finished.append(text) }
        if isDumb { show() }
    }

    /// A line that stays.
    func print(_ line: String) {
        state.withLock { $0.finished.append(line) }
        show()
    }

    /// Shows the end, and nothing after it.
    func end() {
        timer.cancel()
        show(isLast: true)
    }

    private func show(isLast: Bool = false) {
        if Interruption.isInterrupted { return }
        // Inside the lock: lines of two threads must not mix.
        state.withLock { state in
            if state.isEnded { return }
            state.isEnded = isLast
            var text = ""
            if state.linesShown > 0 { text += "\u{1b}[\(state.linesShown)A\r\u{1b}[J" }
            for line in state.finished { text += line + "\n" }
            state.finished = []
            let lines = isDumb && !isLast ? [] : live(state, isLast)
            for line in lines { text += line + "\n" }
            state.linesShown = isDumb ? 0 : lines.count
            if !text.isEmpty { Output.write(text, STDERR_FILENO) }
        }
    }

    /// A line for each running transfer, and one for all of them.
    private func live(_ state: borrowing State, _ isLast: Bool) -> [String] {
        let columns = Self.columns
        let values = state.running.sorted { $0.key < $1.key }.map(\.value.value)
        var lines = isLast ? [] : values.prefix(Self.rows - 2).map { ProgressLine($0).text(columns) }
        if state.count > 1 || (state.expected?.files ?? 0) > 1 {
            let done = state.done + values.reduce(0) { $0 + $1.done }
            let before = state.before + values.reduce(0) { $0 + $1.before }
            let time = began.duration(to: .now).components
            let seconds = Double(time.seconds) + Double(time.attoseconds) / 1e18
            let rate = seconds > 0.01 ? Double(done - before) / seconds : 0
            let files = state.expected.map { "\(state.files)/\($0.files)" } ?? "\(state.files)"
            let size = state.expected.map(\.bytes).flatMap { $0 > 0 ? $0 : nil }
            lines.append(
                ProgressLine(
                    name: "Total \(files)",
                    text: size.map { Text.part(done, of: $0) } ?? Text.size(done), rate: rate,
                    time: size.map { isLast ? seconds : Double($0 - done) / rate } ?? seconds,
                    fraction: size.map { Double(done) / Double($0) }
                ).text(columns))
        }
        return lines
    }

    private static var size: winsize {
        var size = winsize()
        _ = ioctl(STDERR_FILENO, UInt(TIOCGWINSZ), &size)
        return size
    }
    /// One column less than there are: a line that fills the last one may wrap.
    private static var columns: Int {
        let columns = Int(size.ws_col)
        return (columns == 0 ? 80 : max(20, columns)) - 1
    }
    private static var rows: Int {
        let rows = Int(size.ws_row)
        return rows == 0 ? 24 : max(4, rows)
    }
}

/// One line of progress.
private struct ProgressLine {
    let name: String
    /// Bytes.
    let text: String
    /// Bytes per second.
    let rate: Double
    /// Seconds that are left, or that it has taken.
    let time: Double
    /// From 0 to 1; nil if it is over, or the size is not known.
    let fraction: Double?

    init(name: String, text: String, rate: Double, time: Double, fraction: Double?) {
        (self.name, self.text, self.rate, self.time) = (name, text, rate, time)
        self.fraction = fraction
    }

    init(_ value: TransferProgress.Value) {
        name = value.name
        rate = value.rate
        guard let size = value.size else {
            text = Text.size(value.done)
            let spent = value.began.duration(to: .now).components
            time = Double(spent.seconds)
            fraction = nil
            return
        }
        text = Text.part(value.done, of: size)
        time = rate > 0 ? Double(size - value.done) / rate : .infinity
        fraction = size > 0 ? Double(value.done) / Double(size) : 1
    }

    /// The line for a terminal of this width. Without enough space it leaves out the bar first, then the time, then the rate.
    func text(_ columns: Int) -> String {
        var right = [
            " \(pad(text, 13))", " \(pad(Text.rate(rate), 12))", " \(pad(Text.duration(time), 6))",
        ]
        if let bar { right.insert(" \(bar)", at: 0) }
        func left() -> Int { columns - right.reduce(0) { $0 + $1.utf8.count } }
        if bar != nil, left() < ProgressLine.minimumName { right.removeFirst() }
        while right.count > 1, left() < ProgressLine.minimumName { right.removeLast() }
        return Text.fit(name, max(0, left())) + right.joined()
    }

    /// Columns that a name has if there is space for them.
    private static let minimumName = 12

    private var bar: String? {
        guard let fraction else { return nil }
        let filled = Int((max(0, min(1, fraction)) * 10).rounded(.down))
        let marks = String(repeating: "#", count: filled)
        return "[\(marks)\(String(repeating: " ", count: 10 - filled))]"
    }

    private func pad(_ text: String, _ columns: Int) -> String {
        String(repeating: " ", count: max(0, columns - text.utf8.count)) + text
    }
}
