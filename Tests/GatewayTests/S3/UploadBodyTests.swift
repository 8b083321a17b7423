import Foundation
import System
import Testing
import Wire

@testable import Gateway
@testable import HTTPServer

/// The bodies of uploads, received from a request with back-pressure.
@Suite struct UploadBodyTests {
    /// Gives a body to its sink, a few bytes at a time, and waits where the sink does.
    ///
    /// Safety: used on the loop.
    private final class Stream: ExchangeStream, @unchecked Sendable {
        var endsWithInput = false
        var hasInputEnded: Bool { false }
        private let body: [UInt8]
        private let loop: EventLoop
        private let step: Int
        private let ending: BodyError?
        private var taken = 0
        private var stopped: (any Error)?
        private(set) var waits = 0

        init(_ body: [UInt8], _ loop: EventLoop, step: Int, ending: BodyError?) {
            self.body = body
            self.loop = loop
            self.step = step
            self.ending = ending
        }

        let isGone = false
        func requestCreated() {}
        func requestDestroyed() {}
        func sendContinue() {}
        func sendInterim(_ head: ResponseHead) {}
        func stopReceiving(_ error: any Error) { stopped = error }
        func respond(
            _ head: ResponseHead, _ body: ResponseBody, _ completion: @escaping (ResponseOutcome) -> Void
        ) {}

        func receive(
            into sink: any ByteSink, limit: UInt64, _ completion: @escaping (Result<UInt64, BodyError>) -> Void
        ) {
            while taken < body.count {
                if let stopped { return completion(.failure(.sink(stopped))) }
                if taken >= limit { return completion(.failure(.tooLarge)) }
                let part = Array(body[taken..<min(body.count, taken + step)])
                do {
                    let count = try sink.write(part.span.bytes)
                    taken += count
                    if count < part.count {
                        waits += 1
                        return sink.whenWritable { self.receive(into: sink, limit: limit, completion) }
                    }
                } catch {
                    return completion(.failure(.sink(error)))
                }
            }
            if let ending { return completion(.failure(ending)) }
            completion(.success(UInt64(taken)))
        }
    }

    /// Collects bytes, at most three at a time, and then waits.
    ///
    /// Safety: used on the loop.
    private final class Collector: ByteSink, @unchecked Sendable {
        private(set) var bytes: [UInt8] = []
        private let loop: EventLoop
        private var resume: (() -> Void)?
        init(_ loop: EventLoop) { self.loop = loop }

        func write(_ span: RawSpan) -> Int {
            let count = min(3, span.byteCount)
            span.extracting(0..<count).withUnsafeBytes { bytes += $0 }
            return count
        }
        func whenWritable(_ resume: @escaping () -> Void) {
            self.resume = resume
            loop.execute { self.resume.take()?() }
        }
    }

    private static let loop: EventLoop = {
        let loop = try! EventLoop()
        Thread.detachNewThread { loop.run() }
        return loop
    }()

    /// The result of receiving a body.
    private struct Outcome: Equatable, Sendable {
        var content = ""
        var code: String?
        var more: [String] = []
    }

    private static func code(_ error: BodyError) -> String {
        switch error {
        case .sink(let problem as Problem): problem.dialect.map { "\($0.code)" } ?? problem.code.rawValue
        case .sink(let error): "\(error)"
        case .tooLarge: "too large"
        case .clientGone: "client gone"
        case .timedOut: "timed out"
        }
    }

    private static func exchange(_ body: String?, _ fields: [(String, String)], _ step: Int, _ ending: BodyError?)
        -> Exchange
    {
        var header = HeaderFields()
        for (name, value) in fields { header.append(name: name, value) }
        // A body in chunks of HTTP has no length.
        let head = RequestHead(
            method: "PUT", target: "/b/k", authority: "localhost", fields: header, contentLength: nil,
            hasBody: body != nil, expectsContinue: false)
        let stream = Stream(Array((body ?? "").utf8), loop, step: step, ending: ending)
        return Exchange(head: head, version: .http1_1, isSecure: true, peer: "127.0.0.1:1", loop: loop, stream: stream)
    }

