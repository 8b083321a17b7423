import Foundation
import Wire

/// The domain of all errors, as in the Storage SDK for Apple platforms.
// swift-format-ignore: AlwaysUseLowerCamelCase
public let StorageErrorDomain = "FIRStorageErrorDomain"

/// Why an operation failed. The values and the domain are those of the Storage SDK for Apple platforms.
public enum StorageErrorCode: Int, Error, Sendable, Hashable {
    /// Any other error. ``StorageError/problemCode`` may say more.
    case unknown = -13000
    /// There is no such object.
    case objectNotFound = -13010
    /// The gateway has no such bucket.
    case bucketNotFound = -13011
    /// Not used by a gateway.
    case projectNotFound = -13012
    /// The gateway asks for a payment or more capacity (status 402).
    case quotaExceeded = -13013
    /// The credential is missing, invalid or expired.
    case unauthenticated = -13020
    /// The rules deny the operation.
    case unauthorized = -13021
    /// The operation kept failing for longer than its retry time.
    case retryLimitExceeded = -13030
    /// The bytes received or stored are not those that were sent.
    case nonMatchingChecksum = -13031
    /// The object is larger than the limit of the download.
    case downloadSizeExceeded = -13032
    /// The operation was cancelled.
    case cancelled = -13040
    /// An argument is not valid.
    case invalidArgument = -13050
    /// The URL is of another bucket.
    case bucketMismatch = -13051
    /// A response can't be understood.
    case internalError = -13052
    /// The reference's path is not the name of an object.
    case pathError = -13053
}

/// The error of every operation of this library: an `NSError`, because on Linux a cast to it succeeds for no other type.
/// Its `code` is the number of ``reason``; `userInfo` has the description, and `status`, `code` and `requestID` of the gateway's
/// problem.
///
/// Safety: it is immutable.
public final class StorageError: NSError, @unchecked Sendable {
    /// The reason.
    public let reason: StorageErrorCode
    /// A sentence about this failure.
    public let message: String
    /// The status of the response, if there was one.
    public let status: Int?
    /// The code of the gateway's problem, such as `checksum-mismatch`; see the gateway's documentation of its HTTP API.
    public let problemCode: String?
    /// The id of the request in the gateway's log.
    public let requestID: String?

    /// The cause of a failure without a response.
    package enum Cause: Sendable {
        /// A local file, with `errno`; 0 if it is unknown.
        case file(Int32)
        /// A file that has changed while it was read.
        case changedFile
        /// The certificate of the gateway.
        case untrusted
        /// The gateway's URL, or a file for TLS.
        case settings
    }
    /// nil if the code or the status determines it.
    package let cause: Cause?

    /// Creates an error with a code and a sentence.
    public convenience init(_ reason: StorageErrorCode, _ message: String) {
        self.init(reason, message, status: nil, problemCode: nil, requestID: nil)
    }

    /// An error without a specific code.
    package convenience init(_ cause: Cause, _ message: String) {
        self.init(.unknown, message, status: nil, problemCode: nil, requestID: nil, cause: cause)
    }

    /// An error of a response.
    init(
        _ reason: StorageErrorCode, _ message: String, status: Int?, problemCode: String?,
        requestID: String?, cause: Cause? = nil
    ) {
        self.reason = reason
        self.message = message
        self.status = status
        self.problemCode = problemCode
        self.requestID = requestID
        self.cause = cause
        let details = [
            problemCode ?? status.map { "status \($0)" }, requestID.map { "request \($0)" },
        ].compactMap(\.self)
        let text = details.isEmpty ? message : "\(message) (\(details.joined(separator: ", ")))"
        // Keys: names of our own.
        var info: [String: Any] = [NSLocalizedDescriptionKey: text]
        if let status { info["status"] = status }
        if let problemCode { info["code"] = problemCode }
        if let requestID { info["requestID"] = requestID }
        super.init(domain: StorageErrorDomain, code: reason.rawValue, userInfo: info)
    }

    /// Not supported: an error can't be read from an archive.
    public required init?(coder: NSCoder) { nil }

    /// The sentence, and the gateway's code and request where there was a response.
    public override var description: String { localizedDescription }

    /// ``StorageErrorDomain``.
    public static var errorDomain: String { StorageErrorDomain }
    /// The number of ``reason``.
    public var errorCode: Int { code }
    /// The same as `userInfo`.
    /// Keys: names of our own.
    public var errorUserInfo: [String: Any] { userInfo }

    /// Whether the gateway's problem has this code.
    package func hasProblem(_ code: String) -> Bool {
        problemCode.map { BytewiseString.areEqual($0, code) } ?? false
    }
}

extension StorageError {
    static let cancelled = StorageError(.cancelled, "The operation was cancelled.")

    /// A failure of the local file system, whose reason is in `errno`.
    static func file(_ what: String, _ path: String) -> StorageError {
        let code = errno
        return StorageError(.file(code), "\(path) can't be \(what): \(String(cString: strerror(code)))")
    }
}
