import Foundation
import Wire

#if canImport(FoundationNetworking)
    import FoundationNetworking
#endif

/// A response with its body.
struct HTTPResponse: Sendable {
    let status: Int
    /// By their names in lower case.
    let fields: [BytewiseString: String]
    let body: Data

    /// The value of a field, whose name is given in any case.
    subscript(_ field: String) -> String? { fields[BytewiseString(field.asciiLowercased())] }
}

/// Why there is no response.
enum TransportFailure: Error {
    case cancelled
    /// The connection, or a response that is larger than it may be.
    case failed(String)
    /// Another attempt would end in the same way.
    case impossible(String)
}

/// Sends requests: by `URLSession`, but on Linux in clear text by sockets. There `URLSession` ends the process if a connection
/// is cut in the head of a response: libcurl takes that for the end of a response, and
/// `_NativeProtocol.transferCompleted(withError:)` finds none. Over TLS libcurl sees that the connection was cut.
enum Transport {
    /// Sends a request and waits for its response.
    /// - Parameter limit: The maximum size of the body in bytes.
    static func send(_ request: URLRequest, limit: Int, _ control: TransferControl) async
        -> Result<HTTPResponse, TransportFailure>
    {
        let exchange = Exchange(limit: limit)
        let handler = control.onCancel { exchange.finish(.failure(.cancelled)) }
        let result = await withCheckedContinuation { continuation in
            exchange.begin(continuation)
            #if canImport(FoundationNetworking)
                if request.url?.scheme == "http" { return SocketTransport.start(request, exchange) }
            #endif
            SessionTransport.start(request, exchange)
        }
        control.removeHandler(handler)
        return result
    }
}
