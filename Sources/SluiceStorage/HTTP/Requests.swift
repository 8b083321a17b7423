import Foundation
import Wire

/// The outcome of one attempt.
enum Outcome {
    /// The gateway's response: the result, or a problem that another attempt would not solve.
    case response(HTTPResponse)
    case failure(Failure)
}

/// Sends requests with the storage's credential.
struct Requests: Sendable {
    let storage: Storage
    let control: TransferControl
    /// It reports the pauses; nil for an operation, which has none.
    private var task: StorageTask?

    /// The requests of an operation.
    init(storage: Storage, control: TransferControl) {
        self.storage = storage
        self.control = control
    }

    /// The requests of a task.
    init(_ task: StorageTask) {
        self.init(storage: task.reference.storage, control: task.control)
        self.task = task
    }

    /// Makes one attempt.
    /// - Throws: ``StorageError`` for what another attempt would not solve.
    func attempt(_ request: HTTPRequest, _ retries: inout Retries) async throws(StorageError)
        -> Outcome
    {
        if control.isCancelled { throw .cancelled }
        var prepared = request
        prepared.timeLimit = retries.begin()
        // Request the stored bytes, not an encoding of them.
        prepared.fields.append(("accept-encoding", "identity"))
        switch try await storage.credentials.authorization(prepared.timeLimit, control) {
        case .none: break
        case .field(let value): prepared.fields.append(("authorization", value))
        case .late:
            let late = StorageError(.unauthenticated, "The credential was not there in time.")
            return .failure(Failure(error: late))
        }
        let configuration = storage.configuration
        let own = Set(prepared.fields.map { BytewiseString($0.name.asciiLowercased()) })
        prepared.fields += try configuration.checkedFields().filter {
            !own.contains(BytewiseString($0.name))
        }
        switch await send(prepared, configuration) {
        case .success(let response):
            guard Requests.isTemporary(response.status) else { return .response(response) }
            var failure = Failure(error: Requests.error(response))
            failure.retryAfter = response["retry-after"].flatMap {
                Decimal.saturating(Array($0.utf8)[...]).map { TimeInterval($0) }
            }
            return .failure(failure)
        case .failure(.cancelled): throw .cancelled
        case .failure(.impossible(let cause, let text)): throw StorageError(cause, text)
        case .failure(.failed(let text)): return .failure(Failure(error: StorageError(.unknown, text)))
        }
    }

    private func send(_ request: HTTPRequest, _ configuration: StorageConfiguration) async
        -> Result<HTTPResponse, TransportFailure>
    {
        #if os(Linux)
            await LoopTransport.shared.send(request, configuration, control)
        #else
            await SessionTransport.shared.send(request, configuration, control)
        #endif
    }

    /// Sends a request, again if it fails, until it has failed for the retry time.
    /// - Parameters:
    ///   - retryTime: Seconds; nil for the storage's time for operations.
    ///   - accept: Returns the value of a response that has one of these statuses; nil if it is malformed, as if the
    ///     connection had failed.
    func call<Value>(
        _ request: HTTPRequest, _ statuses: [Int] = [200], retryTime: TimeInterval? = nil,
        _ accept: (HTTPResponse) throws(StorageError) -> Value?
    ) async throws(StorageError) -> Value {
        var retries = Retries(retryTime ?? storage.maxOperationRetryTime)
        while true {
            if let task, try await task.checkpoint() { retries.succeeded() }
            switch try await attempt(request, &retries) {
            case .response(let response):
                guard
                    statuses.contains(response.status)
                        || retries.hasFailed && Requests.isDeleted(request, response)
                else { throw Requests.error(response) }
                if let value = try accept(response) { return value }
                try await retries.failed(Failure(error: Requests.malformed), control)
            case .failure(let failure): try await retries.failed(failure, control)
            }
        }
    }

    /// Whether this is the response to a repeated deletion whose first response was lost.
    private static func isDeleted(_ request: HTTPRequest, _ response: HTTPResponse) -> Bool {
        "\(request.method)" == "DELETE" && response.status == 404
            && ["object-not-found", "upload-not-found"].contains(error(response).problemCode)
    }

    static let malformed = StorageError(.internalError, "The gateway's response is malformed.")

    /// 408, 429 and 5xx except 501.
    static func isTemporary(_ status: Int) -> Bool {
        status == 408 || status == 429 || (500...599).contains(status) && status != 501
    }

    /// The error of a response with a problem.
    static func error(_ response: HTTPResponse) -> StorageError {
        error(response.status, try? JSONReader.parse(response.body), response["x-request-id"])
    }

    /// The error of a problem.
    static func error(_ status: Int, _ problem: JSONValue?, _ requestID: String?) -> StorageError {
        let problemCode = problem?["code"]?.text
        let code: StorageErrorCode =
            switch status {
            case 401: .unauthenticated
            case 402: .quotaExceeded
            case 403: .unauthorized
            case 404: problemCode == "bucket-not-found" ? .bucketNotFound : .objectNotFound
            case 400 where problemCode == "checksum-mismatch": .nonMatchingChecksum
            default: .unknown
            }
        let title = problem?["title"]?.text ?? "The status of the response is \(status)"
        let detail = problem?["detail"]?.text ?? ""
        // A detail that only repeats the title is left out.
        let isRepeated = detail.isEmpty || BytewiseString.areEqual(detail, title + ".")
        return StorageError(
            code, isRepeated ? "\(title)." : "\(title). \(detail)", status: status,
            problemCode: problemCode, requestID: requestID)
    }
}
