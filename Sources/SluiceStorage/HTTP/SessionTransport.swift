#if canImport(Darwin)
    import Foundation
    import Synchronization
    import Wire

    /// Sends requests by one `URLSession` for the whole process. No build of it has been tried yet.
    ///
    /// A delegate receives the bytes rather than completion handlers: only a delegate can reject redirections, which would
    /// carry the credential elsewhere, and limit the size of a response.
    final class SessionTransport: NSObject, URLSessionDataDelegate, Sendable {
        static let shared = SessionTransport()
        private static let session: URLSession = {
            let configuration = URLSessionConfiguration.ephemeral
            configuration.urlCache = nil
            configuration.urlCredentialStorage = nil
            configuration.httpCookieStorage = nil
            configuration.httpShouldSetCookies = false
            configuration.httpMaximumConnectionsPerHost = 32
            let queue = OperationQueue()
            queue.maxConcurrentOperationCount = 1
            return URLSession(configuration: configuration, delegate: shared, delegateQueue: queue)
        }()

        private final class Exchange: Sendable {
            let limit: Int
            let state: Mutex<(waiter: CheckedContinuation<Ended, Never>?, body: [UInt8])>

            init(_ waiter: CheckedContinuation<Ended, Never>, limit: Int) {
                self.limit = limit
                state = Mutex((waiter, []))
            }

            func finish(_ result: Ended) {
                state.withLock { $0.waiter.take() }?.resume(returning: result)
            }
        }
        private typealias Ended = Result<HTTPResponse, TransportFailure>
        private let exchanges = Mutex<[Int: Exchange]>([:])

        /// Sends a request and waits for its response.
        func send(
            _ request: HTTPRequest, _ configuration: StorageConfiguration,
            _ control: TransferControl
        ) async -> Result<HTTPResponse, TransportFailure> {
            guard configuration.files.allSatisfy({ $0 == nil }) else {
                return .failure(.impossible(.settings, "Files of certificates are for Linux alone."))
            }
            var prepared = URLRequest(url: request.url)
            prepared.httpMethod = "\(request.method)"
            do throws(StorageError) {
                // In memory, unlike on Linux.
                prepared.httpBody = try (request.body ?? request.fileBody?.read()).map { Data($0) }
            } catch {
                return .failure(.unreadable(error))
            }
            prepared.timeoutInterval = request.timeLimit + request.workTime
            for field in request.fields {
                prepared.addValue(field.value, forHTTPHeaderField: field.name)
            }
            let task = SessionTransport.session.dataTask(with: prepared)
            let size = request.bodySize > 0 ? request.bodySize : request.limit
            let allowed = request.timeLimit + request.workTime + HTTPRequest.allowance(size)
            let handler = control.onCancel { task.cancel() }
            defer { control.removeHandler(handler) }
            let result = await withCheckedContinuation { waiter in
                let exchange = Exchange(waiter, limit: request.limit)
                exchanges.withLock { $0[task.taskIdentifier] = exchange }
                TransferControl.timers.asyncAfter(deadline: .now() + allowed) { [weak task] in
                    task?.cancel()
                }
                task.resume()
            }
            return control.isCancelled ? .failure(.cancelled) : result
        }

        // MARK: Delegate

        func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
            guard let exchange = exchanges.withLock({ $0[dataTask.taskIdentifier] }) else { return }
            let isTooLarge = exchange.state.withLock { state in
                state.body += data
                return state.body.count > exchange.limit
            }
            if isTooLarge {
                exchange.finish(.failure(.failed("The response is larger than it may be.")))
                dataTask.cancel()
            }
        }

        func urlSession(
            _ session: URLSession, task: URLSessionTask,
            willPerformHTTPRedirection: HTTPURLResponse, newRequest: URLRequest,
            completionHandler: @escaping @Sendable (URLRequest?) -> Void
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
                var fields = HeaderFields()
                for case (let name as String, let value as String) in head.allHeaderFields {
                    fields.append(name: name.asciiLowercased(), value)
                }
                let body = exchange.state.withLock { $0.body }
                exchange.finish(.success(HTTPResponse(status: head.statusCode, fields: fields, body: body)))
            } else {
                exchange.finish(.failure(.failed("There was no response.")))
            }
        }

        private static func failure(_ error: any Error) -> TransportFailure {
            let text = error.localizedDescription
            switch (error as? URLError)?.code {
            case .badURL, .unsupportedURL, .clientCertificateRejected, .clientCertificateRequired:
                return .impossible(.settings, text)
            case .serverCertificateUntrusted, .serverCertificateHasBadDate,
                .serverCertificateNotYetValid, .serverCertificateHasUnknownRoot:
                return .impossible(.untrusted, text)
            default: return .failed(text)
            }
        }
    }
#endif
