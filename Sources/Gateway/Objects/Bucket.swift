import Buckets

/// A bucket that is served: its driver, what narrows it, and its errors as problems.
///
/// Everything that a request does to the store goes through here: names are checked before, capabilities are required in
/// one place, ``BucketError`` becomes ``Problem`` in one place, and every change passes one point after its commit.
public final class Bucket: Sendable {
    /// The name in paths.
    public let name: String
    let driver: any BucketDriver
    /// Decides who may do what.
    let policy: any Policy
    let pathRules: PathRules
    /// Where the policy's documents are; nil where there are none, and each look-up fails.
    let firestore: FirestoreDocuments?
    /// The most bytes of an uploaded object.
    let maximumObjectSize: UInt64
    /// Bytes of uploads that are not committed yet, and their limits.
    let staged: StagedBytes
    let stagingLimits: StagedBytes.Limits
    let turns = Turns()
    private let changeObservers: [any ChangeObserver]

    /// - Parameters:
    ///   - driver: Its store.
    ///   - changeObservers: Are called after each change that was made here.
    public init(
        name: BucketName, driver: any BucketDriver, policy: any Policy,
        pathRules: PathRules = .none, firestore: FirestoreDocuments? = nil,
        maximumObjectSize: UInt64 = .max, staged: StagedBytes = StagedBytes(),
        maximumStagedBytes: UInt64 = .max, maximumStagedBytesPerCaller: UInt64 = .max,
        changeObservers: [any ChangeObserver] = []
    ) {
        self.name = name.value
        self.driver = driver
        self.policy = policy
        self.pathRules = pathRules
        self.firestore = firestore
        self.maximumObjectSize = maximumObjectSize
        self.staged = staged
        stagingLimits = StagedBytes.Limits(
            bucket: maximumStagedBytes, caller: maximumStagedBytesPerCaller)
        self.changeObservers = changeObservers
    }

    // MARK: Names

    /// Decodes and checks the name of one of the bucket's objects.
    func objectName(_ path: ArraySlice<UInt8>) throws(Problem) -> ObjectName {
        do throws(NameError) {
            let name = try ObjectName(percentEncoded: path)
            try pathRules.check(name)
            return name
        } catch {
            throw Problem(error)
        }
    }

    /// Whether a stored name can be requested here.
    func serves(_ name: String) -> Bool {
        guard let name = try? ObjectName(name) else { return false }
        return (try? pathRules.check(name)) != nil
    }

    /// Whether any name in a folder can be requested here.
    /// - Parameter folder: Its name with the slash at the end.
    func serves(below folder: String) -> Bool {
        guard (try? ObjectName(folder + "x")) != nil else { return false }
        return pathRules.mayServe(below: Array(folder.utf8.dropLast()))
    }

    // MARK: Changes

    /// The one point after a commit.
    func changed(_ change: ObjectChange) {
        for observer in changeObservers { observer.changed(change, in: name) }
    }
}

/// A change that the store has made.
public enum ObjectChange: Sendable {
    /// An upload was committed.
    case stored(ObjectMetadata)
    /// Metadata was patched.
    case patched(ObjectMetadata)
    /// The object of this name was deleted.
    case deleted(name: String)
}

/// Is called after every change of a bucket's objects, on the request's loop: it must not block.
public protocol ChangeObserver: Sendable {
    /// The store has made the change.
    func changed(_ change: ObjectChange, in bucket: String)
}
