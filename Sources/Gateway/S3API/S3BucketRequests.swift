import Buckets
import HTTPServer
import Wire
import XML

extension S3API {
    /// Parses a request on a bucket.
    func parseBucket(_ operation: S3Operation, _ route: Route, in bucket: Bucket, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        let isIdentified = context.caller.principal != nil
        switch operation {
        case .listObjects:
            if let type = try route.query.single("list-type") {
                throw S3Error.invalidArgument("Invalid List Type specified in Request", "list-type", type)
            }
            return try list(.first, route, in: bucket, context)
        case .listObjectsV2: return try list(.second, route, in: bucket, context)
        case .listVersions: return try list(.versions, route, in: bucket, context)
        case .headBucket:
            var response = Response(status: 200)
            response.head.fields.append("x-amz-bucket-region", settings.shownRegion)
            return fixed(response, .list, in: bucket, isDecided: !isIdentified)
        case .getLocation:
            var xml = XMLWriter()
            let region = settings.shownRegion
            xml.begin("LocationConstraint", namespace: S3API.namespace)
            xml.text(region == "us-east-1" ? "" : region)
            xml.end("LocationConstraint")
            return fixed(Response(status: 200, xml: xml), .list, in: bucket, isDecided: !isIdentified)
        case .getBucketACL:
            return fixed(Response(status: 200, xml: S3API.acl(context)), .list, in: bucket, isDecided: true)
        case .deleteObjects: return try deleteMany(in: bucket, context)
        case .listUploads: return try listUploads(route, in: bucket, context)
        case .postObject: return try post(in: bucket, context)
        default: break
        }
        guard isIdentified else { throw S3Error.accessDenied("an anonymous caller reads no setting") }
        switch operation {
        case .createBucket:
            throw Problem(
                .unauthorized,
                "Your previous request to create the named bucket succeeded and you already own it.",
                cause: "the bucket is in the configuration",
                dialect: DialectError(
                    status: 409, code: "BucketAlreadyOwnedByYou", members: [("BucketName", bucket.name)]))
        case .deleteBucket:
            throw S3Error.accessDenied(
                "the bucket is in the configuration", "Buckets are removed in the gateway's configuration.")
        case .putBucketACL: return try putACL(.update, in: bucket, context)
        case .deleteBucketSetting: return fixed(Response(status: 204), .update, in: bucket)
        case .getBucketSetting: return fixed(try S3API.setting(context.s3.setting), .list, in: bucket)
        default: throw S3Error.notImplemented
        }
    }

    /// The response to a request for a setting that no bucket has.
    private static func setting(_ name: String) throws(Problem) -> Response {
        switch name {
        case "versioning": return empty("VersioningConfiguration")
        case "notification": return empty("NotificationConfiguration")
        case "logging": return empty("BucketLoggingStatus")
        case "accelerate": return empty("AccelerateConfiguration")
        case "requestPayment":
            var xml = XMLWriter()
            xml.begin("RequestPaymentConfiguration", namespace: namespace)
            xml.element("Payer", "BucketOwner")
            xml.end("RequestPaymentConfiguration")
            return Response(status: 200, xml: xml)
        case "policy", "policyStatus":
            throw S3Error.notFound("NoSuchBucketPolicy", "The bucket policy does not exist")
        case "cors":
            throw S3Error.notFound("NoSuchCORSConfiguration", "The CORS configuration does not exist")
        case "lifecycle":
            throw S3Error.notFound("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist")
        case "tagging": throw S3Error.notFound("NoSuchTagSet", "The TagSet does not exist")
        case "website":
            throw S3Error.notFound(
                "NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration")
        case "encryption":
            throw S3Error.notFound(
                "ServerSideEncryptionConfigurationNotFoundError",
                "The server side encryption configuration was not found")
        case "replication":
            throw S3Error.notFound(
                "ReplicationConfigurationNotFoundError", "The replication configuration was not found")
        case "object-lock":
            throw S3Error.notFound(
                "ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket")
        case "ownershipControls":
            throw S3Error.notFound(
                "OwnershipControlsNotFoundError", "The bucket ownership controls were not found")
        case "publicAccessBlock":
            throw S3Error.notFound(
                "NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found")
        default: throw S3Error.notImplemented
        }
    }

    private static func empty(_ name: StaticString) -> Response {
        var xml = XMLWriter()
        xml.begin(name, namespace: namespace)
        xml.end(name)
        return Response(status: 200, xml: xml)
    }

