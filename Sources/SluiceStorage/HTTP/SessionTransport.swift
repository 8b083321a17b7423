import Foundation
import Synchronization

#if canImport(FoundationNetworking)
    import FoundationNetworking
#endif

/// Sends requests by one `URLSession` for the whole process, which is never invalidated: on Linux that races with the
/// sockets of its last requests (swift-corelibs-foundation 4791).
///
/// A delegate receives the bytes rather than completion handlers: only a delegate can reject redirections, which would
/// carry the credential elsewhere, and limit the size of a response. On Linux a delegate can't slow a sender down (3204),
/// so that the size of a response is the memory it takes.
final class SessionTransport: NSObject, URLSessionDataDelegate, Sendable {
    private static let shared = SessionTransport()
    private static let session: URLSession = {
        let configuration = URLSessionConfiguration.ephemeral
        configuration.urlCache = nil
        configuration.httpCookieStorage = nil
        configuration.httpShouldSetCookies = false
        configuration.httpMaximumConnectionsPerHost = 32
        let queue = OperationQueue()
        queue.maxConcurrentOperationCount = 1
        return URLSession(configuration: configuration, delegate: shared, delegateQueue: queue)
    }()
    /// Starts and cancels tasks. Never a thread that holds a lock of Swift's concurrency: a cancellation there can deadlock
    /// on Linux (5412).
    private static let queue = DispatchQueue(label: "SluiceStorage.transport")

    private let exchanges = Mutex<[Int: Exchange]>([:])

    /// Starts a request, which ends `exchange`.
    static func start(_ request: URLRequest, _ exchange: Exchange) {
        queue.async {
            if exchange.isFinished { return }
            let task = session.dataTask(with: request)
            shared.exchanges.withLock { $0[task.taskIdentifier] = exchange }
            exchange.onEnd { queue.async { task.cancel() } }
            task.resume()
        }
    }

    // MARK: Delegate

    func urlSession(
        _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
        completionHandler: @escaping @Sendable (URLSession.ResponseDisposition) -> Void
    ) {
        completionHandler(.allow)
    }

    func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
        exchanges.withLock { $0[dataTask.taskIdentifier] }?.receive(data)
    }

    func urlSession(
        _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection: HTTPURLResponse,
        newRequest: URLRequest, completionHandler: @escaping @Sendable (URLRequest?) -> Void
    ) {
        completionHandler(nil)
    }

    func urlSession(
        _ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?
    ) {
        let exchange = exchanges.withLock { $0.removeValue(forKey: task.taskIdentifier) }
        guard let exchange else { return }
        if let error {
            exchange.finish(.failure(SessionTransport.failure(error)))
        } else if let head = task.response as? HTTPURLResponse {
            exchange.finish(head)
        } else {
            exchange.finish(.failure(.failed("There was no response.")))
        }
    }

    private static func failure(_ error: any Error) -> TransportFailure {
        let text = error.localizedDescription
        switch (error as? URLError)?.code {
        case .badURL, .unsupportedURL, .serverCertificateUntrusted, .serverCertificateHasBadDate,
            .serverCertificateNotYetValid, .serverCertificateHasUnknownRoot,
            .clientCertificateRejected, .clientCertificateRequired:
            return .impossible(text)
        default: return .failed(text)
        }
    }
}
