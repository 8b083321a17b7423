import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// A failure, with the message that the user sees.
struct ClientError: Error {
    let status: ClientStatus
    /// A sentence that says what to do.
    let message: String
    /// The code of the gateway's problem.
    var problemCode: String?
    /// Whether further transfers would fail in the same way.
    var isFinal = false

    init(_ status: ClientStatus, _ message: String) {
        self.status = status
        self.message = message
    }

    /// A failure of the local file system.
    init(_ path: String, _ code: Int32) {
        let cause = String(cString: strerror(code))
        let advice = ClientError.fileAdvice(code)
        self.init(
            .local,
            "\(VisibleText.withoutSecrets(path)): \(cause)." + (advice.isEmpty ? "" : " \(advice)"))
        isFinal = ClientError.isFinal(code)
    }

    private static func fileAdvice(_ code: Int32) -> String {
        switch code {
        case ENOSPC, EDQUOT: "Free some space and run the same command again."
        case EACCES, EPERM: "Check the permissions of the file and its directory."
        case EROFS: "The file system is read-only: choose another directory."
        default: ""
        }
    }

    private static func isFinal(_ code: Int32) -> Bool { [ENOSPC, EDQUOT, EROFS].contains(code) }

    /// Any error, about `subject`.
    init(_ error: any Error, about subject: String) {
        if let error = error as? ClientError {
            self = error
        } else if let error = error as? StorageError {
            self.init(error, about: subject)
        } else {
            self.init(.failure, "\(subject): \(error.localizedDescription)")
        }
    }

    /// An error of the library.
    init(_ error: StorageError, about subject: String) {
        let (status, advice) = ClientError.advice(error)
        var text = "\(subject): \(error.message)"
        if !text.hasSuffix(".") { text += "." }
        if !advice.isEmpty { text += " \(advice)" }
        if let id = error.requestID { text += " (request \(id))" }
        self.init(status, text)
        problemCode = error.problemCode
        isFinal = status == .network || error.reason == .unauthenticated
        if case .file(let code)? = error.cause { isFinal = ClientError.isFinal(code) }
    }

    private static func advice(_ error: StorageError) -> (ClientStatus, String) {
        switch error.reason {
        case .objectNotFound: return (.notFound, "See what is there with 'sluice ls'.")
        case .bucketNotFound:
            return (
                .notFound,
                "Check the name: a plain path begins with its bucket, a local one with './' or '/'."
            )
        case .unauthenticated:
            return (
                .denied,
                "Set SLUICE_TOKEN, or SLUICE_TOKEN_FILE to a file with a token that is valid now."
            )
        case .unauthorized:
            return (.denied, "The gateway's rules decide: ask its operator for access.")
        case .retryLimitExceeded: return (.network, networkAdvice(error))
        case .quotaExceeded:
            return (.network, "Ask the gateway's operator for more capacity.")
        case .nonMatchingChecksum:
            return (.conflict, "Nothing damaged was kept. Run the same command again.")
        case .cancelled: return (.failure, "Run the same command again to continue.")
        case .invalidArgument, .pathError, .bucketMismatch: return (.failure, "")
        case .internalError:
            return (.network, "Check that the URL belongs to a Sluice gateway.")
        default: return statusAdvice(error)
        }
    }

    private static func statusAdvice(_ error: StorageError) -> (ClientStatus, String) {
        switch error.status {
        case 409, 412: return (.conflict, "Somebody else has changed the object. Look at it and try again.")
        case 413: return (.denied, "The gateway or its rules limit the size of objects.")
        case .some(300..<400):
            return (
                .network,
                "Something else responds at this address, or the gateway has moved: check the URL."
            )
        case .some(500...) where error.status != 501: return (.network, networkAdvice(error))
        case .some: return (.failure, "")
        case nil: return causeAdvice(error.cause)
        }
    }

    private static func causeAdvice(_ cause: StorageError.Cause?) -> (ClientStatus, String) {
        switch cause {
        case .file(let code): (.local, fileAdvice(code))
        case .changedFile:
            (.conflict, "Run the same command again when the file is complete.")
        case .untrusted:
            (.network, "Name the authority of its certificate by --cacert, if you trust it.")
        case .settings: (.failure, "Check --url, --cacert, --cert and --key.")
        case nil: (.network, "Run the same command again.")
        }
    }

    private static func networkAdvice(_ error: StorageError) -> String {
        switch error.problemCode {
        case "insufficient-storage"?:
            "The disk of the gateway or its store is full: ask its operator."
        case "too-many-requests"?, "overloaded"?:
            "The gateway has too much to do: try again later, with fewer --jobs."
        case "upstream-unavailable"?, "upstream-timeout"?:
            "The gateway can't reach its store: try again later."
        case "too-many-uploads"?:
            "Other uploads of this caller are not finished: continue them, or try again tomorrow."
        case nil: statusAdvice(error.status)
        default: "Run the same command again later."
        }
    }

    /// What a response without a problem means: it is most often of a proxy before the gateway.
    private static func statusAdvice(_ status: Int?) -> String {
        switch status {
        case 429?: "The gateway has too much to do: try again later, with fewer --jobs."
        case 502?, 503?, 504?:
            "The gateway, or a proxy before it, is not ready: try again later."
        case .some: "Run the same command again later."
        case nil: "Check that a Sluice gateway is running at this URL (--url, SLUICE_URL), and the network."
        }
    }
}
