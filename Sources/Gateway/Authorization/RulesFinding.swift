import Buckets
import SecurityRules
import Wire

/// A warning about rules in connection with their bucket.
public struct RulesFinding: Sendable, Equatable, CustomStringConvertible {
    /// The rules file.
    public var fileName: String
    /// The start of the statement.
    public var position: SourcePosition
    /// The warning, a sentence.
    public var message: String

    /// `FILE:LINE:COLUMN: warning: …`
    public var description: String {
        "\(fileName):\(position.line):\(position.column): warning: \(message)"
    }
}

extension Ruleset {
    /// Finds the statements that can never allow an object of a bucket to be created, updated or deleted.
    ///
    /// Their conditions read the existing object, and the store can't pin such a change to it, so the response is 501.
    /// - Parameters:
    ///   - bucket: The bucket's name in paths.
    ///   - capabilities: The store's guarantees, or the most that it can have.
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

    /// Finds the statements that let anonymous callers upload any number of bytes.
    /// - Parameter bucket: The name of a bucket without its own limit for the size of an object.
    public func unboundedUploads(bucket: String) -> [RulesFinding] {
        unboundedAnonymousUploads(bucket: bucket).map {
            finding(
                $0,
                "it lets anonymous callers upload objects of any size to bucket '\(bucket)': "
                    + "compare request.resource.size with a limit, or set maximumObjectSize")
        }
    }

    /// Finds the statements whose objects are missing in lists of S3 clients, because they allow a `get` only with the
    /// object or a document at hand.
    /// - Parameter bucket: The bucket's name in paths.
    public func hiddenFromLists(bucket: String) -> [RulesFinding] {
        statements(for: .get, bucket: bucket).filter { $0.canAllow && $0.requires.existing }.map {
            finding(
                $0,
                "lists of S3 clients lack the objects of bucket '\(bucket)' that only this allows to get, because it reads "
                    + "resource; 's3.listing: listed' shows them")
        }
    }

    private func finding(_ statement: Statement, _ message: String) -> RulesFinding {
        RulesFinding(
            fileName: fileName, position: statement.range.lowerBound,
            message: "'allow \(statement.methods)': \(message)")
    }
}

extension Ruleset.Statement {
    /// Whether the statement depends on the result of an update, which is known only with the existing object.
    fileprivate var requiresResult: Bool {
        !requires.incoming.subtracting([.name, .bucket]).isEmpty
    }
}
