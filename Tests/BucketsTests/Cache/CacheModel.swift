import BucketConformance
import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import Buckets

/// Random steps on two caches in front of one service. Each response is compared with the service's history.
///
/// Safety: the steps are taken by one task; what its readers share has locks.
final class CacheModel: @unchecked Sendable {
    /// A gateway with its cache.
    final class Side: Sendable {
        let fixture: CacheFixture
        /// The change of the service that reads through this gateway must show, by name.
        let acknowledged = Lock<[String: Int]>([:])

        init(_ fixture: CacheFixture) { self.fixture = fixture }
    }

    static let names = (0..<6).map { "o\($0)" }
    private static let sizes = [
        0, 1, 100, 16_384, 65_536, 65_537, 300_000, 1 << 20, 1 << 20 | 1, (2 << 20) - 1, 2_500_000, 3 << 20 | 77,
    ]

    let sides: [Side]
    let service: CachedService
    let clock: CacheClock
    private let loops: [EventLoop]
    private var generator: SeededGenerator
    /// Whether bits flip on the disk. If not, the kernel may move bytes to sockets: then nobody checks them again.
    private let flips: Bool
    private var readers: [Task<Void, Never>] = []
    private var gates: [CacheGate] = []
    private let found = Lock<[String]>([])
    private let steps = Lock<[String]>([])
    let reads = Atomic<Int>(0)
    /// For each read in progress, by its number: the service's failures before it and before all reads beside it.
    let running = Lock<[Int: Int]>([:])

    init(_ seed: UInt64, _ loops: [EventLoop]) async {
        var random = SeededGenerator(seed)
        flips = Bool.random(using: &random)
        generator = random
        self.loops = loops
        var sides: [Side] = []
        for _ in 0..<2 {
            var options = CacheFixture.Options()
            options.size = [16 << 20, 40 << 20].randomElement(using: &generator)!
            options.freshness = [.validate, .limited(30_000_000_000), .forever].randomElement(using: &generator)!
            options.staleIfError = [0, 60].randomElement(using: &generator)!
            options.fills = [1, 2, 16, 16].randomElement(using: &generator)!
            options.minimumUses = [1, 1, 1, 2].randomElement(using: &generator)!
            options.metadata = [3000, 16 << 20].randomElement(using: &generator)!
            sides.append(Side(await CacheFixture(options, beside: sides.first?.fixture)))
        }
        self.sides = sides
        service = sides[0].fixture.service
        clock = sides[0].fixture.clock
    }

    /// What was wrong, and the last steps.
    var failures: [String] { found.withLock { $0 } }
    var lastSteps: [String] { steps.withLock { $0.suffix(25) } }

    func fail(_ text: String) { found.withLock { $0.append(text) } }

    private func note(_ text: String) { steps.withLock { $0.append(text) } }

    private func random(_ range: Range<Int>) -> Int { Int.random(in: range, using: &generator) }

    private func isOne(in count: Int) -> Bool { random(0..<count) == 0 }

    // MARK: Steps

    func run(_ count: Int) async {
        for name in CacheModel.names.dropLast() { put(name) }
        for _ in 0..<count where failures.isEmpty {
            await step()
            for side in sides {
                let report = side.fixture.cache.report
                if report.size > report.limit + report.limit / 8 { fail("\(report.size) bytes are on disk") }
            }
        }
        await finishReaders()
        service.with {
            ($0.fault, $0.cuts, $0.wrongBodies, $0.beforePinned, $0.beforeStatAnswer) = (nil, [], 0, nil, nil)
        }
        for side in sides {
            note("settle")
            await side.fixture.settled()
            await side.fixture.stop()
        }
    }

    private func step() async {
        let side = sides.randomElement(using: &generator)!
        let name = CacheModel.names.randomElement(using: &generator)!
        switch random(0..<100) {
        case 0..<34: await read(side, name)
        case 34..<40: await stall(side, name)
        case 40..<44: await burst(side, name)
        case 44..<49: await check(side, name, mustAsk: isOne(in: 4))
        case 49..<64: await change(side, name)
        case 64..<69: clock.pass(seconds: UInt64(random(1..<40)))
        case 69..<71: await restart(side)
        case 71..<74: if flips { flip(side) }
        case 74..<80: disk(side)
        case 80..<82: await purge(side)
        case 82..<84: forget(side, name)
        case 84..<94: trouble(side, name)
        case 94..<97: await finishReaders()
        default: openGate()
        }
    }