    private func chunked(
        _ body: String?, _ length: String? = "9", step: Int = 1000, limit: UInt64 = .max, ending: BodyError? = nil
    ) async -> Outcome {
        await Task(executorPreference: Self.loop) {
            var fields = [("x-amz-trailer", "x-amz-checksum-crc32")]
            if let length { fields.append(("x-amz-decoded-content-length", length)) }
            let exchange = Self.exchange(body, fields, step, ending)
            let collector = Collector(Self.loop)
            var outcome = Outcome()
            do throws(Problem) {
                let upload = try AWSChunkedBody(S3Streaming(hasTrailer: true), exchange)
                do throws(BodyError) {
                    try await upload.receive(into: collector, limit: limit)
                    outcome.more = upload.trailers.map { "\($0.name)=\($0.value)" }
                } catch {
                    outcome.code = Self.code(error)
                }
            } catch {
                outcome.code = Self.code(.sink(error))
            }
            outcome.content = String(decoding: collector.bytes, as: UTF8.self)
            return outcome
        }.value
    }

    @Test(arguments: [1, 2, 7, 1000]) func chunkedBodies(step: Int) async {
        let body = "9\r\n123456789\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
        let whole = await chunked(body, step: step)
        #expect(whole == Outcome(content: "123456789", more: ["x-amz-checksum-crc32=AAAAAA=="]))
        #expect(await chunked(String(body.dropLast()), step: step).code == "IncompleteBody")
        #expect(await chunked(body, "8", step: step) == Outcome(content: "", code: "IncompleteBody"))
        #expect(await chunked(body, step: step, limit: 8) == Outcome(content: "", code: "too large"))
        #expect(await chunked(body, step: step, ending: .clientGone).code == "client gone")
        #expect(await chunked(body, nil).code == "MissingContentLength")
        #expect(await chunked(nil).code == "IncompleteBody")
    }

    private func form(
        _ body: String?, step: Int = 1000, limit: UInt64 = 100, sizes: ClosedRange<UInt64> = 0 ... .max,
        ending: BodyError? = nil, isRefused: Bool = false
    ) async -> Outcome {
        await Task(executorPreference: Self.loop) {
            let exchange = Self.exchange(body, [("content-type", "multipart/form-data; boundary=B")], step, ending)
            let collector = Collector(Self.loop)
            var outcome = Outcome()
            guard let boundary = PostFormBody.boundary(exchange) else { return outcome }
            let upload = PostFormBody(boundary, exchange, limit: limit)
            do throws(Problem) {
                outcome.more = [try await upload.form().key ?? ""]
                upload.sizes = sizes
                if isRefused { upload.stop() }
                do throws(BodyError) {
                    try await upload.receive(into: collector, limit: .max)
                } catch {
                    outcome.code = Self.code(error)
                }
            } catch {
                outcome.code = Self.code(.sink(error))
            }
            outcome.content = String(decoding: collector.bytes, as: UTF8.self)
            return outcome
        }.value
    }

    @Test(arguments: [1, 2, 7, 1000]) func forms(step: Int) async {
        let start =
            "--B\r\nContent-Disposition: form-data; name=key\r\n\r\nu/${filename}\r\n"
            + "--B\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n"
        let body = start + "123456789\r\n--B--\r\n"
        #expect(await form(body, step: step) == Outcome(content: "123456789", more: ["u/a"]))
        #expect(await form(body, step: step, sizes: 9...9) == Outcome(content: "123456789", more: ["u/a"]))
        #expect(await form(body, step: step, sizes: 0...8).code == "EntityTooLarge")
        #expect(await form(body, step: step, limit: 8).code == "EntityTooLarge")
        #expect(await form(body, step: step, sizes: 10...20).code == "EntityTooSmall")
        #expect(await form(start + "123", step: step).code == "IncompleteBody")
        #expect(await form(start, step: step, ending: .clientGone).code == "client gone")
        #expect(await form(String(start.dropLast(5)), step: step, ending: .clientGone).code == "IncompleteBody")
        #expect(await form(String(start.dropLast(5)), step: step).code == "MalformedPOSTRequest")
        #expect(await form("x", step: step).code == "MalformedPOSTRequest")
        #expect(await form(nil, step: step).code == "InvalidArgument")
        #expect(await form(body, step: step, isRefused: true).code == "MalformedPOSTRequest")
    }
}
