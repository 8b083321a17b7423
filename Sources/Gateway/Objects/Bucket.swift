import Buckets

/// A served bucket: its driver with its policy, path rules and limits. It reports the driver's errors as problems.
///
/// Every request's access to the store goes through this type. So names are checked and capabilities required in one
/// place, ``BucketError`` becomes ``Problem`` in one place, and every change passes one point after its commit.
public final class Bucket: Sendable {
    /// The bucket's name in paths.
    public let name: String
    let driver: any BucketDriver
    /// Authorizes operations.
    let policy: any Policy
    let pathRules: PathRules
    /// Looks up the documents that the policy reads; if nil, each lookup fails.
    let firestore: FirestoreDocuments?
    /// The maximum size of an uploaded object in bytes.
    let maximumObjectSize: UInt64
    /// Counts the bytes of uncommitted uploads, and holds their limits.
    let staged: StagedBytes
    let stagingLimits: StagedBytes.Limits
    /// Uploads in several requests, of all buckets.
    let uploads: Uploads
    /// The most bytes of the bucket's open upload sessions; 0 is no limit.
    let maximumSessionBytes: UInt64
    /// How the Firebase dialect serves the bucket; nil if it does not.
    let firebase: FirebaseSettings?
    /// When the bucket was made, in milliseconds since 1970; 0 if that is not known.
    let created: Int64
    /// Whether requests may wait for a service, so that this time is measured.
    let asksServices: Bool
    /// Whether its changes can be watched.
    let watch: BucketWatch
    /// The cache of reads; nil if there is none.
    let cache: CachedBucket?
    let turns = Turns()
    private let changeObservers: [any ChangeObserver]

    /// - Parameters:
    ///   - driver: The bucket's store.
    ///   - asksServices: Whether a service stores the objects, or has documents that rules look up.
    ///   - watch: Whether its changes can be watched.
    ///   - cache: The cache of reads; nil for none.
    ///   - changeObservers: Called after each change made through this gateway.
    public init(
        name: BucketName, driver: any BucketDriver, policy: any Policy, pathRules: PathRules = .none,
        firestore: FirestoreDocuments? = nil, maximumObjectSize: UInt64 = .max, staged: StagedBytes = StagedBytes(),
        maximumStagedBytes: UInt64 = .max, maximumStagedBytesPerCaller: UInt64 = .max, uploads: Uploads = Uploads(),
        maximumSessionBytes: UInt64 = 0, firebase: FirebaseSettings? = nil, created: Int64 = 0,
        asksServices: Bool = false, watch: BucketWatch = .off("This bucket is not watched."),
        cache: CachedBucket? = nil, changeObservers: [any ChangeObserver] = []
    ) {
        self.name = name.value
        self.driver = driver
        self.policy = policy
        self.pathRules = pathRules
        self.firestore = firestore
        self.maximumObjectSize = maximumObjectSize
        self.staged = staged
        stagingLimits = StagedBytes.Limits(bucket: maximumStagedBytes, caller: maximumStagedBytesPerCaller)
        self.uploads = uploads
        self.maximumSessionBytes = maximumSessionBytes
        self.firebase = firebase
        self.created = created
        self.asksServices = asksServices
        self.watch = watch
        self.cache = cache
        self.changeObservers = changeObservers
    }

    // MARK: Names

    /// Decodes and checks an object's name.
    func objectName(_ path: ArraySlice<UInt8>) throws(Problem) -> ObjectName {
        do throws(NameError) {
            let name = try ObjectName(percentEncoded: path)
            try pathRules.check(name)
            return name
        } catch {
            throw Problem(error)
        }
    }

    /// Checks a decoded object's name.
    /// - Parameter markers: Whether it may be a folder marker of S3.
    func objectName(decoded text: String, markers: Bool = false) throws(Problem) -> ObjectName {
        do throws(NameError) {
            let name = markers ? try ObjectName(marker: text) : try ObjectName(text)
            try pathRules.check(name)
            return name
        } catch {
            throw Problem(error)
        }
    }

    /// Whether an object of this stored name can be requested here.
    /// - Parameter markers: Whether folder markers of S3 can be requested.
    func serves(_ name: String, markers: Bool = false) -> Bool {
        guard let name = markers ? try? ObjectName(marker: name) : try? ObjectName(name) else { return false }
        return (try? pathRules.check(name)) != nil
    }

    /// Whether any object in a folder can be requested here.
    /// - Parameter folder: The folder's name, including the final slash.
    func serves(below folder: String) -> Bool {
        guard (try? ObjectName(folder + "x")) != nil else { return false }
        return pathRules.mayServe(below: Array(folder.utf8.dropLast()))
    }

    // MARK: Changes

    /// Calls the observers after a commit. All changes pass here.
    func changed(_ change: ObjectChange) {
        for observer in changeObservers { observer.changed(change, in: name) }
    }
}

/// A completed change.
public enum ObjectChange: Sendable {
    /// An upload was committed.
    case stored(ObjectMetadata)
    /// Metadata was patched.
    case patched(ObjectMetadata)
    /// The object of this name was deleted.
    case deleted(name: String)
}

/// Observes completed changes of a bucket's objects. It is called on the request's loop and must not block.
public protocol ChangeObserver: Sendable {
    /// Called after the store has made the change.
    func changed(_ change: ObjectChange, in bucket: String)
}
