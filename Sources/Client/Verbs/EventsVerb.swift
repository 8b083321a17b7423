import ClientCommands
import Foundation
import SluiceStorage
import Wire

extension EventsTail: Verb {
    func perform() async throws -> Int32 {
        let folder = try Gateways(connection).remote(folder).folder()
        var hasBegun = false
        for try await element in folder.changes(lists: false) {
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
