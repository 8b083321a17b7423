import HTTPServer
import System

/// Parses a body that has a preface before the object's bytes.
protocol PrefacedParser: SendableMetatype {
    /// Parses the next bytes.
    /// - Parameter content: Takes a prefix of the content's next bytes and returns its length; less means: wait.
    /// - Returns: The number of bytes that were parsed: fewer than given only if not all content was taken.
    /// - Throws: If the body is malformed, or what `content` throws. No more bytes may follow.
    mutating func write(_ bytes: RawSpan, _ content: (RawSpan) throws -> Int) throws -> Int

    /// Whether the preface is complete.
    var isAtContent: Bool { get }
}

/// Receives a body whose preface is needed before its content. The preface is read first; the content waits in the
/// client's window until it is received.
///
/// Safety: confined to the request's loop; the task that receives is pinned to it.
final class PrefacedBody<Parser: PrefacedParser>: @unchecked Sendable {
    private let exchange: Exchange
    private let sink: PrefacedSink<Parser>
    private var receiving: Task<Result<UInt64, BodyError>, Never>?

    /// - Parameter problem: The problem of an error of the parser.
    init(_ parser: Parser, _ exchange: Exchange, problem: @escaping (any Error) -> any Error) {
        self.exchange = exchange
        sink = PrefacedSink(parser, exchange.loop, problem)
    }

    var parser: Parser { sink.parser }

    /// Receives the preface.
    /// - Parameter limit: The maximum size of the whole body in bytes.
    /// - Returns: nil once it is complete; otherwise how the body ended before that.
    func receivePreface(limit: UInt64) async -> Result<UInt64, BodyError>? {
        let receiving = Task(executorPreference: exchange.loop) { [exchange, sink] in
            let result: Result<UInt64, BodyError>
            do throws(BodyError) {
                result = .success(try await exchange.receive(into: sink, limit: limit))
            } catch {
                result = .failure(error)
            }
            sink.bodyEnded()
            return result
        }
        self.receiving = receiving
        await sink.prefaced()
        return sink.parser.isAtContent ? nil : await receiving.value
    }

    /// Stops receiving: the rest is not needed.
    func stop(_ problem: Problem) {
        if !sink.isEnded { exchange.stopReceiving(problem) }
    }

    /// Moves the content into `content`.
    /// - Parameters:
    ///   - limit: The maximum size of the content in bytes.
    ///   - tooLarge: Thrown if it is larger.
    /// - Returns: Its size in bytes.
    func receive(into content: any ByteSink, limit: UInt64, tooLarge: Problem) async throws(BodyError) -> UInt64 {
        guard let receiving else { throw .clientGone }
        sink.start(content, limit: limit, tooLarge)
        _ = try await receiving.value.get()
        return sink.count
    }
}

/// Parses a body and forwards its content. Confined to its loop.
///
/// Safety: as ``PrefacedBody``.
private final class PrefacedSink<Parser: PrefacedParser>: ByteSink, @unchecked Sendable {
    private(set) var parser: Parser
    private let loop: EventLoop
    private let problem: (any Error) -> any Error
    /// The number of bytes of content.
    private(set) var count: UInt64 = 0
    private var limit: UInt64 = 0
    private var tooLarge: Problem?
    private var content: (any ByteSink)?
    private var resume: (() -> Void)?
    private var waiter: CheckedContinuation<Void, Never>?
    /// Whether nothing more of the body will arrive.
    private(set) var isEnded = false

    init(_ parser: Parser, _ loop: EventLoop, _ problem: @escaping (any Error) -> any Error) {
        self.parser = parser
        self.loop = loop
        self.problem = problem
    }

    // MARK: The preface

    /// Waits until the preface has arrived or the body has ended.
    func prefaced() async {
        if isEnded || parser.isAtContent { return }
        await withCheckedContinuation { waiter = $0 }
    }

    func bodyEnded() {
        isEnded = true
        waiter.take()?.resume()
    }

    // MARK: Bytes

    /// Begins to forward the content.
    func start(_ content: any ByteSink, limit: UInt64, _ tooLarge: Problem) {
        self.content = content
        self.limit = limit
        self.tooLarge = tooLarge
        loop.execute { self.resume.take()?() }
    }

    func write(_ bytes: RawSpan) throws -> Int {
        do {
            let taken = try parser.write(bytes) { part in
                guard let content else { return 0 }
                if UInt64(part.byteCount) > limit - count, let tooLarge { throw tooLarge }
                let taken = try content.write(part)
                count += UInt64(taken)
                return taken
            }
            if parser.isAtContent { waiter.take()?.resume() }
            return taken
        } catch {
            throw problem(error)
        }
    }

    func whenWritable(_ resume: @escaping () -> Void) {
        if let content {
            content.whenWritable(resume)
        } else {
            self.resume = resume
        }
    }
}
