import TestSupport
import Testing

@testable import Buckets

@Suite("The conditional writes of an upload session's state")
struct CloudSessionFileTests {
    private let store = HiddenObjects()
    private let id = UploadSessionID(expires: 2_000)

    private func file(_ owner: UInt64, now: Int64 = 1_000) -> CloudSessionFile {
        CloudSessionFile(id, store, owner) { now * 1_000_000 }
    }

    /// A file of owner 1, with a session that has begun.
    private func begun() async throws -> CloudSessionFile {
        let file = file(1)
        try await file.create(
            CloudSessionState(
                name: "n", attributes: ObjectAttributes(), created: 1, context: [], mark: 1,
                owner: 0, expires: 2_000, length: nil, digests: SessionDigests([]).saved))
        _ = store.takeCounts()
        return file
    }

    private func expect(
        _ isRight: (SessionError) -> Bool, _ body: () async throws(SessionError) -> some Any,
        at location: SourceLocation = #_sourceLocation
    ) async {
        do throws(SessionError) {
            _ = try await body()
            Issue.record("it succeeds", sourceLocation: location)
        } catch {
            #expect(isRight(error), "\(error)", sourceLocation: location)
        }
    }

    private func isSuperseded(_ error: SessionError) -> Bool {
        if case .superseded = error { true } else { false }
    }

    private func isNotFound(_ error: SessionError) -> Bool {
        if case .notFound = error { true } else { false }
    }

    @Test(
        "The owner reads and does not write; another gateway takes over, and the owner's writes fail"
    )
    func takeOver() async throws {
        let first = try await begun()
        let second = file(2)
        #expect(try await first.claim().owner == 1)
        #expect(store.takeCounts() == (1, 0))
        _ = try await first.trusted()
        #expect(store.takeCounts() == (0, 0))
        try await first.update { $0.isOpen = true }
        let taken = try await second.claim()
        #expect((taken.owner, taken.isOpen, taken.isTakenOver) == (2, false, true))
        await expect(isSuperseded) { () throws(SessionError) in
            try await first.update { $0.length = 1 }
        }
        // The owner has lost it, and takes it back.
        #expect(try await first.trusted().owner == 1)
        #expect(try await first.claim().length == nil)
    }

    @Test("A state that is open is closed by the next claim, also at the owner")
    func open() async throws {
        let file = try await begun()
        try await file.update { $0.isOpen = true }
        #expect(try await file.trusted().isOpen == false)
        #expect(store.takeCounts().writes == 2)
    }

    @Test("A write whose response is lost has succeeded")
    func lostResponse() async throws {
        let file = try await begun()
        store.fail(.after)
        try await file.update { $0.length = 5 }
        #expect(file.known?.length == 5)
        #expect(try await self.file(2).claim().length == 5)
    }

    @Test(
        "A write that was not executed fails, and one that is late has no effect after the next claim"
    )
    func lateWrite() async throws {
        for fault in [HiddenObjects.Fault.before, .late] {
            let file = try await begun()
            store.fail(fault)
            await expect {
                if case .store = $0 { true } else { false }
            } _: { () throws(SessionError) in
                try await file.update { $0.length = 5 }
            }
            #expect(file.known == nil)
            // The claim must write, although nobody else owns the session.
            #expect(try await file.claim().length == nil)
            store.deliver()
            #expect(try await file.claim().length == nil)
            _ = try await file.cancel()
            try await store.deleteHidden(HiddenName.state(id).text)
        }
    }

    @Test(
        "A session that was cancelled does not exist, here and elsewhere, before and after its removal"
    )
    func cancelled() async throws {
        let file = try await begun()
        let other = self.file(2)
        _ = try await other.claim()
        #expect(try await file.cancel().end == nil)
        for _ in 0..<2 {
            for each in [file, other, self.file(3)] {
                await expect(isNotFound) { () throws(SessionError) in try await each.claim() }
                await expect(isNotFound) { () throws(SessionError) in try await each.cancel() }
            }
            await expect {
                isSuperseded($0) || isNotFound($0)
            } _: { () throws(SessionError) in
                try await other.update { $0.length = 5 }
            }
            try await store.deleteHidden(HiddenName.state(id).text)
        }
        #expect(file.isGone)
    }

    @Test("An expired session does not exist")
    func expired() async throws {
        _ = try await begun()
        await expect(isNotFound) { () throws(SessionError) in
            try await self.file(2, now: 2_000).claim()
        }
        let file = self.file(2, now: 1_999)
        _ = try await file.claim()
        try await file.update { $0.expires = 1_999 }
        await expect(isNotFound) { () throws(SessionError) in try await file.trusted() }
        await expect(isNotFound) { () throws(SessionError) in try await file.claim() }
    }

    @Test("A malformed state is a failure of the store, not a missing session")
    func malformed() async throws {
        _ = try await store.writeHidden(HiddenName.state(id).text, [9, 9], replacing: nil)
        await expect {
            if case .store(let error) = $0 { error.code == .internal } else { false }
        } _: { () throws(SessionError) in
            try await file(1).claim()
        }
    }

    @Test(
        "Of random writes by four owners with faults, those that were acknowledged are all there, in order"
    )
    func interleaved() async throws {
        var random = SeededGenerator(7)
        for _ in 0..<200 {
            _ = try await begun()
            let files = (1...4).map { file(UInt64($0)) }
            // Each write adds one to the length.
            var (acknowledged, possible) = (0, 0)
            for _ in 0..<60 {
                let file = files.randomElement(using: &random)!
                let faults: [HiddenObjects.Fault?] = [nil, nil, nil, .before, .after, .late]
                let fault = faults.randomElement(using: &random)!
                let isOwner = Bool.random(using: &random)
                do throws(SessionError) {
                    let state = isOwner ? try await file.trusted() : try await file.claim()
                    if !isOwner { #expect(state.created + Int64(state.offset) == 1) }
                    let length = state.length ?? 0
                    if let fault { store.fail(fault) }
                    possible = max(possible, Int(length) + 1)
                    try await file.update { $0.length = length + 1 }
                    #expect(Int(length) >= acknowledged, "an acknowledged write is lost")
                    acknowledged = Int(length) + 1
                } catch {
                    if Bool.random(using: &random) { store.deliver() }
                }
                if Int.random(in: 0..<9, using: &random) == 0 { store.deliver() }
            }
            let last = Int(try await file(9).claim().length ?? 0)
            #expect(last >= acknowledged && last <= possible)
            try await store.deleteHidden(HiddenName.state(id).text)
        }
    }
}

extension CloudSessionFile {
    /// The state of an append.
    fileprivate func trusted() async throws(SessionError) -> CloudSessionState {
        if let own = try trusted(at: known?.offset ?? 0) { return own }
        return try await claim()
    }
}
