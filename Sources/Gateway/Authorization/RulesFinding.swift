import Buckets
import SecurityRules
import Wire

/// What is doubtful about rules together with a bucket that they are for.
public struct RulesFinding: Sendable, Equatable, CustomStringConvertible {
    /// The file of rules.
    public var fileName: String
    /// Where the statement begins.
    public var position: SourcePosition
    /// A sentence.
    public var message: String

    /// `FILE:LINE:COLUMN: warning: …`
    public var description: String {
        "\(fileName):\(position.line):\(position.column): warning: \(message)"
    }
}

extension Ruleset {
    /// The statements that can never allow an object of a bucket to be created, updated or deleted.
    ///
    /// Their conditions read what is there, and the store can't pin such a change to it: the response is 501.
    /// - Parameters:
    ///   - bucket: Its name in paths.
    ///   - capabilities: What its store promises, or the most that it can.
    public func impossibleStatements(bucket: String, _ capabilities: Capabilities)
        -> [RulesFinding]
    {
        var findings: [RulesFinding] = []
        let changes: [(Method, name: String, isPinned: Bool)] = [
            (.create, "a create", capabilities.atomicUploads),
            (.update, "an update", capabilities.atomicPatches),
            (.delete, "a delete", capabilities.atomicDeletions),
        ]
        for (method, name, isPinned) in changes where !isPinned {
            for statement in statements(for: method, bucket: bucket)
            where statement.canAllow
                && (statement.requires.existing
                    || method == .update && !capabilities.pinnedPatches
                        && statement.requiresResult)
            {
                let reads = statement.requires.existing ? "resource" : "request.resource"
                findings.append(
                    finding(
                        statement,
                        "it can never allow \(name) in bucket '\(bucket)': it reads \(reads), and "
                            + "the bucket's store can't make the change only if the object is still "
                            + "the one that was read"))
            }
        }
        return findings.sorted { $0.position.offset < $1.position.offset }
    }

    /// The statements by which anonymous callers can upload any number of bytes, where the bucket has only the default
    /// limit of an object's size.
    public func unboundedUploads(_ bucket: Configuration.Bucket) -> [RulesFinding] {
        guard bucket.maximumObjectSize == Configuration.Bucket.defaultMaximumObjectSize else {
            return []
        }
        return unboundedAnonymousUploads(bucket: bucket.name).map {
            finding(
                $0,
                "it lets anonymous callers upload objects of any size to bucket '\(bucket.name)': "
                    + "compare request.resource.size with a limit, or set maximumObjectSize")
        }
    }

    private func finding(_ statement: Statement, _ message: String) -> RulesFinding {
        RulesFinding(
            fileName: fileName, position: statement.range.lowerBound,
            message: "'allow \(statement.methods)': \(message)")
    }
}

extension Ruleset.Statement {
    /// Whether it depends on what an update leaves behind, which is known only together with the object that is there.
    fileprivate var requiresResult: Bool {
        !requires.incoming.subtracting([.name, .bucket]).isEmpty
    }
}

extension Configuration.Bucket {
    /// The most that its store can promise. What a service does is known only when it is asked.
    public var mostCapabilities: Capabilities {
        guard case .s3(let s3) = store else { return .all }
        return S3Bucket.mostCapabilities(decidesConditions: s3.conditionalWrites != "no")
    }
}
