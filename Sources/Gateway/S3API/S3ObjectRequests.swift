import Buckets
import HTTPServer
import Wire

extension S3API {
    /// Parses a request on an object.
    func parseObject(
        _ operation: S3Operation, _ path: ArraySlice<UInt8>, _ route: Route, in bucket: Bucket,
        among buckets: ServedBuckets, _ context: RequestContext
    ) throws(Problem) -> ObjectOperation {
        let key = try S3Key(percentEncoded: path, in: bucket)
        try S3API.checkVersion(route.query)
        switch operation {
        case .getObject, .headObject: return try read(try key.readable(), operation, route, context)
        case .getAttributes, .getObjectACL, .getTagging:
            if operation == .getAttributes { context.s3.attributes = try ObjectAttributesRequest(context.s3.fields) }
            return .stat(try key.readable(), context.s3Conditions)
        case .deleteObject:
            guard case .refused = key else {
                return .delete(try key.writable(), try deletionConditions(context), isIdempotent: true)
            }
            return fixed(Response(status: 204), .delete, in: bucket)
        case .deleteTagging:
            _ = try key.readable()
            return fixed(Response(status: 204), .update, in: bucket)
        case .putObjectACL: return try putACL(.update, in: bucket, context)
        case .objectLock: throw S3Error.invalidRequest("Bucket is missing Object Lock Configuration")
        case .putObject:
            let name = try key.writable()
            return .upload(name, try UploadRequest(s3: context, name, bucket))
        case .copyObject: return try copy(to: try key.writable(), in: bucket, among: buckets, context)
        case .createUpload: return try createUpload(try key.writable(), in: bucket, context)
        case .uploadPart, .uploadPartCopy, .completeUpload, .abortUpload, .listParts:
            return try parts(operation, try key.writable(), route, in: bucket, among: buckets, context)
        default: throw S3Error.notImplemented
        }
    }

    /// A response that reveals nothing, for identified callers.
    func fixed(_ response: Response, _ kind: RequestedAccess.Kind, in bucket: Bucket, isDecided: Bool = false)
        -> ObjectOperation
    {
        .fixed(FixedResponse(response, RequestedAccess(kind, bucket: bucket.name, name: ""), isDecided: isDecided))
    }

    /// Checks that `versionId` is of the only version.
    private static func checkVersion(_ query: QueryParameters) throws(Problem) {
        guard let version = try query.single("versionId"), version != "null", !version.isEmpty else { return }
        throw S3Error.notFound("NoSuchVersion", "The specified version does not exist.")
    }

    private func read(_ name: ObjectName, _ operation: S3Operation, _ route: Route, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        var range = RangeRequest(context.s3.fields)
        range.comparesS3Tags = true
        if let text = try route.query.single("partNumber") {
            guard let number = Decimal.saturating(Array(text.utf8)[...]),
                (1...UInt64(PartPlan.maximumNumber)).contains(number)
            else {
                throw S3Error.invalidArgument(
                    "Part number must be an integer between 1 and 10000, inclusive", "partNumber", text)
            }
            if range.range != nil {
                throw S3Error.invalidRequest("Cannot specify both Range header and partNumber query parameter")
            }
            range.part = Int(number)
        }
        context.s3.overrides = try S3Overrides.fields(
            route.query, isSigned: context.s3.authentication.accessKeyID != nil)
        context.s3.range = range
        if operation == .headObject {
            guard let part = range.part else { return .stat(name, context.s3Conditions) }
            return .statPart(name, context.s3Conditions, number: part)
        }
        return .download(name, ReadRequest(range: range, conditions: context.s3Conditions))
    }

    /// The conditions of a deletion.
    /// - Throws: ``Problem`` with `InvalidArgument`.
    private func deletionConditions(_ context: RequestContext) throws(Problem) -> Conditions {
        let fields = context.s3.fields
        return try context.s3Conditions.adding(
            size: fields["x-amz-if-match-size"], modified: fields["x-amz-if-match-last-modified-time"], now: context.now
        )
    }

    /// Parses a change of an access control list: only the default one can be set.
    func putACL(_ kind: RequestedAccess.Kind, in bucket: Bucket, _ context: RequestContext) throws(Problem)
        -> ObjectOperation
    {
        guard context.s3.fields["x-amz-acl"] == "private", !context.exchange.head.hasLength else {
            throw S3Error.notImplemented
        }
        return fixed(Response(status: 200), kind, in: bucket)
    }

    // MARK: Copies

