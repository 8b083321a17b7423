import ClientCommands
import Foundation
import SluiceStorage
import Wire

extension EventsTail: Verb {
    func perform() async throws -> Int32 {
        let folder = try Gateways(connection).remote(folder).folder()
        var hasBegun = false
        var changes = FollowedChanges(folder)
        while let element = try await changes.next() {
            switch element {
            case .list:
                if hasBegun { Output.line("changes may be missing here: the gateway does not keep them any more") }
                hasBegun = true
            case .change(let change): Output.write((json ? change.json : change.line) + "\n", STDOUT_FILENO)
            }
        }
        return 0
    }
}

/// The changes of a folder, also after times without a gateway.
struct FollowedChanges {
    private var changes: StorageChanges.Iterator
    /// The pause after a request without a response, in nanoseconds: 5 s.
    private static let pause: UInt64 = 5_000_000_000

    init(_ folder: StorageReference) { changes = folder.changes(lists: false).makeAsyncIterator() }

    /// - Throws: `StorageError`, but not for want of a response.
    mutating func next() async throws -> StorageChanges.Element? {
        var wasTold = false
        while true {
            do { return try await changes.next() } catch let error as StorageError
                where error.reason == .retryLimitExceeded
            {
                if !wasTold { Output.line("\(error.message) Waiting for the gateway.") }
                wasTold = true
                try await Task.sleep(nanoseconds: FollowedChanges.pause)
            }
        }
    }
}

extension StorageChange {
    private var word: String {
        switch kind {
        case .stored: "stored"
        case .updated: "updated"
        case .deleted: "deleted"
        }
    }

    fileprivate var line: String {
        let word = word + String(repeating: " ", count: 7 - word.utf8.count)
        return "\(Text.rfc3339(time))  \(word)  \(Output.shown(object.reference.fullPath))"
    }

    fileprivate var json: String {
        var json = JSONWriter(reserving: 256)
        json.beginObject()
        json.member("type", kind.rawValue)
        json.member("sequence", "\(sequence)")
        json.member("time", Text.rfc3339(time))
        json.member("bucket", object.reference.bucket)
        json.member("name", object.reference.fullPath)
        if let generation = object.generation { json.member("generation", "\(generation)") }
        if let size = object.size { json.member("size", size) }
        if let contentType = object.contentType { json.member("contentType", contentType) }
        json.endObject()
        return String(decoding: json.bytes, as: UTF8.self)
    }
}
