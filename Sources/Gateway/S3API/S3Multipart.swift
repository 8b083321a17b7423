import Buckets
import HTTPServer
import Wire
import XML

/// The checksum that the creation of a multipart upload asks for.
struct WantedChecksum {
    let algorithm: ChecksumAlgorithm
    let isComposite: Bool

    /// Parses `x-amz-checksum-algorithm` and `x-amz-checksum-type`.
    /// - Throws: ``Problem`` with `InvalidRequest`.
    init?(_ fields: HeaderFields) throws(Problem) {
        guard let name = fields["x-amz-checksum-algorithm"] else { return nil }
        guard let algorithm = ChecksumAlgorithm(rawValue: name.asciiLowercased()) else {
            throw S3Error.invalidRequest("Checksum algorithm provided is unsupported.")
        }
        self.algorithm = algorithm
        switch fields["x-amz-checksum-type"]?.asciiLowercased() {
        case nil: isComposite = algorithm != .crc64nvme
        case "composite" where algorithm != .crc64nvme: isComposite = true
        case "full_object" where ![.sha1, .sha256].contains(algorithm): isComposite = false
        default:
            throw S3Error.invalidRequest(
                "The checksum type can't be used with the \(algorithm.rawValue) checksum algorithm.")
        }
    }

    var type: String { isComposite ? "COMPOSITE" : "FULL_OBJECT" }

    /// As kept with the upload.
    var text: String { "\(algorithm.rawValue) \(type)" }

    init?(text: String) {
        let words = text.split(separator: " ")
        guard words.count == 2, let algorithm = ChecksumAlgorithm(rawValue: String(words[0])) else { return nil }
        self.algorithm = algorithm
        isComposite = words[1] == "COMPOSITE"
    }
}

extension S3API {
    /// Parses the creation of a multipart upload.
    func createUpload(_ name: ObjectName, in bucket: Bucket, _ context: RequestContext) throws(Problem)
        -> ObjectOperation
    {
        guard context.caller.principal != nil else {
            throw S3Error.accessDenied("nobody would own an anonymous caller's upload")
        }
        try S3Fields.check(context.s3.fields)
        let wanted = try WantedChecksum(context.s3.fields)
        context.s3.wanted = wanted
        let upload = UploadRequest(
            try ObjectAttributes(s3: context), ExpectedDigests(), size: nil, context.s3Conditions)
        var request = PartsRequest(dialect: .s3, token: [], action: .create(upload) { $0 })
        request.metadata = wanted?.text
        return .parts(name, request)
    }

    /// Parses a request on a multipart upload.
    func parts(
        _ operation: S3Operation, _ name: ObjectName, _ route: Route, in bucket: Bucket,
        among buckets: ServedBuckets, _ context: RequestContext
    ) throws(Problem) -> ObjectOperation {
        let token = route.query.all.first { $0.name == "uploadId" }?.value ?? []
        func request(_ action: PartsRequest.Action) -> ObjectOperation {
            .parts(name, PartsRequest(dialect: .s3, token: token, action: action))
        }
        switch operation {
        case .uploadPart:
            let number = try S3API.partNumber(route.query)
            let content = try S3Content(
                context, maximum: min(PartsRequest.maximumPart, bucket.maximumObjectSize))
            guard let size = content.size else { throw S3Error.noLength }
            return request(
                .put(
                    number,
                    PartContent(size: size, digests: content.digests, checksum: content.checksum, body: content.body)))
        case .uploadPartCopy:
            let source = try S3CopySource(context, among: buckets)
            let copy = CopyRequest(
                try source.key.readable(), in: source.bucket, removesSource: false, sourceGeneration: nil,
                sourceConditions: source.conditions, .none, PatchRequest { (_) throws(Problem) in AttributePatch() })
            return request(.copy(try S3API.partNumber(route.query), copy, try S3API.copyRange(context.s3.fields)))
        case .completeUpload:
            let expected = try S3BodyDigests(context, isOfObject: true)
            let size = try S3API.objectSize(context.s3.fields)
            let checksum = try S3Checksums.declared(context.s3.fields, ofParts: true)
            return request(
                .complete(context.s3Conditions) { (text) throws(Problem) in
                    try expected.verify(text)
                    var selection = try S3API.selection(text)
                    selection.size = size
                    selection.checksum = checksum
                    return selection
                })
        case .abortUpload: return request(.cancel)
        case .listParts:
            let limit = try S3ListQuery.limit(try route.query.single("max-parts"), "max-parts")
            let after = try S3ListQuery.limit(
                try route.query.single("part-number-marker") ?? "0", "part-number-marker",
                most: UInt64(PartPlan.maximumNumber))
            context.s3.page = (after, limit)
            return request(.list(after: after, limit: max(1, limit)))
        default: throw S3Error.notImplemented
        }
    }

