import HTTPClient
import Wire

extension GCSBucket {
    public func copy(to name: String, _ plan: CopyPlan) async throws(BucketError) -> CommitResult {
        try checkOpen()
        var object: ObjectMetadata?
        switch plan.existing {
        case .absent: object = nil
        case .object(let known): object = known
        case .unknown: object = try await find(name)
        }
        for attempt in 1...GCSBucket.attempts {
            if plan.preconditions.evaluate(object, reading: false) != nil {
                throw BucketError(.preconditionFailed)
            }
            var conditions = GCSConditions(pinnedTo: object)
            if plan.preconditions.metageneration == nil { conditions.metageneration = nil }
            // Without conditions the last concurrent write wins. After two lost races the request is not pinned.
            if plan.preconditions.isEmpty, attempt > 2 { conditions = .none }
            do throws(BucketError) {
                let made = try await rewrite(plan, to: name, conditions, before: object?.generation ?? 0)
                return CommitResult(metadata: made, replaced: object != nil)
            } catch {
                guard [.preconditionFailed, .objectNotFound].contains(error.code) else { throw error }
                guard try await stat(plan.source.name).isSame(as: plan.source) else {
                    throw BucketError(.preconditionFailed)
                }
                if error.code == .objectNotFound { throw error }
            }
            object = try await find(name)
        }
        throw BucketError(.overloaded, "the object is being changed by others again and again")
    }

    /// Rewrites the source under another name. The service copies a large object to another location or storage class in
    /// several requests, each of which returns a token for the next one.
    /// - Parameter before: The generation of the existing object; 0 for none.
    private func rewrite(
        _ plan: CopyPlan, to name: String, _ conditions: GCSConditions, before: Int64
    ) async throws(BucketError) -> ObjectMetadata {
        let source = plan.source
        let attributes = plan.attributes(keepsTag: true)
        let generation = String(source.generation)
        let query =
            conditions.query + [
                ("sourceGeneration", generation), ("ifSourceGenerationMatch", generation),
                ("ifSourceMetagenerationMatch", String(source.metageneration)),
            ]
        let resource = GCSObject.resource(name, attributes, nil)
        let attempts = GCSRequests.Attempts()
        var token: String?
        do throws(BucketError) {
            // The service tells how far it is. Requests that copy less than 64 KiB are tolerated some times.
            var (copied, idle) = (UInt64(0), 0)
            while idle < 16 {
                let target = requests.rewrite(
                    source.name, to: name, query + (token.map { [("rewriteToken", $0)] } ?? []))
                let request = ClientRequest(
                    "POST", target, body: .bytes(resource), isRepeatable: conditions.generation != nil)
                request.fields.append("content-type", "application/json")
                request.waitLimit = GCSBucket.silenceLimit
                let response = try await requests.call(request, attempts)
                guard response.status == 200 else { throw requests.failure(response) }
                let json = (try? JSONReader.parse(response.body)) ?? .null
                if json["done"] == .boolean(true) {
                    return try await completed(json["resource"] ?? .null, source, name)
                }
                guard let next = json["rewriteToken"]?.text else { break }
                token = next
                let total = json["totalBytesRewritten"]?.text.flatMap { UInt64($0) } ?? 0
                let isProgress = total >= copied + 1 << 16 && total <= source.size
                if isProgress { copied = total }
                idle = isProgress ? 0 : idle + 1
            }
            throw BucketError(.unavailable, "the service does not finish the copy")
        } catch {
            // An earlier attempt may have made the copy.
            guard error.isUnsettled(after: attempts) || error.code == .preconditionFailed && attempts.count > 1,
                let now = try? await find(name), now.generation != before, now.metageneration == 1,
                now.size == source.size, now.crc32c == source.crc32c,
                now.attributes.areStored(from: attributes)
            else { throw error }
            return now
        }
    }

    /// The new object. Its bytes must be those of the source.
    private func completed(_ resource: JSONValue, _ source: ObjectMetadata, _ name: String)
        async throws(BucketError) -> ObjectMetadata
    {
        // Some servers return an incomplete object.
        let parsed = try? requests.metadata(resource, of: name)
        let made = if let parsed { parsed } else { try await stat(name) }
        guard made.size == source.size, made.crc32c == source.crc32c else {
            throw BucketError(otherBytes: "the service has made a copy with other bytes")
        }
        known.keep(made)
        return made
    }
}
