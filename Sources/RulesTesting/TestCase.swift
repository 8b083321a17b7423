import SecurityRules
import YAML

/// A request with the decision that it should get.
package struct TestCase: Sendable {
    /// How much a result says of expressions, as in the hosted service's API.
    enum ReportLevel: String, CaseIterable {
        case none = "NONE"
        case full = "FULL"
        case visited = "VISITED"
    }

    /// What people call it; its place where it has no name.
    package var name: String
    /// Its place in the suite, from 0.
    package var index: Int
    /// The file it comes from, and where it begins there.
    package var place: String
    var request: Request
    var documents: DocumentMocks
    var expectsAllow: Bool
    var because: Reason?
    var reportLevel = ReportLevel.none
    /// What else there is to say of it.
    var notes: [String] = []

    /// What an explanation must show.
    enum Reason: Sendable {
        /// This text is somewhere in it.
        case text(String)
        /// A rule that stands on this line was asked; for an allowed request, it is the one that allows.
        case line(Int)
    }
}

/// The cases of one file.
package struct TestSuite: Sendable {
    /// The file.
    package var fileName: String
    /// In the order of the file.
    package var cases: [TestCase]
    /// The rules that the file carries, with their name, as a request to the hosted service's API does.
    package var source: (text: String, fileName: String)?

    /// Reads a suite: the readable kind in YAML, or the hosted service's `testSuite`, in JSON or YAML.
    ///
    /// Cases that give no time have `now`.
    package static func read(
        _ text: String, fileName: String, now: Timestamp
    ) throws(SuiteError) -> TestSuite {
        let root = try Node.read(text, fileName: fileName)
        let keys = root.mapping?.compactMap { $0.key.scalar?.string } ?? []
        if keys.contains("testSuite") || keys.contains("testCases") {
            var reader = APISuiteReader(fileName: fileName, now: now)
            return try reader.read(root)
        }
        var reader = SuiteReader(fileName: fileName, now: now)
        return try reader.read(root)
    }
}

/// What look-ups of documents find, for each of the two functions that look.
struct DocumentMocks: Sendable {
    /// A function that looks for a document.
    enum Function: String, CaseIterable {
        case get = "firestore.get"
        case exists = "firestore.exists"
    }

    private struct Key: Hashable {
        /// The whole path; nil for all that are not named.
        var path: String?
        var function: Function
    }

    private var lookups: [Key: Lookup] = [:]

    /// Says what one function finds, for a document or for all others.
    mutating func set(_ path: String?, _ function: Function, _ lookup: Lookup) {
        lookups[Key(path: path.map(Self.whole), function: function)] = lookup
    }

    /// Says what is known of a document.
    mutating func set(_ path: String, _ lookup: Lookup) {
        for function in Function.allCases { set(path, function, lookup) }
    }

    /// What is known of a document by its whole path, where these functions look for it: nil where it is not said for one
    /// of them.
    func lookup(_ path: String, by functions: Set<Function>) -> Lookup? {
        var found: [Lookup] = []
        for function in Function.allCases where functions.contains(function) {
            guard
                let lookup = lookups[Key(path: path, function: function)]
                    ?? lookups[Key(path: nil, function: function)]
            else { return nil }
            found.append(lookup)
        }
        // Both functions see one document. What get finds comes first.
        return found.contains(.failed) ? .failed : found.first
    }

    /// The whole path of a document that may be given from the collection on.
    static func whole(_ path: String) -> String {
        let segments = path.split(separator: "/").joined(separator: "/")
        return path.hasPrefix("/databases/") || segments.hasPrefix("databases/")
            ? "/" + segments : "/databases/(default)/documents/" + segments
    }
}

/// The parts of `/b/BUCKET/o/NAME`.
struct ObjectPath {
    var bucket: String
    var object: String

    /// Nil for any other path. For list, one slash at the end counts for nothing.
    init?(_ path: String, for method: Method) {
        var rest = path[...]
        if rest.first == "/" { rest.removeFirst() }
        if method == .list, rest.last == "/" { rest.removeLast() }
        let parts = rest.split(separator: "/", maxSplits: 3, omittingEmptySubsequences: false)
        guard parts.count >= 3, parts[0] == "b", !parts[1].isEmpty, parts[2] == "o" else {
            return nil
        }
        bucket = String(parts[1])
        object = parts.count > 3 ? String(parts[3]) : ""
    }
}
