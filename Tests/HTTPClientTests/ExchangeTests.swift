import Dispatch
import Glibc
import System
import TestSupport
import Testing

@testable import HTTPClient

/// One request on the wire, by every transport.
@Suite("A request and its response", .timeLimit(.minutes(2)))
struct ExchangeTests {
    @Test("A request is sent unchanged, with the fields of the transport", arguments: Way.http1)
    func request(way: Way) async throws {
        let seen = Lock<[Peer.Request]>([])
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { request in
                seen.withLock { $0.append(request) }
                return peer.respond(200, "hello", fields: "X-Name:  a b \r\n")
            }
        }
        let upstream = server.upstream()
        let response = try await TestLoop.run {
            let request = ClientRequest("GET", "/b/o%2Fx?y=%20z")
            request.fields.append("x-amz-date", "now")
            return try await upstream.call(request)
        }
        #expect(response.status == 200 && response.fields["x-name"] == "a b")
        #expect(response.body == Array("hello".utf8))
        _ = await upstream.ask("PUT", body: Array("1234".utf8))
        _ = await upstream.ask("POST")
        _ = await upstream.ask("DELETE")
        let requests = seen.withLock { $0 }
        #expect(requests.map(\.line).first == "GET /b/o%2Fx?y=%20z HTTP/1.1")
        #expect(requests.map(\.method) == ["GET", "PUT", "POST", "DELETE"])
        #expect(requests[0].fields["host"] == "127.0.0.1:\(server.port)")
        #expect(requests[0].fields["x-amz-date"] == "now")
        #expect(requests[0].fields["user-agent"] == "sluice")
        #expect(requests[0].fields["content-length"] == nil)
        #expect(requests[1].body == Array("1234".utf8))
        #expect(requests[3].fields["content-length"] == nil)
        for request in requests {
            #expect(Set(request.names.map { $0.lowercased() }).count == request.names.count)
            #expect(request.fields["expect"] == nil && request.fields["transfer-encoding"] == nil)
        }
        #expect(server.connections == 1)
        await upstream.close()
    }

    @Test("Every status is delivered, and redirects are not followed", arguments: Way.http1)
    func statuses(way: Way) async throws {
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { request in
                let status = Int(request.target.dropFirst()) ?? 0
                let hasBody = status != 204 && status != 304
                return peer.send(
                    "HTTP/1.1 \(status) X\r\nlocation: http://127.0.0.1:1/\r\n"
                        + (hasBody ? "content-length: 2\r\n\r\nab" : "\r\n"))
            }
        }
        let upstream = server.upstream()
        for status in [
            200, 201, 204, 206, 301, 302, 303, 304, 307, 308, 400, 401, 404, 412, 416, 429, 500,
            503, 599,
        ] {
            let response = await upstream.ask("GET", "/\(status)")
            #expect(response.status == status)
            #expect(response.text == (status == 204 || status == 304 ? "" : "ab"))
        }
        #expect(server.connections == 1)
        await upstream.close()
    }

    @Test(
        "A body that came with its head is taken at once; of any other nothing is read",
        arguments: Way.own)
    func arrived(way: Way) async throws {
        let rest = DispatchSemaphore(value: 0)
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { request in
                switch request.target {
                case "/whole": return peer.respond(200, "hello")
                case "/chunked":
                    return peer.send(
                        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
                    )
                default:
                    guard peer.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel") else {
                        return false
                    }
                    rest.wait()
                    return peer.send("lo")
                }
            }
        }
        let upstream = server.upstream()
        for (target, isWhole) in [("/whole", true), ("/chunked", false), ("/part", false)] {
            let (other, taken, read) = try await TestLoop.run {
                var response = try await upstream.send(ClientRequest("GET", target))
                let other = response.takeArrived(4)?.bytes
                let taken = response.takeArrived(5)?.bytes
                rest.signal()
                return (other, taken, try await response.collect(limit: 10))
            }
            #expect(other == nil && taken == (isWhole ? Array("hello".utf8) : nil))
            #expect(read == (isWhole ? [] : Array("hello".utf8)))
            if target != "/part" { rest.wait() }
        }
        #expect(server.connections == 1)
        await upstream.close()
    }

    @Test("A response to HEAD has no body, whatever its Content-Length is", arguments: Way.http1)
    func head(way: Way) async throws {
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { _ in peer.send("HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n") }
        }
        let upstream = server.upstream()
        for _ in 0..<3 {
            let (length, told, body) = try await TestLoop.run {
                let response = try await upstream.send(ClientRequest("HEAD", "/x"))
                let length = response.contentLength
                var buffer = [UInt8](repeating: 0, count: 10)
                var span = buffer.mutableSpan
                var bytes = span.mutableBytes
                let read = try response.body.read(into: &bytes)
                response.body.close()
                return (length, response.fields["content-length"], read)
            }
            #expect(length == 0 && told == "5000" && body == .end)
        }
        #expect(server.connections == 1)
        await upstream.close()
    }

    static let framings: [(String, String)] = [
        ("length", "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello world"),
        (
            "chunked",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n \r\n005\r\nworld\r\n0\r\nT: u\r\n\r\n"
        ),
        (
            "interim",
            "HTTP/1.1 103 Early\r\nlink: a\r\n\r\nHTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello world"
        ),
    ]

    @Test(
        "A response may be split anywhere",
        arguments: Way.http1, ExchangeTests.framings.map(\.0))
    func splits(way: Way, name: String) async throws {
        let bytes = Array(ExchangeTests.framings.first { $0.0 == name }!.1.utf8)
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { request in
                let split = Int(request.target.dropFirst()) ?? 0
                if split == 0 {
                    peer.send(pieces: bytes.map { [$0] })
                } else {
                    peer.send(pieces: [Array(bytes[..<split]), Array(bytes[split...])])
                }
                return true
            }
        }
        let upstream = server.upstream()
        for split in 0..<bytes.count {
            let response = await upstream.ask("GET", "/\(split)")
            #expect(response.text == "hello world")
        }
        #expect(server.connections == 1)
        await upstream.close()
    }

    @Test("A body that ends with its connection may be split anywhere", arguments: Way.http1)
    func untilClose(way: Way) async throws {
        let bytes = Array("HTTP/1.1 200 OK\r\nserver: x\r\n\r\nhello world".utf8)
        let server = ScriptedServer(way) { peer, number in
            guard peer.request() != nil else { return }
            if number == 0 {
                peer.send(pieces: bytes.map { [$0] })
            } else {
                peer.send(pieces: [Array(bytes[..<number]), Array(bytes[number...])])
            }
        }
        let upstream = server.upstream()
        for _ in 0..<bytes.count {
            let response = await upstream.ask()
            #expect(response.text == "hello world")
        }
        #expect(server.connections == bytes.count)
        await upstream.close()
    }

    @Test("A large body arrives complete, in both directions", arguments: Way.http1)
    func large(way: Way) async throws {
        let size = 3_000_003
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { request in
                if request.method == "PUT" { return peer.respond(200, "\(request.body.count)") }
                let body = (0..<size).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 3) }
                if request.target == "/chunked" {
                    peer.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                    var (place, step) = (0, 0)
                    while place < size {
                        step += 1
                        let end = min(size, place + step * 37)
                        peer.send(
                            Array("\(String(end - place, radix: 16))\r\n".utf8) + body[place..<end]
                                + [13, 10])
                        place = end
                    }
                    return peer.send("0\r\n\r\n")
                }
                peer.send("HTTP/1.1 200 OK\r\ncontent-length: \(size)\r\n\r\n")
                return peer.send(body)
            }
        }
        let upstream = server.upstream()
        let expected = (0..<size).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 3) }
        for target in ["/plain", "/chunked"] {
            let response = await upstream.ask("GET", target, limit: size)
            #expect((try? response.get().body) == expected)
        }
        #expect(await upstream.ask("PUT", body: expected).text == "\(size)")
        let text = try await TestLoop.run {
            let pipe = RequestBodyPipe(length: UInt64(size))
            let exchange = upstream.start(ClientRequest("PUT", "/x", body: .pipe(pipe)))
            try await fill(pipe, size, chunk: 10_000)
            return String(
                decoding: try await exchange.response().collect(limit: 100), as: UTF8.self)
        }
        #expect(text == "\(size)")
        #expect(server.connections == 1)
        await upstream.close()
    }

    @Test(
        "Pieces of every size arrive in order, and few are buffered while the upstream reads none",
        arguments: Way.own)
    func pieces(way: Way) async throws {
        let pattern = (0..<65_521).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 3) }
        let size = 400 * pattern.count
        let isStuck = DispatchSemaphore(value: 0)
        let server = ScriptedServer(way) { peer, _ in
            guard peer.head() != nil else { return }
            isStuck.wait()
            guard let body = peer.body(size) else { return }
            let isWhole = body.withUnsafeBytes { body in
                stride(from: 0, to: size, by: pattern.count).allSatisfy {
                    memcmp(body.baseAddress! + $0, pattern, pattern.count) == 0
                }
            }
            peer.respond(200, isWhole ? "whole" : "broken")
        }
        let upstream = server.upstream()
        let text = try await TestLoop.run {
            let pipe = RequestBodyPipe(length: UInt64(size))
            let exchange = upstream.start(ClientRequest("PUT", "/x", body: .pipe(pipe)))
            let twice = pattern + pattern
            var (place, piece) = (0, 0)
            while place < size {
                let start = place % pattern.count
                let count = min([1, 700, 5000, 16_384, 30_000, 65_000][piece % 6], size - place)
                let taken = try pipe.write(twice.span.bytes.extracting(start..<start + count))
                piece += 1
                place += taken
                guard taken == 0 else { continue }
                // At first the connection is made; after that it is the upstream that does not read.
                if pipe.sent > 0 {
                    #expect(pipe.waitingCount <= RequestBodyPipe.batch)
                    isStuck.signal()
                }
                await withUnsafeContinuation { waiter in pipe.whenWritable { waiter.resume() } }
            }
            return String(
                decoding: try await exchange.response().collect(limit: 100), as: UTF8.self)
        }
        #expect(text == "whole")
        await upstream.close()
    }

    @Test("Few bytes are sent although no more follow", arguments: Way.own)
    func heldBytes(way: Way) async throws {
        let arrivals = DispatchSemaphore(value: 0)
        let server = ScriptedServer(way) { peer, _ in
            guard peer.head() != nil else { return }
            for _ in 0..<3 {
                guard peer.body(10) != nil else { return }
                arrivals.signal()
            }
            peer.respond(200, "all")
        }
        let upstream = server.upstream()
        let text = try await TestLoop.run {
            let pipe = RequestBodyPipe(length: 30)
            let exchange = upstream.start(ClientRequest("PUT", "/x", body: .pipe(pipe)))
            let bytes = [UInt8](repeating: 7, count: 10)
            for _ in 0..<3 {
                #expect(try pipe.write(bytes.span.bytes) == 10)
                while arrivals.wait(timeout: .now()) == .timedOut { await Pause.sleep(1_000_000) }
            }
            return String(
                decoding: try await exchange.response().collect(limit: 100), as: UTF8.self)
        }
        #expect(text == "all")
        await upstream.close()
    }

    @Test("An empty pipe is an empty body", arguments: Way.http1)
    func emptyPipe(way: Way) async throws {
        let server = ScriptedServer(way) { peer, _ in
            peer.respondToAll { peer.respond(200, $0.fields["content-length"] ?? "none") }
        }
        let upstream = server.upstream()
        let text = try await TestLoop.run {
            let request = ClientRequest("PUT", "/x", body: .pipe(RequestBodyPipe(length: 0)))
            return String(
                decoding: try await upstream.start(request).response().collect(limit: 100),
                as: UTF8.self)
        }
        #expect(text == "0")
        await upstream.close()
    }

    @Test("A malformed request is not sent", arguments: Way.http1)
    func smuggling(way: Way) async throws {
        let server = ScriptedServer(way) { peer, _ in peer.respondToAll { _ in peer.respond() } }
        let upstream = server.upstream()
        for target in ["", "x", "/a b", "/a\r\nx: y", "/\u{e9}"] {
            #expect(await upstream.ask("GET", target).code == .malformed)
        }
        await #expect(throws: ClientError.self) {
            try await TestLoop.run {
                let request = ClientRequest("GET", "/x")
                request.fields.append("x-a", "b\r\nx-c: d")
                _ = try await upstream.send(request)
            }
        }
        #expect(server.connections == 0)
        await upstream.close()
    }
}
