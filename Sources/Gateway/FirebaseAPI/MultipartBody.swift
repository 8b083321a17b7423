import HTTPServer
import System
import Wire

/// Receives an upload whose body has a description before the object's bytes. Confined to the request's loop.
final class MultipartBody: UploadBody {
    private let exchange: Exchange
    private let body: PrefacedBody<MultipartParser>
    private let limit: UInt64
    /// The maximum size of the other parts of a body in bytes: description, fields, boundaries and epilogue.
    private static let overhead: UInt64 = 1 << 20

    /// - Parameter limit: The maximum size of the object in bytes.
    init(_ boundary: MultipartBoundary, _ context: RequestContext, limit: UInt64) {
        exchange = context.exchange
        self.limit = limit
        let parser = MultipartParser(boundary, maximumDescription: UploadDescription.maximumBytes)
        body = PrefacedBody(parser, exchange) { error in
            (error as? MultipartParser.Malformed).map { MultipartBody.malformed($0.reason) } ?? error
        }
    }

    private static func malformed(_ reason: String) -> Problem {
        Problem(.invalidArgument, "The multipart body is malformed: \(reason).")
    }

    /// The first part, and the content type of the second.
    /// - Throws: ``Problem`` with `invalid-argument` if the body is malformed up to there.
    func description() async throws(Problem) -> (json: [UInt8], type: String) {
        guard exchange.head.hasBody else { throw MultipartBody.malformed("there is no body") }
        let (sum, isOverflow) = limit.addingReportingOverflow(MultipartBody.overhead)
        let end = await body.receivePreface(limit: isOverflow ? .max : sum)
        if let type = body.parser.contentType { return (body.parser.description, type) }
        switch end {
        case .success, nil: throw MultipartBody.malformed("the body ends before its second part")
        case .failure(.sink(let problem as Problem)): throw problem
        case .failure(let error): throw Problem(error, limit: limit)
        }
    }

    func stop() { body.stop(MultipartBody.malformed("the upload was refused")) }

    func receive(into content: any ByteSink, limit: UInt64) async throws(BodyError) {
        let tooLarge = Problem(BodyError.tooLarge, limit: self.limit)
        _ = try await body.receive(into: content, limit: self.limit, tooLarge: tooLarge)
        do throws(MultipartParser.Malformed) {
            try body.parser.end()
        } catch {
            throw .sink(MultipartBody.malformed(error.reason))
        }
    }
}