    private static func partNumber(_ query: QueryParameters) throws(Problem) -> Int {
        let text = try query.single("partNumber") ?? ""
        guard let number = Decimal.saturating(Array(text.utf8)[...]),
            (1...UInt64(PartPlan.maximumNumber)).contains(number)
        else {
            throw S3Error.invalidArgument(
                "Part number must be an integer between 1 and 10000, inclusive", "partNumber", text)
        }
        return Int(number)
    }

    /// Parses `x-amz-copy-source-range`: `bytes=FIRST-LAST`.
    private static func copyRange(_ fields: HeaderFields) throws(Problem) -> ClosedRange<UInt64>? {
        guard let text = fields["x-amz-copy-source-range"] else { return nil }
        let words = text.split(separator: "-", omittingEmptySubsequences: false)
        guard text.hasPrefix("bytes="), words.count == 2,
            let first = Decimal.parse(Array(words[0].utf8.dropFirst("bytes=".utf8.count))[...]),
            let last = Decimal.parse(Array(words[1].utf8)[...]), first <= last
        else {
            throw S3Error.invalidArgument(
                "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets of the first and last bytes to copy",
                "x-amz-copy-source-range", text)
        }
        return first...last
    }

    private static func objectSize(_ fields: HeaderFields) throws(Problem) -> UInt64? {
        guard let text = fields["x-amz-mp-object-size"] else { return nil }
        guard let size = Decimal.parse(Array(text.utf8)[...]) else {
            throw S3Error.invalidRequest("Value for x-amz-mp-object-size header is invalid.")
        }
        return size
    }

    /// Parses `<CompleteMultipartUpload><Part><PartNumber/><ETag/>…</Part></CompleteMultipartUpload>`.
    static func selection(_ text: [UInt8]) throws(Problem) -> PartsSelection {
        let parser = S3SelectionParser()
        guard S3XML.isShort(text, tags: 32 * PartPlan.maximumNumber) else { throw S3Error.malformedXML }
        do throws(XMLReader.Malformed) {
            try XMLReader.read(text, end: parser.end, parser.leaf)
        } catch {
            throw S3Error.malformedXML
        }
        if let problem = parser.problem { throw problem }
        guard !parser.selection.parts.isEmpty else { throw S3Error.malformedXML }
        return parser.selection
    }

    // MARK: Responses

    func render(_ report: PartsReport, of route: Route, in bucket: Bucket, _ context: RequestContext) -> Response {
        switch report {
        case .created(let token, _, _):
            var xml = XMLWriter()
            xml.begin("InitiateMultipartUploadResult", namespace: S3API.namespace)
            xml.element("Bucket", bucket.name)
            xml.element("Key", S3API.key(of: route))
            xml.element("UploadId", token)
            xml.end("InitiateMultipartUploadResult")
            var response = Response(status: 200, xml: xml)
            if let wanted = context.s3.wanted {
                response.head.fields.append("x-amz-checksum-algorithm", wanted.algorithm.rawValue.asciiUppercased())
                response.head.fields.append("x-amz-checksum-type", wanted.type)
            }
            return response
        case .kept(let part):
            guard context.s3.operation == .uploadPartCopy else {
                var response = Response(status: 200)
                response.head.fields.append("etag", "\"\(part.etag)\"")
                if let checksum = part.checksum {
                    response.head.fields.append(
                        name: "x-amz-checksum-\(checksum.algorithm.rawValue)", Base64.encode(checksum.value))
                }
                return response
            }
            var xml = XMLWriter()
            xml.begin("CopyPartResult", namespace: S3API.namespace)
            xml.element("LastModified", S3API.time(part.updated))
            xml.element("ETag", "\"\(part.etag)\"")
            xml.end("CopyPartResult")
            return Response(status: 200, xml: xml)
        case .listed(let parts, let isLast): return listed(parts, isLast: isLast, route, in: bucket, context)
        }
    }