    private func copy(
        to name: ObjectName, in bucket: Bucket, among buckets: ServedBuckets, _ context: RequestContext
    ) throws(Problem) -> ObjectOperation {
        let source = try S3CopySource(context, among: buckets)
        let fields = context.s3.fields
        let directive = fields["x-amz-metadata-directive"] ?? "COPY"
        guard directive == "COPY" || directive == "REPLACE" else {
            throw S3Error.invalidArgument("Unknown metadata directive.", "x-amz-metadata-directive", directive)
        }
        try S3Fields.check(fields)
        var attributes: ObjectAttributes?
        if directive == "REPLACE" { attributes = try ObjectAttributes(s3: context) }
        let from = try source.key.readable()
        let isItself = source.bucket === bucket && BytewiseString.areEqual(from.value, name.value)
        if isItself {
            guard let attributes else {
                throw S3Error.invalidRequest(
                    "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, storage class, website redirect location or encryption attributes."
                )
            }
            let patch = AttributePatch(replacing: attributes)
            // Source and target are the same object.
            let conditions = try source.conditions.get().joined(with: try context.s3Conditions.get())
            return .patch(
                name, PatchRequest(conditions: Conditions(.success(conditions))) { (_) throws(Problem) in patch })
        }
        return .copy(
            name,
            CopyRequest(
                from, in: source.bucket, removesSource: false, sourceGeneration: nil,
                sourceConditions: source.conditions, context.s3Conditions,
                PatchRequest { (_) throws(Problem) in AttributePatch() }, attributes: attributes))
    }
}

/// The source of a copy.
struct S3CopySource {
    let bucket: Bucket
    let key: S3Key
    let conditions: Conditions

    /// Parses `x-amz-copy-source`: `[/]BUCKET/KEY[?versionId=null]`, percent-encoded.
    /// - Throws: ``Problem`` if it is malformed, or its bucket is unknown.
    init(_ context: RequestContext, among buckets: ServedBuckets) throws(Problem) {
        let text = context.s3.fields["x-amz-copy-source"] ?? ""
        // A plus sign is a space here, as in HTML forms.
        var rest = text.utf8.map { $0 == UInt8(ascii: "+") ? UInt8(ascii: " ") : $0 }[...]
        if rest.first == UInt8(ascii: "/") { rest = rest.dropFirst() }
        if let question = rest.lastIndex(of: UInt8(ascii: "?")),
            rest[question...].starts(with: "?versionId=".utf8)
        {
            let version = rest[question...].dropFirst("?versionId=".utf8.count)
            guard version.elementsEqual("null".utf8) else {
                throw S3Error.notFound("NoSuchVersion", "The specified version does not exist.")
            }
            rest = rest[..<question]
        }
        // Some clients encode the slash, too. Nothing is decoded twice.
        let isWhole = !rest.contains(UInt8(ascii: "/"))
        if isWhole, let decoded = try? PercentEncoding.decode(rest) { rest = decoded }
        guard let slash = rest.firstIndex(of: UInt8(ascii: "/")), slash > rest.startIndex,
            rest[slash...].count > 1,
            let name = isWhole ? rest[..<slash] : try? PercentEncoding.decode(rest[..<slash])
        else {
            throw S3Error.invalidArgument(
                "Copy Source must mention the source bucket and key: sourcebucket/sourcekey", "x-amz-copy-source", text)
        }
        guard let bucket = buckets[String(decoding: name, as: UTF8.self)] else {
            throw Problem(.bucketNotFound, "The specified bucket does not exist")
        }
        self.bucket = bucket
        let path = rest[(slash + 1)...]
        key = try isWhole ? S3Key(bytes: path, in: bucket) : S3Key(percentEncoded: path, in: bucket)
        conditions = Conditions(s3: context, prefix: "x-amz-copy-source-")
    }
}

extension AttributePatch {
    /// The patch after which an object has these properties and no others.
    init(replacing attributes: ObjectAttributes) {
        self.init()
        func change(_ value: String?) -> Change { value.map { .set($0) } ?? .remove }
        contentType = change(attributes.contentType)
        cacheControl = change(attributes.cacheControl)
        contentDisposition = change(attributes.contentDisposition)
        contentEncoding = change(attributes.contentEncoding)
        contentLanguage = change(attributes.contentLanguage)
        clearCustomMetadata = true
        customMetadata = attributes.customMetadata.mapValues { $0 }
    }
}

extension RequestHead {
    /// Whether a body of at least one byte may follow.
    var hasLength: Bool { hasBody && contentLength != 0 }
}
