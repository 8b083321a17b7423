import Buckets
import HTTPServer
import Testing
import Wire

@testable import Gateway

/// A second dialect, to show that one file is all that it takes: `GET /raw/BUCKET/NAME` gives the object's bytes, and a
/// failure is plain text. With `?token=open` whoever asks may read, as with the download tokens of other protocols.
final class RawDialect: Dialect {
    var root: StaticString { "raw" }

    func route(_ context: RequestContext) throws(Problem) -> Route {
        let target = context.target
        let path = target.path.dropFirst("/raw/".utf8.count)
        guard let slash = path.firstIndex(of: UInt8(ascii: "/")) else {
            throw Problem(.notFound, "Objects are at /raw/BUCKET/NAME.")
        }
        let query = QueryParameters(target.query)
        return Route(
            bucket: String(decoding: path[..<slash], as: UTF8.self),
            path: .named(path[(slash + 1)...]), query: query,
            claimsGrant: query.contains("token"))
    }

    func methods(at route: Route?) -> String { "GET, OPTIONS" }

    func parse(_ route: Route, in bucket: Bucket, among buckets: ServedBuckets, _ context: RequestContext)
        throws(Problem)
        -> ObjectOperation
    {
        guard context.exchange.head.method == "GET", case .named(let path) = route.path else {
            throw Problem.methodNotAllowed(methods(at: route))
        }
        return .download(try bucket.objectName(path), ReadRequest())
    }

    /// A download token.
    struct Token: Grant {
        var value: String
        var principal: String { "token:\(value)" }
        var group: String { Callers.linkGroup }
        func decide(_ existing: CurrentObject, now: Int64) -> Decision? {
            value == "open" ? .allow : .deny(cause: "The token is not one of the object's.")
        }
        func denial(_ cause: String) -> Problem? { Problem(.unauthorized, cause) }
    }

    func grant(
        _ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) throws(Problem) -> (any Grant)? { Token(value: route.query.values["token"] ?? "") }

    func render(
        _ result: consuming OperationResult, of route: Route, in bucket: Bucket,
        _ context: RequestContext
    ) -> Response {
        guard case .content(_, let content) = consume result else { return Response(status: 204) }
        var response = Response(status: 200)
        response.body = content.body
        return response
    }

    func render(_ problem: Problem, _ requestId: String) -> Response {
        var response = Response(status: problem.code.status)
        response.head.fields.append("content-type", "text/plain; charset=utf-8")
        response.body = .bytes(Array("\(problem.detail)\n".utf8))
        return response
    }
}

@Suite("A second dialect") struct RawDialectTests {
    let driver = MemoryBucket()

    private func client(_ policy: any Policy = OpenPolicy()) -> Client {
        Client([Client.bucket(driver, policy: policy)]) { [NativeAPI($0), RawDialect()] }
    }

    @Test func returnsBytes() async {
        driver.seed("a/b", [1, 2, 3])
        let client = client()
        let reply = await client.send("GET", "/raw/photos/a/b")
        #expect(reply.status == 200 && reply.body == [1, 2, 3])
        #expect(!reply.fields.contains("etag") && reply.fields.contains("x-request-id"))
        #expect(client.records.last.operation == .get && client.records.last.bucket == "photos")
        #expect(client.records.last.path == "/raw/photos/a/b")
        // The first dialect has the other paths.
        let native = await client.send("GET", "/b/photos/o/a%2Fb")
        #expect(native.status == 200 && native.fields.contains("etag"))
    }

    @Test(arguments: [
        ("GET", "/raw/photos/none", 404, "The bucket has no such object.\n"),
        ("GET", "/raw/none/a", 404, "No bucket of this name is served here.\n"),
        ("GET", "/raw/photos", 404, "Objects are at /raw/BUCKET/NAME.\n"),
        ("PUT", "/raw/photos/a", 405, "The methods possible here are GET, OPTIONS.\n"),
    ])
    func reportsErrorsInPlainText(method: String, target: String, status: Int, text: String) async {
        let reply = await client().send(method, target)
        #expect(reply.status == status && reply.text == text)
        #expect(reply.fields["content-type"] == "text/plain; charset=utf-8")
    }

    @Test func hasItsOwnMethods() async {
        let reply = await client().send("OPTIONS", "/raw/photos/a")
        #expect(reply.status == 204 && reply.fields["allow"] == "GET, OPTIONS")
    }

    @Test(arguments: ["/raw", "/rawx/photos/a", "/ra/photos/a", "/", "*"])
    func doesNotHandleOtherPaths(target: String) async {
        let reply = await client().send("GET", target)
        #expect(reply.status == 404 && reply.code == "not-found")
    }

    @Test func isDecidedByTheSamePolicy() async {
        driver.seed("a", [1])
        #expect(await client(ClosedPolicy()).send("GET", "/raw/photos/a").status == 403)
    }

    @Test func aGrantReplacesThePolicy() async {
        driver.seed("a", [1])
        let client = client(ClosedPolicy())
        #expect(await client.send("GET", "/raw/photos/a?token=open").body == [1])
        #expect(client.records.last.principal == "token:open")
        #expect(client.records.last.decision == .allowed)
        let denied = await client.send("GET", "/raw/photos/a?token=x")
        #expect(denied.status == 403 && denied.text == "The token is not one of the object's.\n")
        #expect(client.records.last.decision == .denied)
    }
}
