import Buckets
import HTTPServer
import Wire

extension RequestContext {
    /// The conditions in the request's header fields.
    var conditions: Conditions {
        guard Preconditions.mayBe(in: fields) else { return .none }
        do throws(Problem) {
            let conditions = try Preconditions(fields, now: now)
            return conditions.isEmpty ? .none : Conditions(.success(conditions))
        } catch {
            return Conditions(.failure(error))
        }
    }
}

extension Preconditions {
    /// The conditions that can fail for a response about metadata. Such a response has no entity tag, because the
    /// object's tag identifies its bytes. So the result is never 304.
    var forMetadata: Preconditions {
        var conditions = self
        conditions.ifNoneMatch = nil
        conditions.ifModifiedSince = nil
        return conditions
    }
}

extension UploadRequest {
    /// - Throws: ``Problem``: `payload-too-large` if the declared size is, `invalid-argument` for an invalid field.
    convenience init(_ context: RequestContext, _ name: ObjectName, _ bucket: Bucket)
        throws(Problem)
    {
        let head = context.exchange.head
        try self.init(
            context, name, bucket, length: head.hasBody ? head.contentLength : 0, try ExpectedDigests(head.fields))
    }

    /// - Parameters:
    ///   - length: The declared size of the object in bytes, if there is one.
    ///   - digests: Of the object.
    convenience init(
        _ context: RequestContext, _ name: ObjectName, _ bucket: Bucket, length size: UInt64?,
        _ digests: ExpectedDigests
    ) throws(Problem) {
        let head = context.exchange.head
        if head.fields.contains("content-range") {
            throw Problem(.invalidArgument, "An upload replaces the whole object: Content-Range is not supported.")
        }
        if let size, size > bucket.maximumObjectSize {
            throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
        }
        var attributes = try ObjectAttributes(head.fields, name: name)
        // The type of a resumable upload's request, not of an object.
        if let type = attributes.contentType, UploadDraft.isPartialUpload(type) {
            attributes.contentType = MediaTypes.type(of: name)
        }
        self.init(attributes, digests, size: size, context.conditions)
    }
}

extension PatchRequest {
    /// A JSON Merge Patch.
    init(_ context: RequestContext) {
        self.init(
            conditions: context.conditions, problem: PatchRequest.problem(context.fields)
        ) { (text) throws(Problem) in try AttributePatch(mergePatch: text) }
    }

    private static func problem(_ fields: HeaderFields) -> Problem? {
        if let type = fields["content-type"], !isJSON(type) {
            return Problem(
                .unsupportedMediaType, "A patch is one of \(types).",
                field: ("accept-patch", types))
        }
        for (name, isGiven) in [
            ("Content-MD5", fields.contains("content-md5")),
            ("Content-Digest", fields.contains("content-digest")),
            ("Repr-Digest", fields.contains("repr-digest")),
        ] where isGiven {
            return Problem(
                .invalidArgument, "\(name) is verified of an upload only, not of a patch.")
        }
        return nil
    }

    /// The media types of a patch.
    static let types = "application/merge-patch+json, application/json"

    private static func isJSON(_ type: String) -> Bool {
        ASCII.isMediaType(type, "application/json") || ASCII.isMediaType(type, "application/merge-patch+json")
    }
}

extension ListRequest {
    /// - Parameter folder: The encoded path of a folder with its final slash, empty for the root; nil without one.
    convenience init(bucket: String, folder path: ArraySlice<UInt8>?, _ parameters: QueryParameters)
        throws(Problem)
    {
        let query = try Query(parameters)
        var prefix = query.prefix ?? ""
        if let path, !path.isEmpty {
            if query.prefix != nil {
                throw Problem(.invalidArgument, "prefix is given by the path already.")
            }
            prefix = try ListRequest.decode(path)
        }
        let isDelimited = query.isDelimited ?? (path != nil)
        var after: String?
        if let token = query.pageToken {
            after = PageToken.decode(token, bucket: bucket, prefix: prefix, isDelimited: isDelimited)
            guard after != nil else {
                throw Problem(
                    .invalidArgument,
                    "pageToken is damaged, or of another bucket, prefix or delimiter.")
            }
        }
        let list = ListQuery(
            prefix: prefix, delimited: isDelimited, limit: query.maxResults ?? 1000,
            withProperties: query.isFull ?? false)
        self.init(list, after: after, wantsSequence: true)
    }

    private static func decode(_ path: ArraySlice<UInt8>) throws(Problem) -> String {
        do throws(NameError) {
            let bytes = try ObjectName.decode(path)
            if bytes.count > ObjectName.maximumBytes {
                throw NameError(.tooLong, at: ObjectName.maximumBytes)
            }
            for (offset, byte) in bytes.enumerated() {
                if byte == 0 { throw NameError(.nul, at: offset) }
                if byte == 0x0a || byte == 0x0d { throw NameError(.lineBreak, at: offset) }
            }
            return try ObjectName.text(bytes)
        } catch {
            throw Problem(error)
        }
    }
}
