import Buckets
import Wire

/// Deletions of many objects in one request.
struct DeletionRequest {
    /// One object to delete.
    struct Entry {
        /// As the client has written it.
        var text: String
        var name: Result<ObjectName, Problem>
        var conditions: Preconditions
    }

    /// The maximum number of names.
    static let maximumNames = 1000
    /// The maximum size of the body in bytes.
    static let maximumBytes = 2 << 20

    /// Whether a missing object counts as deleted, whatever the conditions.
    var isIdempotent = false
    /// Parses the body.
    let decode: @Sendable ([UInt8], Bucket) throws(Problem) -> [Entry]
}

extension OperationHandler {
    /// Deletes objects, up to 16 at once. Each one is authorized by itself and has its own result.
    func deleteMany(_ request: DeletionRequest) async throws(Problem) -> OperationResult {
        let entries = try request.decode(try await context.collect(limit: DeletionRequest.maximumBytes), bucket)
        let deletions = Deletions(self, entries, isIdempotent: request.isIdempotent)
        await withTaskGroup(of: Void.self) { group in
            for _ in 0..<min(16, entries.count) { group.addTask { await deletions.run() } }
        }
        if context.exchange.isClientGone { throw RequestContext.clientGone }
        let problems = deletions.results.compactMap(\.problem)
        if let first = problems.first {
            context.record.cause =
                "\(problems.count) of \(entries.count) deletions failed, the first with: \(first.cause ?? first.detail)"
        }
        return .deletions(deletions.results)
    }
}

/// The deletions of one request.
///
/// Safety: confined to the request's loop, which is the executor of its tasks.
private final class Deletions: @unchecked Sendable {
    private let handler: OperationHandler
    private let entries: [DeletionRequest.Entry]
    private let isIdempotent: Bool
    private var next = 0
    private(set) var results: [(name: String, problem: Problem?)]

    init(_ handler: OperationHandler, _ entries: [DeletionRequest.Entry], isIdempotent: Bool) {
        self.handler = handler
        self.isIdempotent = isIdempotent
        self.entries = entries
        results = entries.map { ($0.text, nil) }
    }

    /// Deletes entries until none is left or the client has disconnected.
    func run() async {
        while next < entries.count, !handler.context.exchange.isClientGone {
            let index = next
            next += 1
            do throws(Problem) {
                try await delete(entries[index])
            } catch {
                results[index].problem = error
            }
        }
    }

    private func delete(_ entry: DeletionRequest.Entry) async throws(Problem) {
        let name = try entry.name.get()
        let (context, bucket) = (handler.context, handler.bucket)
        let authorizer = Authorizer(
            context, bucket, RequestedAccess(.delete, bucket: bucket.name, name), nil,
            parameters: handler.authorizer.parameters)
        let single = OperationHandler(context: context, authorizer: authorizer, bucket: bucket)
        _ = try await single.delete(
            name, entry.conditions.isEmpty ? .none : Conditions(.success(entry.conditions)), isIdempotent: isIdempotent)
    }
}