    private func range() -> ByteRange? {
        let border = UInt64(random(0..<4)) << 20
        switch random(0..<8) {
        case 0: return .suffix(UInt64([1, 100, 16_384, 1 << 20, 5 << 20].randomElement(using: &generator)!))
        case 1: return .from(border, through: nil)
        case 2: return .from(border == 0 ? 0 : border - 1, through: border + 1)
        case 3:
            let first = UInt64(random(0..<3_000_000))
            return .from(first, through: first + UInt64(random(0..<1_500_000)))
        case 4: return .from(UInt64(random(0..<70)) * 16_384, through: UInt64(random(70..<180)) * 16_384 - 1)
        default: return nil
        }
    }

    /// Mostly none; or the entity tag of the current version or of an earlier one.
    private func conditions(_ name: String) -> Preconditions {
        var conditions = Preconditions()
        guard isOne(in: 5) else { return conditions }
        let versions = service.with { $0.versions[name]?.compactMap(\.metadata) ?? [] }.suffix(3)
        guard let etag = versions.randomElement(using: &generator)?.etag else { return conditions }
        if isOne(in: 2) { conditions.ifNoneMatch = .tags([etag]) } else { conditions.ifMatch = .tags([etag]) }
        return conditions
    }

    private func piece() -> Int { [65_536, 16_384, 10_000, 300_000].randomElement(using: &generator)! }

    private func read(_ side: Side, _ name: String) async {
        let (range, piece, mustAsk) = (range(), piece(), isOne(in: 10))
        let limit = isOne(in: 6) ? random(0..<2_000_000) : Int.max
        let (conditions, isClear) = (conditions(name), isOne(in: 2) && !flips)
        note(
            "read \(name) \(range.map { "\($0)" } ?? "whole") limit \(limit)\(mustAsk ? " asks" : "")\(isClear ? " clear" : "")"
        )
        let task = Task(executorPreference: loops.randomElement(using: &generator)!) { [self] in
            await checkedRead(side, name, range, mustAsk, piece, limit, if: conditions, isClear: isClear, nil)
        }
        if isOne(in: 3) { readers.append(task) } else { await task.value }
    }

    /// Begins a read that stops somewhere until its gate is opened, and may leave then.
    private func stall(_ side: Side, _ name: String) async {
        let (gate, place, range, piece) = (CacheGate(), random(0..<2_500_000), range(), piece())
        let limit = isOne(in: 2) ? place : Int.max
        note("stall \(name) at \(place) limit \(limit)")
        gates.append(gate)
        readers.append(
            Task(executorPreference: loops.randomElement(using: &generator)!) { [self] in
                await checkedRead(side, name, range, false, piece, limit) { count in
                    if count >= place { await gate.wait() }
                }
            })
    }

    private func openGate() {
        guard !gates.isEmpty else { return }
        gates.remove(at: random(0..<gates.count)).open()
    }

    func finishReaders() async {
        note("finish readers")
        for gate in gates { gate.open() }
        gates = []
        for reader in readers { await reader.value }
        readers = []
        service.with { $0.wrongNames = [] }
    }

    /// Many reads of a new object of one slice: they cause one read of the service.
    private func burst(_ side: Side, _ name: String) async {
        await finishReaders()
        let (fixture, count) = (side.fixture, random(2..<9))
        calm()
        let size = random(65_537..<1 << 20)
        note("burst \(name) of \(size) by \(count)")
        service.put(name, size)
        fixture.bucket.forget(name)
        await sides[0].fixture.settled()
        await sides[1].fixture.settled()
        let isOpen = fixture.cache.report.state == .open && fixture.faults.isOff
        let before = service.with { $0.sent }
        let chosen = (0..<count).map { _ in loops.randomElement(using: &generator)! }
        await withTaskGroup(of: Void.self) { group in
            for loop in chosen {
                group.addTask(executorPreference: loop) {
                    await self.checkedRead(side, name, nil, false, 65_536, .max, nil)
                }
            }
        }
        let sent = service.with { $0.sent } - before
        if isOpen, fixture.options.minimumUses == 1, sent != size {
            fail("\(count) reads of \(size): \(sent) were sent")
        }
    }

    private func put(_ name: String) { service.put(name, CacheModel.sizes.randomElement(using: &generator)!) }

