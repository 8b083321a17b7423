#if os(Linux)
    import Foundation
    import HTTPClient
    import OpenSSL
    import System
    import Wire

    /// Sends requests by the gateway's own HTTP client, on one event loop whose thread belongs to the library.
    ///
    /// In clear text each request has a connection of its own. A proxy could repeat bytes there, of requests as
    /// well as of responses, and a late response would be taken for that to another request. TLS detects repeated bytes, so
    /// over it connections are kept for further requests.
    final class LoopTransport: Sendable {
        static let shared = LoopTransport()

        /// Seconds until a connection is made, for all addresses of the host together.
        private static let connectTimeout: UInt64 = 15
        /// Seconds from the last byte of a request to the head of its response.
        private static let responseTimeout: UInt64 = 60

        private struct Key: Hashable {
            let origin: Origin
            let files: [URL?]
        }
        private struct State {
            var loop: EventLoop?
            var upstreams: [Key: Upstream] = [:]
        }
        private let state = Lock(State())

        /// Sends a request and waits for its response.
        func send(
            _ request: HTTPRequest, _ configuration: StorageConfiguration,
            _ control: TransferControl
        ) async -> Result<HTTPResponse, TransportFailure> {
            guard let (origin, target) = Origin.cut(request.url.absoluteString) else {
                return .failure(.impossible(.settings, "The gateway's URL is not valid."))
            }
            let loop: EventLoop
            let upstream: Upstream
            do throws(TransportFailure) {
                (loop, upstream) = try connections(to: origin, configuration)
            } catch {
                return .failure(error)
            }
            return await Task.detached(executorPreference: loop) {
                let prepared = ClientRequest(request.method, target)
                for (name, value) in request.fields {
                    prepared.fields.append(name: name.asciiLowercased(), value)
                }
                if let body = request.body { prepared.body = .bytes(body) }
                let pipe = request.fileBody.map { RequestBodyPipe(length: UInt64($0.range.count)) }
                if let pipe { prepared.body = .pipe(pipe) }
                prepared.isAlone = origin.scheme == .http
                if request.workTime > 0 { prepared.waitLimit = UInt64(request.workTime) * 1_000_000_000 }
                let exchange = LoopExchange(upstream.start(prepared), loop)
                return await exchange.run(request, pipe, control)
            }.value
        }

        private func connections(to origin: Origin, _ configuration: StorageConfiguration)
            throws(TransportFailure) -> (EventLoop, Upstream)
        {
            let key = Key(origin: origin, files: configuration.files)
            return try state.withLock { (state) throws(TransportFailure) in
                let loop = try LoopTransport.running(&state.loop)
                if let found = state.upstreams[key] { return (loop, found) }
                let settings = try LoopTransport.settings(origin, configuration)
                let upstream = Upstream(settings, hasBreaker: false)
                state.upstreams[key] = upstream
                return (loop, upstream)
            }
        }

        private static func running(_ loop: inout EventLoop?) throws(TransportFailure) -> EventLoop {
            if let loop { return loop }
            do throws(SystemError) {
                let new = try EventLoop()
                loop = new
                _ = startThread { new.run() }
                return new
            } catch {
                throw .failed("There is no event loop: \(error)")
            }
        }

        private static func settings(_ origin: Origin, _ configuration: StorageConfiguration)
            throws(TransportFailure) -> UpstreamSettings
        {
            var settings = UpstreamSettings(name: origin.description, origin: origin)
            settings.certificateAuthorities = configuration.certificateAuthorities?.path
            settings.clientCertificate = configuration.clientCertificate?.path
            settings.clientKey = configuration.clientKey?.path
            settings.secureTransport = .own
            // Transfers are large and few.
            settings.http2 = false
            settings.connectTimeout = connectTimeout * 1_000_000_000
            settings.firstByteTimeout = responseTimeout * 1_000_000_000
            guard origin.scheme == .https else { return settings }
            do throws(TLSError) {
                // A file that can't be used is reported at once rather than after many attempts.
                _ = try TLSClientContext(
                    TLSClientSettings(
                        host: origin.host, authorities: settings.certificateAuthorities,
                        certificate: settings.clientCertificate, key: settings.clientKey))
            } catch {
                throw .impossible(.settings, "TLS can't be used: \(error)")
            }
            return settings
        }
    }

    /// One request in progress.
    ///
    /// Safety: its properties belong to the loop. A cancellation on another thread goes through the loop.
    private final class LoopExchange: @unchecked Sendable {
        private let exchange: ClientExchange
        private let loop: EventLoop
        private var isLate = false
        /// Why the body can't be read.
        private var unreadable: StorageError?
        /// Bytes of one read from a file.
        private static let readSize: Int64 = 512 << 10

        init(_ exchange: ClientExchange, _ loop: EventLoop) {
            self.exchange = exchange
            self.loop = loop
        }

        func run(_ request: HTTPRequest, _ pipe: RequestBodyPipe?, _ control: TransferControl) async
            -> Result<HTTPResponse, TransportFailure>
        {
            let handler = control.onCancel { [self] in loop.execute { self.exchange.cancel() } }
            let timer = LoopTimer { [self] in
                isLate = true
                exchange.cancel()
            }
            defer {
                control.removeHandler(handler)
                loop.disarm(timer)
            }
            do throws(ClientError) {
                let sending = HTTPRequest.allowance(request.bodySize)
                arm(timer, request.timeLimit + request.workTime + sending)
                if let pipe, let body = request.fileBody { await send(body, by: pipe) }
                let response = try await exchange.response()
                let size = min(response.contentLength ?? UInt64(request.limit), 1 << 40)
                arm(timer, request.timeLimit + HTTPRequest.allowance(Int(size)))
                let body = try await response.collect(limit: request.limit)
                return .success(
                    HTTPResponse(status: response.status, fields: response.fields, body: body))
            } catch {
                return .failure(failure(error, request, control))
            }
        }

        /// Writes a file's bytes to the pipe until it stops; the response then has the cause. Workers read them.
        private func send(_ body: FileRange, by pipe: RequestBodyPipe) async {
            do throws(StorageError) {
                var start = body.range.lowerBound
                while start < body.range.upperBound {
                    let range = start..<min(start + LoopExchange.readSize, body.range.upperBound)
                    let bytes = try await withTaskExecutorPreference(Workers.shared) { () throws(StorageError) in
                        try body.file.read(range)
                    }
                    var written = 0
                    while written < bytes.count {
                        guard let count = try? pipe.write(bytes.span.bytes.extracting(droppingFirst: written))
                        else { return }
                        written += count
                        if count == 0 {
                            await withCheckedContinuation { waiter in pipe.whenWritable { waiter.resume() } }
                        }
                    }
                    start = range.upperBound
                }
            } catch {
                unreadable = error
                exchange.cancel()
            }
        }

        private func arm(_ timer: LoopTimer, _ seconds: TimeInterval) {
            loop.arm(timer, after: UInt64(min(seconds, 1e8) * 1e9))
        }

        private func failure(
            _ error: ClientError, _ request: HTTPRequest, _ control: TransferControl
        ) -> TransportFailure {
            if control.isCancelled { return .cancelled }
            if let unreadable { return .unreadable(unreadable) }
            if isLate {
                let address = Origin.cut(request.url.absoluteString)?.0.description ?? ""
                return .failed("\(address) did not respond in time.")
            }
            if error.isUntrusted {
                return .impossible(.untrusted, "The gateway is not trusted: \(error.cause).")
            }
            return .failed("There is no response: \(error.cause).")
        }
    }
#endif
