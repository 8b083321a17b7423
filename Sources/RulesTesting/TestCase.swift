import SecurityRules
import Wire
import YAML

/// A request and its expected decision.
package struct TestCase: Sendable {
    /// How much of the expressions a result reports, as in the Firebase Rules API.
    enum ReportLevel: String, CaseIterable {
        case none = "NONE"
        case full = "FULL"
        case visited = "VISITED"
    }

    /// The case's name; if it has none, its number.
    package var name: String
    /// Its index in the suite, from 0.
    package var index: Int
    /// The source location: file, line and column.
    package var location: String
    var request: Request
    var documents: DocumentMocks
    var expectsAllow: Bool
    var because: Reason?
    var reportLevel = ReportLevel.none
    /// Further messages about the case.
    var notes: [String] = []

    /// The required content of the explanation.
    enum Reason: Sendable {
        /// This text, anywhere.
        case text(String)
        /// A rule on this line that was evaluated; for an allowed request, the one that allows it.
        case line(Int)
    }
}

/// The test cases of one file.
package struct TestSuite: Sendable {
    /// The file's name.
    package var fileName: String
    /// In the order of the file.
    package var cases: [TestCase]
    /// The rules in the file and their name, as in a request to the Firebase Rules API.
    package var source: (text: String, fileName: String)?

    /// Reads a suite: Sluice's own format in YAML, or a `testSuite` of the Firebase Rules API in JSON or YAML.
    ///
    /// Cases without a time get `now`.
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

/// The results of document lookups, for each of the two lookup functions.
struct DocumentMocks: Sendable {
    /// A function that looks up a document.
    enum Function: String, CaseIterable {
        case get = "firestore.get"
        case exists = "firestore.exists"
    }

    private struct Key: Hashable {
        /// The full path; nil for all documents without their own mock.
        var path: DocumentPath?
        var function: Function
    }

    private var lookups: [Key: Lookup] = [:]

    /// Sets the result of one function, for one document or for all others.
    mutating func set(_ path: DocumentPath?, _ function: Function, _ lookup: Lookup) {
        lookups[Key(path: path, function: function)] = lookup
    }

    /// Sets the result of both functions for a document.
    mutating func set(_ path: DocumentPath, _ lookup: Lookup) {
        for function in Function.allCases { set(path, function, lookup) }
    }

    /// The result of these functions for a document; nil if one of them has no result for it.
    func lookup(_ path: DocumentPath, by functions: Set<Function>) -> Lookup? {
        var found: [Lookup] = []
        for function in Function.allCases where functions.contains(function) {
            guard
                let lookup = lookups[Key(path: path, function: function)] ?? lookups[Key(path: nil, function: function)]
            else { return nil }
            found.append(lookup)
        }
        // A request has one state for each document. The result of get takes precedence.
        return found.contains(.failed) ? .failed : found.first
    }

    /// The full path of a document. The text may begin with the collection. nil if a segment is empty, `.` or `..`.
    static func whole(_ text: String) -> DocumentPath? {
        guard let path = DocumentPath(text), let first = path.segments.first else { return nil }
        if first == Array("databases".utf8) { return path }
        let isRooted = text.utf8.first == UInt8(ascii: "/")
        return DocumentPath("/databases/(default)/documents" + (isRooted ? "" : "/") + text)
    }

    /// The error for a text that ``whole(_:)`` does not accept.
    static func fault(of text: String) -> String {
        "'\(text)' is not the path of a document: a segment can't be empty, '.' or '..'"
    }
}

/// The parts of `/b/BUCKET/o/NAME`.
struct ObjectPath {
    var bucket: String
    var object: String

    /// nil for any other path. For list, one slash at the end is ignored.
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