    private func change(_ side: Side, _ name: String) async {
        let size = CacheModel.sizes.randomElement(using: &generator)!
        let (kind, text) = (random(0..<8), "text/\(random(0..<1000))")
        let (service, result) = (service, random(0..<6))
        note("change \(name), kind \(kind), result \(result)")
        let make: @Sendable () -> Void = {
            switch kind {
            case 0: service.put(name, size, ObjectAttributes(cacheControl: "no-store"))
            case 1..<4: service.put(name, size)
            case 4..<6: service.patch(name, text)
            default: service.delete(name)
            }
        }
        // Behind both.
        if result == 0 { return make() }
        let bucket = side.fixture.bucket
        let task = Task(executorPreference: loops.randomElement(using: &generator)!) {
            // The change that it made, which fails with 1, and whose response is lost with 2.
            let made = Atomic<Int>(0)
            do {
                try await bucket.change(name) { () async throws(BucketError) in
                    if result == 1 { throw BucketError(.unavailable) }
                    make()
                    made.store(service.with { $0.versions[name]?.last?.born ?? 0 }, ordering: .relaxed)
                    if result == 2 { throw BucketError(.timedOut) }
                }
            } catch {}
            let number = made.load(ordering: .relaxed)
            side.acknowledged.withLock { $0[name] = max($0[name] ?? 0, number) }
        }
        if isOne(in: 3) { readers.append(task) } else { await task.value }
    }

    private func restart(_ side: Side) async {
        await finishReaders()
        note("restart")
        await side.fixture.settled()
        await side.fixture.restart()
    }

    private func flip(_ side: Side) {
        guard let path = side.fixture.segments.randomElement(using: &generator) else { return }
        let file = open(path, O_RDWR)
        defer { close(file) }
        // Mostly where records are, sometimes in the table.
        let offset = isOne(in: 4) ? (2 << 20) - random(1..<400) : random(4096..<2 << 20)
        note("flip a bit at \(offset)")
        var byte: UInt8 = 0
        guard pread(file, &byte, 1, off_t(offset)) == 1 else { return }
        byte ^= 1 << UInt8(random(0..<8))
        pwrite(file, &byte, 1, off_t(offset))
    }

    private func disk(_ side: Side) {
        let faults = side.fixture.faults
        let kind = random(0..<5)
        note("disk \(kind)")
        switch kind {
        case 0:
            faults.remaining.store(random(0..<12), ordering: .relaxed)
            faults.write.store(isOne(in: 2) ? ENOSPC : EIO, ordering: .relaxed)
        case 1: faults.allocate.store(isOne(in: 2) ? ENOSPC : EIO, ordering: .relaxed)
        case 2: faults.most.store(random(500..<50_000), ordering: .relaxed)
        default:
            faults.stop()
            clock.pass(seconds: 61)
        }
    }

    private func purge(_ side: Side) async {
        note("purge")
        await side.fixture.cache.purge()
    }

    private func forget(_ side: Side, _ name: String) {
        note("forget \(name)")
        _ = side.fixture.cache.forget(bucket: "b", name: isOne(in: 2) ? name : nil)
    }

    /// What the service does wrong.
    private func trouble(_ side: Side, _ name: String) {
        let (kind, cut, piece) = (random(0..<8), random(0..<1_500_000), random(1000..<200_000))
        let (size, service) = (CacheModel.sizes.randomElement(using: &generator)!, service)
        note("trouble \(kind)")
        service.with { state in
            switch kind {
            case 0: state.fault = BucketError(cut % 2 == 0 ? .unavailable : .internal)
            case 1: state.cuts = [cut]
            case 2: state.wrongBodies = 1
            case 3: (state.isSlow, state.piece) = (true, piece)
            case 4: state.beforePinned = { service.put(name, size) }
            case 5:
                state.beforeStatAnswer = {
                    await side.fixture.bucket.change(name) { _ = service.put(name, size) }
                    let number = service.with { $0.versions[name]?.last?.born ?? 0 }
                    side.acknowledged.withLock { $0[name] = max($0[name] ?? 0, number) }
                }
            default: break
            }
        }
        if kind > 5 { calm() }
    }

    private func calm() {
        service.with { state in
            (state.fault, state.cuts, state.wrongBodies, state.isSlow, state.piece) = (nil, [], 0, false, .max)
            (state.beforePinned, state.beforeStatAnswer) = (nil, nil)
        }
    }
}

/// Where a reader waits.
final class CacheGate: Sendable {
    private let state = Lock<(isOpen: Bool, waiters: [CheckedContinuation<Void, Never>])>((false, []))

    func wait() async {
        await withCheckedContinuation { waiter in
            let isOpen = state.withLock { state in
                if !state.isOpen { state.waiters.append(waiter) }
                return state.isOpen
            }
            if isOpen { waiter.resume() }
        }
    }

    func open() {
        let waiters = state.withLock { state in
            state.isOpen = true
            defer { state.waiters = [] }
            return state.waiters
        }
        for waiter in waiters { waiter.resume() }
    }
}
