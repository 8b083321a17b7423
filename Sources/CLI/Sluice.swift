import EventLoop
import Glibc
import HTTPServer
import OpenSSL

final class Repeat: ByteSource {
    var left: UInt64
    init(_ n: UInt64) { left = n }
    func read(into buffer: inout MutableRawSpan) -> SourceRead {
        let n = Int(min(left, UInt64(buffer.byteCount)))
        left -= UInt64(n)
        return n > 0 ? .bytes(n) : .end
    }
    func whenReadable(_ resume: @escaping () -> Void) { resume() }
    func close() {}
}
final class Null: ByteSink {
    func write(_ bytes: RawSpan) -> Int { bytes.byteCount }
    func whenWritable(_ resume: @escaping () -> Void) { resume() }
}

@main struct Sluice {
    static func main() async throws {
        let n = CommandLine.arguments.count > 1 ? Int(CommandLine.arguments[1])! : 1
        let loops = try (0..<n).map { _ in try EventLoop() }
        for l in loops { _ = startThread { l.run() } }
        let server = HTTPServer(loops: loops)
        let handler: RequestHandler = { ex in
            if ex.head.method == "PUT" {
                do {
                    let n = try await ex.receive(into: Null())
                    await ex.respond(ResponseHead(status: 200), .bytes(Array("got \(n)\n".utf8)))
                } catch {
                    await ex.respond(ResponseHead(status: 400), .bytes(Array("\(error)\n".utf8)))
                }
                return
            }
            var head = ResponseHead(status: 200)
            head.fields.append("content-type", "text/plain")
            if ex.head.target == "/big" {
                await ex.respond(head, .source(Repeat(1 << 30), length: 1 << 30))
            } else if ex.head.target == "/1k" {
                await ex.respond(head, .source(Repeat(1024), length: 1024))
            } else {
                await ex.respond(head, .bytes(Array("hello \(ex.head.target) \(ex.version.rawValue)\n".utf8)))
            }
        }
        let creds = TLSCredentials(try TLSContext.selfSigned())
        let bound = try server.start([
            .init(address: SocketAddress("127.0.0.1:8480")!, handler: handler),
            .init(address: SocketAddress("127.0.0.1:8481")!, credentials: creds, handler: handler),
        ])
        print(bound)
        while true { pause() }
    }
}
