import Buckets
import Foundation
import Synchronization
import System
import Wire

@testable import Gateway
@testable import HTTPServer

/// Asks a gateway as the server does, on a loop's thread, without a connection.
struct Client {
    let gateway: Gateway
    let records = Records()

    /// - Parameter dialects: Those that are served, instead of the gateway's.
    init(
        _ buckets: [Bucket], cors: CORSPolicy? = nil, callers: Callers = .unknown,
        dialects: ((Callers) -> [any Dialect])? = nil
    ) {
        gateway = Gateway(
            buckets: buckets, cors: cors, callers: callers,
            dialects: dialects?(callers) ?? Gateway.dialects(callers, buckets),
            observers: [records], wallClock: { 1_767_225_600 })
    }

    /// The bucket `photos`.
    static func bucket(_ driver: MemoryBucket, policy: any Policy = OpenPolicy()) -> Bucket {
        Bucket(name: BucketName("photos")!, driver: driver, policy: policy)
    }

    init(_ driver: MemoryBucket, policy: any Policy = OpenPolicy(), cors: CORSPolicy? = nil) {
        self.init([Client.bucket(driver, policy: policy)], cors: cors)
    }

    /// The records of all requests, in order.
    final class Records: RequestObserver {
        private let all = Lock<[RequestRecord]>([])
        func finished(_ record: RequestRecord) { all.withLock { $0.append(record) } }
        var last: RequestRecord { all.withLock { $0.last! } }
        var count: Int { all.withLock { $0.count } }
    }

    struct Reply: Sendable {
        var status = 0
        var fields = HeaderFields()
        var body: [UInt8] = []
        /// Whether the client was told to send its body.
        var interim: [ResponseHead] = []
        var wasContinued = false

        var text: String { String(decoding: body, as: UTF8.self) }
        var json: [String: any Sendable] {
            (try? JSONSerialization.jsonObject(with: Data(body))) as? [String: any Sendable] ?? [:]
        }
        var code: String? { json["code"] as? String }
        var names: [String] { strings("items", "fullPath") }
        var prefixes: [String] { json["prefixes"] as? [String] ?? [] }
        private func strings(_ list: String, _ key: String) -> [String] {
            (json[list] as? [[String: any Sendable]] ?? []).compactMap { $0[key] as? String }
        }
    }

    /// What goes wrong with a request.
    enum Trouble: Sendable {
        case none
        /// The client was gone before anything was done.
        case gone
        /// The body ends with this.
        case body(BodyError)
        /// The client goes away while the answer is sent.
        case goneWhileSending
    }

    private static let loop: EventLoop = {
        let loop = try! EventLoop()
        Thread.detachNewThread { loop.run() }
        return loop
    }()

    /// - Parameter declared: The length that is declared; nil for a body of unknown length.
    func send(
        _ method: String, _ target: String, _ fields: [(String, String)] = [],
        body: [UInt8]? = nil, declared: UInt64?? = nil, _ trouble: Trouble = .none
    ) async -> Reply {
        await begin(method, target, fields, body: body, declared: declared, trouble).reply
    }

    /// Begins a request. It is handled until it waits for something.
    func begin(
        _ method: String, _ target: String, _ fields: [(String, String)] = [],
        body: [UInt8]? = nil, declared: UInt64?? = nil, _ trouble: Trouble = .none
    ) async -> Pending {
        var header = HeaderFields()
        for (name, value) in fields { header.append(name: name, value) }
        let head = RequestHead(
            method: method, target: target, authority: "localhost", fields: header,
            contentLength: declared ?? body.map { UInt64($0.count) }, hasBody: body != nil,
            expectsContinue: body != nil)
        let gateway = gateway
        return await Task(executorPreference: Client.loop) {
            let stream = FakeStream(body ?? [], trouble)
            let exchange = Exchange(
                head: head, version: .http2, isSecure: false, peer: "127.0.0.1:1",
                loop: Client.loop, stream: stream)
            let task = Task.immediate(executorPreference: Client.loop) {
                await gateway.respond(exchange)
                precondition(stream.answers == 1, "a request is answered once")
                return stream.reply
            }
            return Pending(task: task, stream: stream)
        }.value
    }

    /// A request in progress.
    ///
    /// Safety: the stream is used on the loop.
    struct Pending: @unchecked Sendable {
        fileprivate let task: Task<Reply, Never>
        fileprivate let stream: FakeStream

        var reply: Reply { get async { await task.value } }

        /// The client goes away.
        func leave() async {
            await Task(executorPreference: Client.loop) {
                stream.isGone = true
                task.cancel()
            }.value
        }
    }

    func send(
        _ method: String, _ target: String, _ fields: [(String, String)] = [], text: String
    ) async -> Reply {
        await send(method, target, fields, body: Array(text.utf8))
    }
}

/// Safety: used on the loop.
private final class FakeStream: ExchangeStream, @unchecked Sendable {
    var endsWithInput = false
    var hasInputEnded: Bool { false }
    var reply = Client.Reply()
    var answers = 0
    fileprivate(set) var isGone = false
    private let body: [UInt8]
    private let trouble: Client.Trouble

    init(_ body: [UInt8], _ trouble: Client.Trouble) {
        self.body = body
        self.trouble = trouble
        if case .gone = trouble { isGone = true }
    }

    func requestCreated() {}

    func requestDestroyed() {}

    func sendContinue() { reply.wasContinued = true }

    func sendInterim(_ head: ResponseHead) { reply.interim.append(head) }

    func stopReceiving(_ error: any Error) {}

    func receive(
        into sink: any ByteSink, limit: UInt64,
        _ completion: @escaping (Result<UInt64, BodyError>) -> Void
    ) {
        var taken = 0
        while taken < body.count {
            if taken >= limit { return completion(.failure(.tooLarge)) }
            let chunk = Array(body[taken..<min(body.count, taken + 5)])
            do {
                taken += try sink.write(chunk.span.bytes)
            } catch {
                return completion(.failure(.sink(error)))
            }
        }
        if case .body(let error) = trouble {
            if case .clientGone = error { isGone = true }
            return completion(.failure(error))
        }
        completion(.success(UInt64(taken)))
    }

    func respond(
        _ head: ResponseHead, _ body: ResponseBody,
        _ completion: @escaping (ResponseOutcome) -> Void
    ) {
        answers += 1
        reply.status = head.status
        reply.fields = head.fields
        if let id = head.requestID { reply.fields.append("x-request-id", id) }
        var end: ResponseOutcome.End = isGone ? .peerGone : .complete
        switch body {
        case .none: break
        case .bytes(let bytes): reply.body = bytes
        case .source(let source, let length):
            if !isGone { end = pull(source, length) }
            source.close()
        case .stream(let source):
            if !isGone, case .sourceFailed(let error) = pull(source, .max), !(error is SourceEndedEarly) {
                end = .sourceFailed(error)
            }
            source.close()
        }
        completion(ResponseOutcome(bodyBytes: UInt64(reply.body.count), end: end))
    }

    private func pull(_ source: any ByteSource, _ length: UInt64) -> ResponseOutcome.End {
        var buffer = [UInt8](repeating: 0, count: 16)
        while reply.body.count < length {
            if case .goneWhileSending = trouble {
                isGone = true
                return .peerGone
            }
            var span = buffer.mutableSpan
            var raw = span.mutableBytes
            do {
                guard case .bytes(let count) = try source.read(into: &raw) else {
                    return .sourceFailed(SourceEndedEarly())
                }
                reply.body.append(contentsOf: buffer[..<count])
            } catch {
                return .sourceFailed(error)
            }
        }
        return .complete
    }
}
