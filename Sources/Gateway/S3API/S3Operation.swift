import Wire

/// The operations of the S3 API, by their names in its reference. The raw value is the name in logs.
enum S3Operation: String {
    case listBuckets = "ListBuckets"
    case assumeRole = "AssumeRoleWithWebIdentity"
    // Buckets.
    case headBucket = "HeadBucket"
    case createBucket = "CreateBucket"
    case deleteBucket = "DeleteBucket"
    case getLocation = "GetBucketLocation"
    case listObjects = "ListObjects"
    case listObjectsV2 = "ListObjectsV2"
    case listVersions = "ListObjectVersions"
    case listUploads = "ListMultipartUploads"
    case deleteObjects = "DeleteObjects"
    case postObject = "PostObject"
    /// A setting of a bucket that is always the same.
    case getBucketSetting = "GetBucketSetting"
    case putBucketACL = "PutBucketAcl"
    case deleteBucketSetting = "DeleteBucketSetting"
    case getBucketACL = "GetBucketAcl"
    // Objects.
    case getObject = "GetObject"
    case headObject = "HeadObject"
    case putObject = "PutObject"
    case copyObject = "CopyObject"
    case deleteObject = "DeleteObject"
    case getAttributes = "GetObjectAttributes"
    case getObjectACL = "GetObjectAcl"
    case putObjectACL = "PutObjectAcl"
    case getTagging = "GetObjectTagging"
    case deleteTagging = "DeleteObjectTagging"
    /// Retention or a legal hold, which need a setting that buckets do not have.
    case objectLock = "ObjectLock"
    // Multipart uploads.
    case createUpload = "CreateMultipartUpload"
    case uploadPart = "UploadPart"
    case uploadPartCopy = "UploadPartCopy"
    case completeUpload = "CompleteMultipartUpload"
    case abortUpload = "AbortMultipartUpload"
    case listParts = "ListParts"
    /// A known operation that is not supported.
    case notImplemented = "NotImplemented"
}

extension S3Operation {
    /// Whether an anonymous caller is refused before anything else.
    var needsIdentity: Bool {
        switch self {
        case .notImplemented, .putBucketACL, .putObjectACL, .deleteTagging, .deleteBucketSetting, .getBucketSetting,
            .objectLock:
            true
        default: false
        }
    }

    /// The parameters that select an operation. A request with one that its operation does not have must not act on the
    /// object: the body of `PUT ?tagging` is not an object.
    private static let selecting: Set<BytewiseString> = [
        "abac", "accelerate", "acl", "analytics", "annotation", "attributes", "cors", "delete", "encryption",
        "intelligent-tiering",
        "inventory", "legal-hold", "lifecycle", "location", "logging", "metadataConfiguration",
        "metadataInventoryTable", "metadataJournalTable", "metadataTable", "metrics", "notification", "object-lock",
        "ownershipControls", "policy", "policyStatus", "publicAccessBlock", "renameObject", "replication",
        "requestPayment", "restore", "retention", "select", "session", "tagging", "torrent", "uploadId", "uploads",
        "versioning", "versions", "website",
    ]

    /// The settings of buckets that clients may read and delete.
    private static let settings: Set<BytewiseString> = [
        "policy", "cors", "lifecycle", "tagging", "website", "encryption", "replication", "ownershipControls",
        "publicAccessBlock",
    ]
    /// The settings of buckets that clients may only read.
    private static let fixedSettings: Set<BytewiseString> = [
        "object-lock", "policyStatus", "notification", "logging", "accelerate", "requestPayment", "versioning",
    ]

    /// The operation of a request; nil if its method has none.
    /// - Parameter setting: Receives the parameter that selected a setting.
    init?(_ method: HTTPMethod?, _ path: Route.Path, _ query: QueryParameters, isCopy: Bool, setting: inout String) {
        let selectors = query.all.map(\.name).filter { S3Operation.selecting.contains(BytewiseString($0)) }
        let found: S3Operation?
        switch path {
        case .service:
            found = method == .get || method == .head ? .listBuckets : method == .post ? .assumeRole : nil
        case .bucket: found = S3Operation.ofBucket(method, selectors, query)
        case .named, .session: found = S3Operation.ofObject(method, selectors, query, isCopy)
        }
        guard let found else { return nil }
        setting = selectors.first ?? ""
        self = found
    }

    private static func ofBucket(_ method: HTTPMethod?, _ selectors: [String], _ query: QueryParameters)
        -> S3Operation?
    {
        guard let selector = selectors.first else {
            switch method {
            case .get: return query.values["list-type"] == "2" ? .listObjectsV2 : .listObjects
            case .head: return .headBucket
            case .put: return .createBucket
            case .delete: return .deleteBucket
            case .post: return .postObject
            default: return nil
            }
        }
        guard selectors.count == 1 else { return .notImplemented }
        switch (method, selector) {
        case (.get, "location"): return .getLocation
        case (.get, "versions"): return .listVersions
        case (.get, "uploads"): return .listUploads
        case (.get, "acl"): return .getBucketACL
        case (.put, "acl"): return .putBucketACL
        case (.post, "delete"): return .deleteObjects
        case (.get, _)
        where settings.contains(BytewiseString(selector)) || fixedSettings.contains(BytewiseString(selector)):
            return .getBucketSetting
        case (.delete, _) where settings.contains(BytewiseString(selector)): return .deleteBucketSetting
        default: return .notImplemented
        }
    }

    private static func ofObject(
        _ method: HTTPMethod?, _ selectors: [String], _ query: QueryParameters, _ isCopy: Bool
    ) -> S3Operation? {
        guard let selector = selectors.first else {
            switch method {
            case .get: return .getObject
            case .head: return .headObject
            case .put: return isCopy ? .copyObject : .putObject
            case .delete: return .deleteObject
            default: return nil
            }
        }
        guard selectors.count == 1 else { return .notImplemented }
        switch (method, selector) {
        case (.post, "uploads"): return .createUpload
        case (.put, "uploadId"): return isCopy ? .uploadPartCopy : .uploadPart
        case (.get, "uploadId"): return .listParts
        case (.post, "uploadId"): return .completeUpload
        case (.delete, "uploadId"): return .abortUpload
        case (.get, "attributes"): return .getAttributes
        case (.get, "acl"): return .getObjectACL
        case (.put, "acl"): return .putObjectACL
        case (.get, "tagging"): return .getTagging
        case (.delete, "tagging"): return .deleteTagging
        case (.get, "retention"), (.put, "retention"), (.get, "legal-hold"), (.put, "legal-hold"): return .objectLock
        default: return .notImplemented
        }
    }
}