    /// The access control list of everything: its owner, the caller, may do everything.
    static func acl(_ context: RequestContext) -> XMLWriter {
        var xml = XMLWriter()
        xml.begin("AccessControlPolicy", namespace: namespace)
        xml.writeOwner("Owner", context)
        xml.begin("AccessControlList")
        xml.begin("Grant")
        xml.raw(
            "<Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\">")
        let uid = context.caller.principal?.uid ?? ""
        xml.element("ID", S3API.ownerID(uid))
        xml.element("DisplayName", uid)
        xml.end("Grantee")
        xml.element("Permission", "FULL_CONTROL")
        xml.end("Grant")
        xml.end("AccessControlList")
        xml.end("AccessControlPolicy")
        return xml
    }

    // MARK: Many deletions

    private func deleteMany(in bucket: Bucket, _ context: RequestContext) throws(Problem) -> ObjectOperation {
        let expected = try S3BodyDigests(context)
        guard expected.isPresent else {
            throw S3Error.invalidRequest("Missing required header for this request: Content-MD5 or a checksum")
        }
        let (request, now) = (context.s3, context.now)
        return .deleteMany(
            DeletionRequest(isIdempotent: true) { (text, bucket) throws(Problem) in
                try expected.verify(text)
                return try S3API.deletions(text, in: bucket, request, now: now)
            })
    }

    /// Parses `<Delete><Object><Key/>…</Object><Quiet/></Delete>`.
    private static func deletions(_ text: [UInt8], in bucket: Bucket, _ request: S3Request, now: Int64)
        throws(Problem) -> [DeletionRequest.Entry]
    {
        let parser = S3DeletionParser()
        guard S3XML.isShort(text, tags: 16 * DeletionRequest.maximumNames) else { throw S3Error.malformedXML }
        do throws(XMLReader.Malformed) {
            try XMLReader.read(S3XML.withReferences(text), end: parser.end, parser.leaf)
        } catch {
            throw S3Error.malformedXML
        }
        guard !parser.isMalformed, parser.isOfDeletion,
            (1...DeletionRequest.maximumNames).contains(parser.objects.count)
        else {
            throw S3Error.malformedXML
        }
        request.isQuiet = parser.isQuiet
        return parser.objects.map { object in
            var conditions = Preconditions()
            if let tag = object.tag {
                conditions.comparesS3Tags = true
                conditions.ifMatch = tag == "*" ? .any : .tags([tag])
            }
            let name = Result { () throws(Problem) -> ObjectName in
                if let version = object.version, version != "null" {
                    throw S3Error.notFound("NoSuchVersion", "The specified version does not exist.")
                }
                conditions = try Conditions(.success(conditions)).adding(
                    size: object.size, modified: object.modified, now: now
                ).get()
                // A refused key has no object, so it counts as deleted.
                return try S3Key(object.key, in: bucket).readable()
            }
            return DeletionRequest.Entry(text: object.key, name: name, conditions: conditions)
        }
    }
}

/// Collects the objects of a request for many deletions.
private final class S3DeletionParser {
    struct Object {
        var key = ""
        var version: String?
        var tag: String?
        var size: String?
        var modified: String?
    }
    private(set) var objects: [Object] = []
    private(set) var isQuiet = false
    private(set) var isMalformed = false
    /// Whether the last element that ended, which is the root at last, is `Delete`.
    private(set) var isOfDeletion = false
    private var object = Object()
    private var hasKey = false

    func leaf(_ parent: String, _ name: String, _ text: String) {
        switch (parent, name) {
        case ("Object", "Key"):
            isMalformed = isMalformed || hasKey || text.isEmpty
            hasKey = true
            object.key = S3XML.restored(text)
        case ("Object", "VersionId"): object.version = text
        case ("Object", "ETag"): object.tag = text.replacing("\"", with: "")
        case ("Object", "Size"): object.size = text
        case ("Object", "LastModifiedTime"): object.modified = text
        case ("Delete", "Quiet"): isQuiet = text == "true"
        default: break
        }
    }

    func end(_ name: String) {
        isOfDeletion = name == "Delete"
        guard name == "Object" else { return }
        isMalformed = isMalformed || !hasKey || objects.count > DeletionRequest.maximumNames
        if objects.count <= DeletionRequest.maximumNames { objects.append(object) }
        object = Object()
        hasKey = false
    }
}
