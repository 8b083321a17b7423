import Glibc
import Synchronization
import System
import TestSupport
import Testing
import Wire

@testable import HTTPClient

extension Upstream {
    /// Begins requests for `/0`, `/1`… in one turn of the loop, and expects each target as the response.
    func askAtOnce(_ method: StaticString, _ count: Int) async throws {
        try await TestLoop.run { [self] in
            let exchanges = (0..<count).map { start(ClientRequest(method, "/\($0)")) }
            for (index, exchange) in exchanges.enumerated() {
                let body = try await exchange.response().collect(limit: 100)
                #expect(String(decoding: body, as: UTF8.self) == "/\(index)")
            }
        }
    }

    /// Asks on the tests' loop, in one attempt, and collects the body.
    func ask(
        _ method: StaticString = "GET", _ target: String = "/x", body: [UInt8]? = nil,
        isRepeatable: Bool? = nil, limit: Int = 1 << 20
    ) async -> Result<CollectedResponse, ClientError> {
        let outcome = try? await TestLoop.run { [self] in
            let request = ClientRequest(
                method, target, body: body.map { .bytes($0) } ?? .none, isRepeatable: isRepeatable)
            do throws(ClientError) {
                let response = try await start(request).response()
                return Result<CollectedResponse, ClientError>.success(
                    CollectedResponse(
                        status: response.status, fields: response.fields,
                        body: try await response.collect(limit: limit)))
            } catch {
                return .failure(error)
            }
        }
        return outcome ?? .failure(ClientError(.cancelled, "the test's task was cancelled"))
    }
}

extension Result where Success == CollectedResponse, Failure == ClientError {
    var status: Int? { try? get().status }
    var text: String? { (try? get().body).map { String(decoding: $0, as: UTF8.self) } }
    var code: ClientError.Code? {
        if case .failure(let error) = self { error.code } else { nil }
    }
}

/// Writes `total` bytes into a pipe as it takes them, on the loop, which can read between them as in the gateway; throws
/// what the pipe throws.
func fill(_ pipe: RequestBodyPipe, _ total: Int, chunk: Int = 16 * 1024) async throws {
    let block = [UInt8](repeating: 0x61, count: chunk)
    var left = total
    while left > 0 {
        let taken = try pipe.write(block.span.bytes.extracting(first: min(left, chunk)))
        left -= taken
        await EventLoop.giveWay()
        if taken == 0 {
            await withUnsafeContinuation { waiter in pipe.whenWritable { waiter.resume() } }
        }
    }
}
