import Buckets

/// Authorizes and performs one request's operation on a bucket. Confined to the request's loop.
struct OperationHandler {
    let context: RequestContext
    let authorizer: Authorizer
    let bucket: Bucket

    /// - Throws: ``Problem`` for every failure. A failed change is not visible.
    func perform(_ operation: ObjectOperation) async throws(Problem) -> OperationResult {
        if case .download(let name, let request) = operation {
            return try await download(name, request)
        }
        return try await performRarer(operation)
    }

    // Not inlined, so that the task of every request does not reserve memory for these.
    @inline(never)
    private func performRarer(_ operation: ObjectOperation) async throws(Problem) -> OperationResult {
        switch operation {
        case .download: preconditionFailure("it is performed directly")
        case .stat(let name, let conditions): try await stat(name, conditions)
        case .statPart(let name, let conditions, let number): try await stat(name, conditions, part: number)
        case .upload(let name, let request): try await upload(name, request)
        case .describedUpload(_, let read): try await perform(try await read(context))
        case .form(let read): try await perform(form: read)
        case .createSession(let name, let request, let creation): try await createSession(name, request, creation)
        case .session(let request): try await session(request)
        case .parts(let name, let request): try await parts(name, request)
        case .patch(let name, let request): try await patch(name, request)
        case .delete(let name, let conditions, let isIdempotent):
            try await delete(name, conditions, isIdempotent: isIdempotent)
        case .copy(let name, let request): try await copy(name, request)
        case .deleteMany(let request): try await deleteMany(request)
        case .statWithToken(let name, let conditions): try await statWithToken(name, conditions)
        case .changeTokens(let name, let change): try await changeTokens(name, change)
        case .list(let request): try await list(request)
        case .watch(let request): .response(try await watch(request))
        case .sign(let name, let request): try await sign(name, request)
        case .fixed(let fixed): try await respond(fixed)
        case .listUploads(let request): try await listUploads(request)
        }
    }

    private func perform(form read: (RequestContext) async throws(Problem) -> ObjectOperation)
        async throws(Problem) -> OperationResult
    {
        let operation = try await read(context)
        let access = operation.access(in: bucket)
        context.record.operation = access.kind
        let authorizer = Authorizer(context, bucket, access, nil, parameters: authorizer.parameters)
        return try await OperationHandler(context: context, authorizer: authorizer, bucket: bucket).perform(operation)
    }

    private func respond(_ fixed: FixedResponse) async throws(Problem) -> OperationResult {
        if fixed.isDecided { try authorizer.require(try await authorizer.evaluate()) }
        return .response(fixed.response)
    }
}
