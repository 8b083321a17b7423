/// An append that its session holds until it has ended, even if the owner has dropped its handle.
protocol HeldAppend: SessionAppend {
    /// Ends the append after the owner has dropped its handle. Called on any loop or thread.
    func drop()
}

final class AppendHandle: SessionAppend {
    private let append: any HeldAppend

    init(_ append: any HeldAppend) { self.append = append }

    deinit { append.drop() }

    func write(_ bytes: RawSpan) throws -> Int { try append.write(bytes) }
    func whenWritable(_ resume: @escaping () -> Void) { append.whenWritable(resume) }
    func whenStopped(_ body: @escaping () -> Void) { append.whenStopped(body) }
    func whenDurable(_ body: @escaping (UInt64) -> Void) { append.whenDurable(body) }
    func end() async throws(SessionError) -> UInt64 { try await append.end() }
    func discard() async { await append.discard() }
}
