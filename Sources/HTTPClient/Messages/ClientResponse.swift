import System
import Wire

/// A response whose body has not been read. Confined to its loop.
public struct ClientResponse {
    /// 200 to 599. Interim responses are skipped, and redirects are not followed.
    public var status: Int
    /// Names in lower case.
    public var fields: HeaderFields
    /// The length of the body in bytes, if declared.
    public var contentLength: UInt64?
    /// The body. Reading throws ``ClientError`` if it is incomplete. It must be closed or read to its end; closing it
    /// early also closes the connection.
    public var body: any ByteSource

    /// Takes the body if exactly `count` bytes have arrived and complete it; otherwise returns nil and reads nothing.
    package mutating func takeArrived(_ count: Int) -> ArrivedBody? {
        if let arrived = body as? ArrivedBody {
            guard arrived.bytes.count == count else { return nil }
            body = EmptySource.shared
            return arrived
        }
        guard count > 0, let body = body as? ResponseBody, body.arrivedRest == count else {
            return nil
        }
        // Appended, because the initializer with a capacity is not specialized.
        var bytes: [UInt8] = []
        bytes.append(addingCapacity: count) { output in
            output.withUnsafeMutableBufferPointer { buffer, used in
                var span = UnsafeMutableRawBufferPointer(buffer).mutableBytes
                guard let read = try? body.read(into: &span) else { return }
                precondition(read == .bytes(count), "bytes that have arrived are read at once")
                used = count
            }
        }
        return bytes.isEmpty ? nil : body.arrived(bytes)
    }

    /// Reads the whole body, at most `limit` bytes, and closes it.
    public func collect(limit: Int) async throws(ClientError) -> [UInt8] {
        defer { body.close() }
        if let contentLength, contentLength > UInt64(limit) {
            throw ClientError(.tooLarge, "a body of \(contentLength) bytes, limit \(limit)")
        }
        var all: [UInt8] = []
        all.reserveCapacity(Int(contentLength ?? 0))
        var chunk = [UInt8](repeating: 0, count: min(max(Int(contentLength ?? 4096), 1), 65_536))
        while true {
            switch try read(into: &chunk) {
            case .bytes(let count):
                all += chunk[..<count]
                if all.count > limit {
                    throw ClientError(.tooLarge, "a body of more than \(limit) bytes")
                }
            case .end: return all
            case .wait:
                await Pause().wait { [body] resume in body.whenReadable(resume) }
                if Task.isCancelled { throw ClientError(.cancelled, "the caller went away") }
            }
        }
    }

    private func read(into chunk: inout [UInt8]) throws(ClientError) -> SourceRead {
        do {
            var span = chunk.mutableSpan
            var bytes = span.mutableBytes
            return try body.read(into: &bytes)
        } catch {
            throw error as? ClientError ?? ClientError(.connectionLost, "\(error)")
        }
    }
}

/// A response with its complete body.
public struct CollectedResponse: Sendable {
    public var status: Int
    /// Names in lower case.
    public var fields: HeaderFields
    public var body: [UInt8]

    /// Creates a response from collected parts.
    package init(status: Int, fields: HeaderFields, body: [UInt8]) {
        self.status = status
        self.fields = fields
        self.body = body
    }
}

/// An empty body.
package final class EmptySource: ByteSource, Sendable {
    /// Shared, because it has no state.
    package static let shared = EmptySource()

    private init() {}
    package func read(into buffer: inout MutableRawSpan) -> SourceRead { .end }
    package func whenReadable(_ resume: @escaping () -> Void) { resume() }
    package func close() {}
}
