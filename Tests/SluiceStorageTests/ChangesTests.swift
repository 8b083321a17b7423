import Foundation
import Synchronization
import TestSupport
import Testing

@testable import SluiceStorage

/// Changes of a folder, as the library follows them.
@Suite(.timeLimit(.minutes(2))) struct ChangesTests {
    private static let watched = "eventOptions: { watch: true }"

    private func next(_ iterator: inout StorageChanges.Iterator) async throws -> [String] {
        switch try await iterator.next() {
        case .list(let objects)?: ["list"] + objects.map(\.reference.fullPath)
        case .change(let change)?: [change.kind.rawValue, change.object.reference.fullPath]
        case nil: []
        }
    }

    @Test func aListAndThenEachChange() async throws {
        let gateway = try await GatewayProcess(Self.watched)
        let folder = gateway.storage().reference(withPath: "t")
        for path in ["t/a", "t/b/c", "other"] {
            try await gateway.storage().reference(withPath: path).putDataAsync(Data([1]))
        }
        var changes = folder.changes().makeAsyncIterator()
        #expect(try await next(&changes) == ["list", "t/a", "t/b/c"])
        try await gateway.storage().reference(withPath: "other").delete()
        let made = try await gateway.storage().reference(withPath: "t/d").putDataAsync(Data([1, 2]))
        guard case .change(let change)? = try await changes.next() else {
            Issue.record("no change")
            return
        }
        #expect(change.object.generation == made.generation && change.object.size == 2 && change.kind == .stored)
        #expect(abs(change.time.timeIntervalSinceNow) < 60 && change.sequence == 5)
        try await gateway.storage().reference(withPath: "t/a").delete()
        #expect(try await next(&changes) == ["deleted", "t/a"])
        var later = folder.changes(lists: false).makeAsyncIterator()
        #expect(try await next(&later) == ["list"])
    }

    @Test func afterMissedChangesItListsAgain() async throws {
        let lists = Atomic(0)
        let service = FakeService { request in
            if let watch = request.query["watch"] {
                if watch == "7" {
                    return .json(
                        #"{"sequence": "9", "events": [{"type": "finalized", "sequence": "8", "time": "2026-01-01T00:00:00Z", "name": "t/b"}]}"#
                    )
                }
                return .json(#"{"status": 410, "code": "watch-expired", "title": "x"}"#, 410)
            }
            lists.add(1, ordering: .relaxed)
            return .json(#"{"prefixes": [], "items": [{"fullPath": "t/a"}]}"#, 200, [("X-Object-Sequence", "7")])
        }
        let storage = Storage(url: "http://127.0.0.1:\(service.port)", bucket: "photos")
        var changes = storage.reference(withPath: "t").changes().makeAsyncIterator()
        for _ in 0..<2 {
            #expect(try await next(&changes) == ["list", "t/a"])
            #expect(try await next(&changes) == ["finalized", "t/b"])
        }
        #expect(lists.load(ordering: .relaxed) == 2)
    }

    @Test func aBucketThatIsNotWatched() async throws {
        let gateway = try await GatewayProcess()
        var changes = gateway.storage().reference().changes().makeAsyncIterator()
        let error = await #expect(throws: StorageError.self) { try await changes.next() }
        #expect(error?.hasProblem("not-implemented") == true && error?.message.contains("eventOptions.watch") == true)
    }

    @Test func cancellationEndsTheWait() async throws {
        let gateway = try await GatewayProcess(Self.watched)
        let folder = gateway.storage().reference()
        let task = Task { for try await _ in folder.changes() {} }
        try await Task.sleep(nanoseconds: 300_000_000)
        task.cancel()
        await #expect(throws: (any Error).self) { try await task.value }
    }
}
