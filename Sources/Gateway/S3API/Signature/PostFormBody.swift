import HTTPServer
import System

/// Receives an upload by a form: first its fields, then the file. Confined to the request's loop.
final class PostFormBody: UploadBody {
    private let exchange: Exchange
    private let body: PrefacedBody<PostFormParser>
    private let limit: UInt64
    /// The maximum size of everything but the file, in bytes. What follows the file is ignored.
    private static let overhead: UInt64 = 1 << 20
    /// The sizes that the policy allows, in bytes. Set before ``receive(into:limit:)``.
    var sizes: ClosedRange<UInt64> = 0 ... .max

    /// - Parameters:
    ///   - boundary: Of a `Content-Type` of `multipart/form-data`.
    ///   - limit: The maximum size of the file in bytes.
    init(_ boundary: MultipartBoundary, _ exchange: Exchange, limit: UInt64) {
        self.exchange = exchange
        self.limit = limit
        body = PrefacedBody(PostFormParser(boundary), exchange) { $0 }
    }

    /// The boundary of a request's form; nil if its body is none.
    static func boundary(_ exchange: Exchange) -> MultipartBoundary? {
        exchange.head.fields["content-type"].flatMap { MultipartBoundary($0, type: "multipart/form-data") }
    }

    /// Receives the fields before the file.
    /// - Throws: ``Problem``: `MalformedPOSTRequest`, `MaxPostPreDataLengthExceeded`, `InvalidArgument`.
    func form() async throws(Problem) -> PostForm {
        guard exchange.head.hasBody else { throw PostFormParser.noFile }
        let (sum, isOverflow) = limit.addingReportingOverflow(PostFormBody.overhead)
        let most = isOverflow ? .max : sum
        guard let end = await body.receivePreface(limit: most) else { return body.parser.form }
        switch end {
        case .success: throw PostFormParser.malformed("the body ends before the file")
        case .failure(.sink(let problem as Problem)): throw problem
        case .failure(.tooLarge): throw PostFormBody.tooLarge(limit)
        case .failure(.clientGone): throw .incompleteBody
        case .failure(let error): throw Problem(error, limit: limit)
        }
    }

    static func tooLarge(_ limit: UInt64) -> Problem {
        .s3(
            .payloadTooLarge, 400, "EntityTooLarge", "Your proposed upload exceeds the maximum allowed size.",
            members: [("MaxSizeAllowed", "\(limit)")])
    }

    static func tooSmall(_ size: UInt64, _ minimum: UInt64) -> Problem {
        .s3(
            .invalidArgument, 400, "EntityTooSmall",
            "Your proposed upload is smaller than the minimum allowed object size.",
            members: [("ProposedSize", "\(size)"), ("MinSizeAllowed", "\(minimum)")])
    }

    func stop() { body.stop(PostFormParser.malformed("the upload was refused")) }

    func receive(into content: any ByteSink, limit: UInt64) async throws(BodyError) {
        let most = min(limit, self.limit, sizes.upperBound)
        let count = try await body.receive(into: content, limit: most, tooLarge: PostFormBody.tooLarge(most))
        do throws(Problem) {
            try body.parser.end()
            if count < sizes.lowerBound { throw PostFormBody.tooSmall(count, sizes.lowerBound) }
        } catch {
            throw .sink(error)
        }
    }
}
