import Buckets

/// A bucket that is served: its store, and what narrows it.
public final class GatewayBucket: Sendable {
    /// As it stands in paths.
    public let name: String
    public let driver: any BucketDriver
    /// What decides who may do what.
    public let policy: any Policy
    public let pathRules: PathRules
    /// Where the policy's documents are; nil where there are none, and each look-up fails.
    public let firestore: FirestoreDocuments?
    /// The most bytes of an uploaded object.
    public let maximumObjectSize: UInt64
    let headers = HeaderCache()

    public init(
        name: BucketName, driver: any BucketDriver, policy: any Policy,
        pathRules: PathRules = .none, firestore: FirestoreDocuments? = nil,
        maximumObjectSize: UInt64 = .max
    ) {
        self.name = name.value
        self.driver = driver
        self.policy = policy
        self.pathRules = pathRules
        self.firestore = firestore
        self.maximumObjectSize = maximumObjectSize
    }

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

    /// Whether a stored name can be asked for here.
    func serves(_ name: String) -> Bool {
        guard let name = try? ObjectName(name) else { return false }
        return (try? pathRules.check(name)) != nil
    }

    /// Whether anything can be asked for in a folder.
    /// - Parameter folder: Its name with the slash at the end.
    func serves(below folder: String) -> Bool {
        guard (try? ObjectName(folder + "x")) != nil else { return false }
        return pathRules.mayServe(below: Array(folder.utf8.dropLast()))
    }
}