    private func listed(
        _ parts: [Part], isLast: Bool, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) -> Response {
        let (after, limit) = context.s3.page
        var xml = XMLWriter(reserving: 512 + 200 * parts.count)
        xml.begin("ListPartsResult", namespace: S3API.namespace)
        xml.element("Bucket", bucket.name)
        xml.element("Key", S3API.key(of: route))
        xml.element("UploadId", (try? route.query.single("uploadId")) ?? "")
        xml.writeOwner("Initiator", context)
        xml.writeOwner("Owner", context)
        xml.element("StorageClass", "STANDARD")
        xml.element("PartNumberMarker", after)
        if let last = parts.last { xml.element("NextPartNumberMarker", last.number) }
        xml.element("MaxParts", limit)
        xml.element("IsTruncated", isLast || limit == 0 ? "false" : "true")
        for part in parts.prefix(limit) {
            xml.begin("Part")
            xml.element("PartNumber", part.number)
            xml.element("LastModified", S3API.time(part.updated))
            xml.element("ETag", "\"\(part.etag)\"")
            xml.element("Size", part.size)
            if let checksum = part.checksum { xml.element(checksum.algorithm.element, Base64.encode(checksum.value)) }
            xml.end("Part")
        }
        xml.end("ListPartsResult")
        return Response(status: 200, xml: xml)
    }

    func completed(_ object: ObjectMetadata, in bucket: Bucket, _ context: RequestContext) -> Response {
        var xml = XMLWriter()
        xml.begin("CompleteMultipartUploadResult", namespace: S3API.namespace)
        let origin = "\(context.exchange.isSecure ? "https" : "http")://\(context.exchange.head.authority ?? "")"
        xml.element("Location", "\(origin)\(context.record.path)")
        xml.element("Bucket", bucket.name)
        xml.element("Key", object.name)
        xml.element("ETag", object.quotedS3Tag)
        object.attributes.system.s3?.checksum?.write(to: &xml, parts: object.partCount)
        xml.end("CompleteMultipartUploadResult")
        return Response(status: 200, xml: xml)
    }

    /// The decoded key of a route.
    static func key(of route: Route) -> String {
        guard case .named(let path) = route.path, let bytes = try? PercentEncoding.decode(path) else { return "" }
        return String(decoding: bytes, as: UTF8.self)
    }
}

/// Collects the parts of a completion.
private final class S3SelectionParser {
    private(set) var selection = PartsSelection()
    private(set) var problem: Problem?
    private var number: Int?
    private var tag: String?
    private var checksum: PartChecksum?

    func leaf(_ parent: String, _ name: String, _ text: String) {
        guard parent == "Part" else { return }
        switch name {
        case "PartNumber": number = Int(text.filter { $0 != " " })
        case "ETag": tag = text.replacing("\"", with: "")
        default:
            guard let algorithm = ChecksumAlgorithm.allCases.first(where: { name == "\($0.element)" }) else { return }
            guard let value = Base64.decode(Array(text.utf8)[...]), value.count == algorithm.size else {
                problem = problem ?? S3Error.malformedXML
                return
            }
            checksum = PartChecksum(algorithm, value)
        }
    }

    func end(_ name: String) {
        guard name == "Part", problem == nil else { return }
        guard let number, let tag, selection.parts.count < PartPlan.maximumNumber else {
            problem = S3Error.malformedXML
            return
        }
        guard (1...PartPlan.maximumNumber).contains(number) else {
            problem = S3Error.invalidArgument(
                "Part number must be an integer between 1 and 10000, inclusive", "partNumber", "\(number)")
            return
        }
        if let before = selection.parts.last, before.number >= number {
            problem = S3Error.bad(
                "InvalidPartOrder",
                "The list of parts was not in ascending order. The parts list must be specified in order by part number."
            )
            return
        }
        selection.parts.append(SelectedPart(number, etag: tag))
        selection.checksums[number] = checksum
        (self.number, self.tag, checksum) = (nil, nil, nil)
    }
}
