import Foundation
import Wire

#if canImport(FoundationNetworking)
    import FoundationNetworking
#endif

/// A request to the gateway.
struct GatewayRequest {
    var method: String
    var url: URL
    var fields: [(name: String, value: String)] = []
    var body: Data?
    /// The maximum size of the response's body in bytes: 16 MiB, far above a page of a list.
    var limit = 16 << 20

    init(_ method: String, _ url: URL) {
        self.method = method
        self.url = url
    }
}

/// The outcome of one attempt.
enum Outcome {
    /// The gateway has responded: what was asked for, or a problem that another attempt would not solve.
    case response(HTTPResponse)
    case failure(Failure)
}

/// Sends requests with the storage's credential.
struct Requests: Sendable {
    let storage: Storage
    let control: TransferControl

    /// Makes one attempt.
    /// - Throws: ``StorageError`` for what another attempt would not solve.
    func attempt(_ request: GatewayRequest, _ retries: inout Retries) async throws(StorageError)
        -> Outcome
    {
        if control.isCancelled { throw .cancelled }
        var prepared = URLRequest(url: request.url)
        prepared.timeoutInterval = retries.begin()
        prepared.httpMethod = request.method
        prepared.httpBody = request.body
        for field in request.fields {
            prepared.addValue(field.value, forHTTPHeaderField: field.name)
        }
        // A body is wanted as it is stored.
        prepared.setValue("identity", forHTTPHeaderField: "Accept-Encoding")
        if let authorization = try await storage.credentials.authorization() {
            prepared.setValue(authorization, forHTTPHeaderField: "Authorization")
        }
        switch await Transport.send(prepared, limit: request.limit, control) {
        case .success(let response):
            guard Requests.isTemporary(response.status) else { return .response(response) }
            var failure = Failure(error: Requests.error(response))
            failure.retryAfter = response["Retry-After"].flatMap(TimeInterval.init)
            return .failure(failure)
        case .failure(.cancelled): throw .cancelled
        case .failure(.impossible(let text)): throw StorageError(.unknown, text)
        case .failure(.failed(let text)):
            return .failure(Failure(error: StorageError(.unknown, text)))
        }
    }

    /// Sends a request, again if it fails, within the storage's time for operations.
    /// - Parameter accept: Returns the value of a response that has one of these statuses; nil if it is malformed, as if
    ///   the connection had failed.
    func call<Value>(
        _ request: GatewayRequest, _ statuses: [Int] = [200],
        _ accept: (HTTPResponse) throws(StorageError) -> Value?
    ) async throws(StorageError) -> Value {
        var retries = Retries(storage.maxOperationRetryTime)
        while true {
            switch try await attempt(request, &retries) {
            case .response(let response):
                // A repeated deletion whose first response was lost.
                let isDeleted =
                    request.method == "DELETE" && retries.isRetry && response.status == 404
                guard statuses.contains(response.status) || isDeleted else {
                    throw Requests.error(response)
                }
                if let value = try accept(response) { return value }
                try await retries.failed(Failure(error: Requests.malformed), control)
            case .failure(let failure): try await retries.failed(failure, control)
            }
        }
    }

    static let malformed = StorageError(.internalError, "The gateway's response is malformed.")

    /// 408, 429 and 5xx, but not what the gateway does not implement.
    private static func isTemporary(_ status: Int) -> Bool {
        status == 408 || status == 429 || (500...599).contains(status) && status != 501
    }

    /// The error of a response with a problem.
    static func error(_ response: HTTPResponse) -> StorageError {
        let problem = try? JSONReader.parse(Array(response.body))
        let problemCode = problem?["code"]?.text
        let code: StorageErrorCode =
            switch response.status {
            case 401: .unauthenticated
            case 402: .quotaExceeded
            case 403: .unauthorized
            case 404: problemCode == "bucket-not-found" ? .bucketNotFound : .objectNotFound
            case 400 where problemCode == "checksum-mismatch": .nonMatchingChecksum
            default: .unknown
            }
        let title = problem?["title"]?.text ?? "The status of the response is \(response.status)"
        let detail = problem?["detail"]?.text.map { " \($0)" } ?? ""
        var error = StorageError(code, "\(title).\(detail)")
        error.status = response.status
        error.problemCode = problemCode
        error.requestID = response["X-Request-Id"]
        return error
    }
}
