import Foundation
import Wire

/// A request to the gateway.
struct HTTPRequest: Sendable {
    let method: StaticString
    let url: URL
    var fields: [(name: String, value: String)] = []
    /// nil for none.
    var body: [UInt8]?
    /// A body that is read while it is sent, instead of ``body``.
    var fileBody: FileRange?
    /// The maximum size of the response's body in bytes: 16 MiB by default, far above a page of a list.
    var limit = 16 << 20
    /// Seconds for everything but the bytes of the bodies. Each attempt sets it.
    var timeLimit: TimeInterval = 0
    /// Seconds that the gateway may take before it responds, beside ``timeLimit``.
    var workTime: TimeInterval = 0

    init(_ method: StaticString, _ url: URL) {
        self.method = method
        self.url = url
    }

    /// Bytes of the body.
    var bodySize: Int { body?.count ?? fileBody?.range.count ?? 0 }

    /// The time limit for a body of this many bytes, in seconds: one for each 4 KiB.
    static func allowance(_ bytes: Int) -> TimeInterval { TimeInterval(bytes) / 4096 }
}

/// A response with its body.
struct HTTPResponse: Sendable {
    let status: Int
    /// Names in lower case.
    let fields: HeaderFields
    let body: [UInt8]

    /// The value of a field, whose name is given in lower case.
    subscript(_ field: StaticString) -> String? { fields[field] }
}

/// Why there is no response.
enum TransportFailure: Error {
    case cancelled
    /// The connection, or a response that is larger than it may be.
    case failed(String)
    /// Another attempt would fail in the same way.
    case impossible(StorageError.Cause, String)

    /// The request's body can't be read.
    static func unreadable(_ error: StorageError) -> Self { .impossible(error.cause ?? .file(0), error.message) }
}
