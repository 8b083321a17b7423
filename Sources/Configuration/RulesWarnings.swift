import Buckets
import Gateway
import SecurityRules
import Wire

extension Configuration.Bucket {
    /// Warnings about the bucket's rules.
    /// - Parameter probed: What the bucket's service guarantees, once that is known. Before, it is assumed to guarantee
    ///   all that a service of its kind can.
    /// - Parameter listsReadable: Whether S3 clients get lists of readable objects.
    public func findings(in rules: Ruleset, probed: Capabilities? = nil, listsReadable: Bool = false) -> [RulesFinding]
    {
        var findings = rules.impossibleStatements(bucket: name, probed ?? mostCapabilities)
        if listsReadable { findings += rules.hiddenFromLists(bucket: name) }
        guard maximumObjectSize == Self.defaultMaximumObjectSize else { return findings }
        return findings + rules.unboundedUploads(bucket: name)
    }

    private var mostCapabilities: Capabilities {
        guard case .s3(let s3) = store else { return .all }
        return S3Bucket.mostCapabilities(decidesConditions: s3.conditionalWrites != "no")
    }
}
