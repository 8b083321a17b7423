import HTTPServer
import System
import Wire

/// Receives an upload whose body has a description before the object's bytes. The description is read first; the bytes
/// wait in the client's window until they are received.
///
/// Safety: confined to the request's loop; the task that receives is pinned to it.
final class MultipartBody: UploadBody, @unchecked Sendable {
    private let exchange: Exchange
    private let sink: MultipartSink
    private let limit: UInt64
    /// The maximum size of the other parts of a body in bytes: description, fields, boundaries and epilogue.
    private static let overhead: UInt64 = 1 << 20
    private var receiving: Task<Result<UInt64, BodyError>, Never>?

    /// - Parameter limit: The maximum size of the object in bytes.
    init(_ boundary: MultipartBoundary, _ context: RequestContext, limit: UInt64) {
        exchange = context.exchange
        self.limit = limit
        sink = MultipartSink(boundary, exchange.loop, limit: limit)
    }

    /// The first part, and the content type of the second.
    /// - Throws: ``Problem`` with `invalid-argument` if the body is malformed up to there.
    func description() async throws(Problem) -> (json: [UInt8], type: String) {
        guard exchange.head.hasBody else { throw MultipartSink.malformed("there is no body") }
        let (sum, isOverflow) = limit.addingReportingOverflow(MultipartBody.overhead)
        let most = isOverflow ? .max : sum
        let receiving = Task(executorPreference: exchange.loop) { [exchange, sink] in
            let result: Result<UInt64, BodyError>
            do throws(BodyError) {
                result = .success(try await exchange.receive(into: sink, limit: most))
            } catch {
                result = .failure(error)
            }
            sink.bodyEnded()
            return result
        }
        self.receiving = receiving
        await sink.described()
        if let type = sink.parser.contentType { return (sink.parser.description, type) }
        switch await receiving.value {
        case .success: throw MultipartSink.malformed("the body ends before its second part")
        case .failure(.sink(let problem as Problem)): throw problem
        case .failure(let error): throw Problem(error, limit: limit)
        }
    }

    func stop() {
        if !sink.isEnded {
            exchange.stopReceiving(MultipartSink.malformed("the upload was refused"))
        }
    }

    func receive(into content: any ByteSink, limit: UInt64) async throws(BodyError) {
        guard let receiving else { throw .clientGone }
        sink.start(content)
        _ = try await receiving.value.get()
        do throws(MultipartParser.Malformed) {
            try sink.parser.end()
        } catch {
            throw .sink(MultipartSink.malformed(error.reason))
        }
    }
}

/// Parses a body and forwards its content. Confined to its loop.
///
/// Safety: as ``MultipartBody``.
private final class MultipartSink: ByteSink, @unchecked Sendable {
    private(set) var parser: MultipartParser
    private let loop: EventLoop
    private let limit: UInt64
    private var count: UInt64 = 0
    private var content: (any ByteSink)?
    private var resume: (() -> Void)?
    private var waiter: CheckedContinuation<Void, Never>?
    /// Whether nothing more of the body will arrive.
    private(set) var isEnded = false

    init(_ boundary: MultipartBoundary, _ loop: EventLoop, limit: UInt64) {
        parser = MultipartParser(boundary, maximumDescription: UploadDescription.maximumBytes)
        self.loop = loop
        self.limit = limit
    }

    static func malformed(_ reason: String) -> Problem {
        Problem(.invalidArgument, "The multipart body is malformed: \(reason).")
    }

    // MARK: The description

    /// Waits until the description has arrived or the body has ended.
    func described() async {
        if isEnded || parser.contentType != nil { return }
        await withCheckedContinuation { waiter = $0 }
    }

    func bodyEnded() {
        isEnded = true
        waiter.take()?.resume()
    }

    // MARK: Bytes

    /// Begins to forward the content.
    func start(_ content: any ByteSink) {
        self.content = content
        loop.execute { self.resume.take()?() }
    }

    func write(_ bytes: RawSpan) throws -> Int {
        do {
            let taken = try parser.write(bytes) { part in
                guard let content else { return 0 }
                guard UInt64(part.byteCount) <= limit - count else { throw BodyError.tooLarge }
                let taken = try content.write(part)
                count += UInt64(taken)
                return taken
            }
            if parser.contentType != nil { waiter.take()?.resume() }
            return taken
        } catch let error as MultipartParser.Malformed {
            throw MultipartSink.malformed(error.reason)
        } catch BodyError.tooLarge {
            throw Problem(BodyError.tooLarge, limit: limit)
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
