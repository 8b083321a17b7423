import Foundation
import Synchronization
import TestSupport
import Testing

@testable import SluiceStorage

/// Lists of services that do not return what was asked for.
@Suite struct ListTests {
    private func page(folders: [String] = [], _ objects: [String], _ token: String? = nil)
        -> FakeService.Response
    {
        let items = objects.map { #"{"fullPath": "\#($0)"}"# }.joined(separator: ",")
        let prefixes = folders.map { "\"\($0)\"" }.joined(separator: ",")
        let next = token.map { #", "nextPageToken": "\#($0)""# } ?? ""
        return .json(#"{"prefixes": [\#(prefixes)], "items": [\#(items)]\#(next)}"#)
    }

    /// The second page of each row can't follow the first one.
    @Test func pagesThatDoNotFollow() async throws {
        let rows = [
            (page(["t/a", "t/c"], "1"), page(["t/b"])), (page(["t/a"], "1"), page(["t/a"])),
            (page(["t/a"], "1"), page(["t/b"], "1")), (page(["t/a"], "1"), page(["b"])),
            (page(["t/a"], "1"), page(["t/c", "t/b"])),
            (page(folders: ["t/b/"], [], "1"), page(folders: ["t/b/"], [])),
            // By bytes, U+1F600 follows U+FFFD.
            (page(["t/\u{1F600}"], "1"), page(["t/\u{FFFD}"])),
        ]
        for (first, second) in rows {
            let service = FakeService { $0.query["pageToken"] == nil ? first : second }
            let storage = Storage(url: "http://127.0.0.1:\(service.port)", bucket: "photos")
            storage.maxOperationRetryTime = 0.1
            let folder = storage.reference(withPath: "t")
            let all = await #expect(throws: StorageError.self) { try await folder.listAll() }
            #expect(all?.reason == .retryLimitExceeded)
            storage.maxOperationRetryTime = 60
            let start = try await folder.listing(recursive: true)
            storage.maxOperationRetryTime = 0.1
            let next = await #expect(throws: StorageError.self) {
                try await folder.listing(recursive: true, pageToken: start.pageToken)
            }
            #expect(next?.reason == .retryLimitExceeded)
        }
    }

    @Test func emptyPagesWithoutAnEnd() async throws {
        let service = FakeService { [self] request in
            let number = Int(request.query["pageToken"] ?? "0") ?? 0
            // Names in between begin the count again.
            return page(
                number % 900 == 0 && number < 2000 ? ["t/\(number + 1000)"] : [], "\(number + 1)")
        }
        let storage = Storage(url: "http://127.0.0.1:\(service.port)", bucket: "photos")
        let error = await #expect(throws: StorageError.self) {
            try await storage.reference(withPath: "t").listAll()
        }
        #expect(error?.reason == .internalError && service.log.count == 2802)
    }

    @Test func pagesThatFollow() async throws {
        let token = "a+b=%&"
        let service = FakeService { [self] request in
            switch request.query["pageToken"] {
            case nil: page(folders: ["t/x y/"], ["t/%", "t/b"], token)
            // Nothing, because the rules hide it.
            case token: page([], "2")
            case "2": page(folders: ["t/z/"], ["t/c"])
            default: FakeService.Response(status: 400)
            }
        }
        let storage = Storage(url: "http://127.0.0.1:\(service.port)", bucket: "photos")
        let folder = storage.reference(withPath: "t")
        let all = try await folder.listAll()
        #expect(all.items.map(\.name) == ["%", "b", "c"] && all.pageToken == nil)
        #expect(all.prefixes.map(\.name) == ["x y", "z"])
        // The gateway's own token has no names that a page must follow.
        #expect(try await folder.list(maxResults: 5, pageToken: "2").items.count == 1)
    }
}
