import Foundation
import Wire

/// A change of an object.
public struct StorageChange: Sendable, Equatable {
    /// What has changed.
    public enum Kind: String, Sendable {
        /// The object was created or replaced.
        case stored = "finalized"
        /// Its metadata has changed.
        case updated = "metadataUpdated"
        /// It was deleted or moved away.
        case deleted
    }
    /// What has changed.
    public let kind: Kind
    /// The object after the change, or before its deletion. Its properties are nil if the rules do not show them.
    public let object: StorageListedObject
    /// When it was changed.
    public let time: Date
    /// Grows with each change of the bucket.
    public let sequence: Int64

    /// nil if it is none of this version.
    fileprivate init?(_ json: JSONValue, _ storage: Storage) {
        guard let kind = json["type"]?.text.flatMap(Kind.init), let time = MetadataValues.date(json["time"]),
            let sequence = json["sequence"]?.integer, let object = StorageListedObject(change: json, storage)
        else { return nil }
        (self.kind, self.object, self.time, self.sequence) = (kind, object, time, sequence)
    }
}

/// The changes of a folder and of all folders below it, until the task is cancelled or an error is thrown.
///
/// ```swift
/// for try await element in reference.changes() {
///     switch element {
///     case .list(let objects): replaceAll(by: objects)
///     case .change(let change): apply(change)
///     }
/// }
/// ```
public struct StorageChanges: AsyncSequence, Sendable {
    /// The state of the folder, or a change of it.
    public enum Element: Sendable {
        /// All objects now: the first element, and again after changes were missed, for example because the gateway does not
        /// keep them so long, or a backup was restored. What is not in it does not exist any more. Empty without lists.
        case list([StorageListedObject])
        /// A change after the list. The list may show it already.
        case change(StorageChange)
    }
    fileprivate let folder: StorageReference
    fileprivate let lists: Bool

    /// Begins with a list.
    public func makeAsyncIterator() -> Iterator { Iterator(folder, lists: lists) }

    /// Waits for the next change.
    public struct Iterator: AsyncIteratorProtocol {
        private let folder: StorageReference
        private let lists: Bool
        /// The number up to which everything was returned; nil before a list.
        private var sequence: Int64?
        private var ready: [StorageChange] = []
        /// A gateway that responds at once without changes is not asked again before, in seconds.
        private static let pause: TimeInterval = 1

        fileprivate init(_ folder: StorageReference, lists: Bool) { (self.folder, self.lists) = (folder, lists) }

        /// - Throws: ``StorageError``, also if the bucket is not watched: `eventOptions.watch` of the gateway, and a
        ///   bucket in a directory.
        public mutating func next() async throws -> Element? {
            while true {
                if !ready.isEmpty { return .change(ready.removeFirst()) }
                try Task.checkCancellation()
                guard let last = sequence else {
                    let (objects, newest) = try await folder.state(lists: lists)
                    sequence = newest
                    return .list(objects)
                }
                let began = Date()
                do throws(StorageError) {
                    let page = try await folder.changes(after: last)
                    (sequence, ready) = (page.sequence, page.changes)
                } catch {
                    guard error.hasProblem("watch-expired") else { throw error }
                    sequence = nil
                    continue
                }
                if ready.isEmpty, Date().timeIntervalSince(began) < Iterator.pause {
                    try await Task.sleep(nanoseconds: UInt64(Iterator.pause * 1e9))
                }
            }
        }
    }
}

extension StorageReference {
    /// The state of this folder and everything below it, and then each change, as soon as it is made. See `docs/events.md`.
    ///
    /// The rules must allow `list` on each folder for the list; changes of folders that they deny are left out. Each waiting
    /// sequence has one request in progress.
    /// - Parameter lists: Whether ``StorageChanges/Element/list(_:)`` has the objects, in memory. Otherwise it is empty, and
    ///   says that changes before it may have been missed.
    public func changes(lists: Bool = true) -> StorageChanges { StorageChanges(folder: self, lists: lists) }

    /// All objects, and the number of the bucket's newest change before that.
    fileprivate func state(lists: Bool) async throws(StorageError) -> ([StorageListedObject], Int64) {
        let first = try await page("view=full&maxResults=\(lists ? 1000 : 1)&delimiter=\(lists ? "" : "%2F")", nil)
        guard let sequence = first.sequence else {
            // The response says why the bucket is not watched.
            _ = try await changes(after: 0, wait: 0)
            throw StorageError(.unknown, "The bucket is not watched.")
        }
        guard lists else { return ([], sequence) }
        var (objects, token) = (first.objects, first.pageToken)
        while let next = token {
            let page = try await listing(recursive: true, pageToken: next)
            objects += page.objects
            token = page.pageToken
        }
        return (objects, sequence)
    }

    /// The longest wait for a change, in seconds. Less than connections may be silent.
    private static let longestWait = 25

    fileprivate func changes(after sequence: Int64, wait: Int = longestWait) async throws(StorageError)
        -> (sequence: Int64, changes: [StorageChange])
    {
        let prefix = fullPath.isEmpty ? "" : fullPath + "/"
        try check()
        let query = "watch=\(sequence)&wait=\(wait)s&prefix=\(PercentEncoding.encodeSegment(prefix))"
        let request = HTTPRequest("GET", try storage.endpoint.list(query))
        return try await operation { requests throws(StorageError) in
            try await requests.call(request) { response throws(StorageError) in
                guard let json = try? JSONReader.parse(response.body), let last = json["sequence"]?.integer,
                    last >= sequence, let events = json["events"]?.elements
                else { return nil }
                let changes = events.compactMap { StorageChange($0, storage) }
                guard changes.allSatisfy({ $0.object.reference.fullPath.hasPrefix(prefix) }) else { return nil }
                return (last, changes)
            }
        }
    }
}
