import BucketConformance
import Buckets
import Glibc
import System

/// Writes, patches, copies, moves and deletes without end until it is killed: `BucketStorm DIRECTORY SEED`; or uploads
/// in sessions or in parts: `BucketStorm DIRECTORY SEED sessions`, `BucketStorm DIRECTORY SEED parts`.
///
/// Each line on standard output says what is about to be tried or was acknowledged, so that whoever killed it knows what
/// must be there. Each lane has names of its own: what it was told is the truth about them.
@main
struct BucketStorm {
    static let lanes = 12
    static let namesPerLane = 12
    static let sizes = [0, 100, 4096, 4097, 30_000, 65_536, 65_537, 300_000]

    static func main() async throws {
        let path = CommandLine.arguments[1]
        let seed = UInt64(CommandLine.arguments[2]) ?? 0
        let pool = BlockingPool(threads: 2)
        let bucket = try DirectoryBucket(path: path, pool: pool, readers: 1)
        let kind = CommandLine.arguments.dropFirst(3).first
        say("ready")
        try await onLoop {
            try await withThrowingTaskGroup(of: Void.self) { group in
                for lane in 0..<lanes {
                    group.addTask(executorPreference: EventLoop.current) {
                        switch kind {
                        case "sessions": try await upload(bucket, lane, seed)
                        case "parts": try await uploadParts(bucket, lane, seed)
                        default: try await rage(bucket, lane, seed)
                        }
                    }
                }
                try await group.waitForAll()
            }
        }
    }

    static func rage(_ bucket: DirectoryBucket, _ lane: Int, _ seed: UInt64) async throws {
        var random = Random(state: seed &* 1_000_003 &+ UInt64(lane))
        while true {
            let name = "lane\(lane)/\(random.next(below: namesPerLane))"
            switch random.next(below: 14) {
            case 0..<6:
                let size = sizes[random.next(below: sizes.count)]
                let content = random.next(below: 1_000_000)
                say("try \(name) put \(size) \(content) put/\(content)")
                try await bucket.put(
                    name, pattern(size, seed: UInt64(content)),
                    ObjectAttributes(contentType: "put/\(content)"))
                say("ack \(name)")
            case 6, 7:
                say("try \(name) delete")
                try await unlessMissing { try await bucket.delete(name, Preconditions()) }
                say("ack \(name)")
            case 8:
                let value = "patch/\(random.next(below: 1_000_000))"
                var patch = AttributePatch()
                patch.contentType = .set(value)
                say("try \(name) patch \(value)")
                try await unlessMissing { _ = try await bucket.patch(name, patch, Preconditions()) }
                say("ack \(name)")
            case 9..<13:
                let source = "lane\(lane)/\(random.next(below: namesPerLane))"
                let isMove = random.next(below: 2) == 0
                let type = "copy/\(random.next(below: 1_000_000))"
                if source == name { continue }
                try await unlessMissing {
                    let plan = CopyPlan(
                        try await bucket.stat(source), ObjectAttributes(contentType: type), removesSource: isMove)
                    say("try \(name) \(isMove ? "move" : "copy") \(source) \(type)")
                    _ = try await bucket.copy(to: name, plan)
                    say("ack \(name)")
                }
            default:
                let size = sizes[random.next(below: sizes.count)]
                let upload = try await bucket.filledUpload(name, pattern(size, seed: 1))
                if random.next(below: 2) == 0 { _ = try await upload.finish() }
                upload.abort()
            }
        }
    }

    static let sessionSizes = [0, 1, 4000, 5000, 100_000, 1_000_000]

    /// Sessions one after the other, each of a name of its own: appended to in pieces, then committed, cancelled or left.
    static func upload(_ bucket: DirectoryBucket, _ lane: Int, _ seed: UInt64) async throws {
        var random = Random(state: seed &* 1_000_003 &+ UInt64(lane))
        for number in 0... {
            let name = "\(seed)/\(lane)/\(number)"
            let size = sessionSizes[random.next(below: sessionSizes.count)]
            let content = random.next(below: 1_000_000)
            let bytes = pattern(size, seed: UInt64(content))
            let session = try await bucket.begin(name)
            let id = session.id.text
            say("begun \(id) \(name) \(size) \(content)")
            var offset = 0
            for _ in 0..<random.next(below: 6) {
                let end = offset + random.next(below: size - offset + 1)
                let append = try await session.append(
                    AppendPlan(at: UInt64(offset), isAllOrNothing: random.next(below: 4) == 0))
                try await append.fill(Array(bytes[offset..<end]))
                offset = Int(try await append.end())
                say("durable \(id) \(offset)")
            }
            switch random.next(below: 5) {
            case 0: break
            case 1:
                say("cancel \(id)")
                try await session.cancel()
                say("cancelled \(id)")
            default:
                offset = try await session.append(Array(bytes[offset...]), at: offset)
                say("durable \(id) \(offset)")
                say("commit \(id)")
                let generation = try await session.commitAll().metadata.generation
                say("committed \(id) \(generation)")
            }
        }
    }

    static let partSizes = [0, 1, 5000, 50_000, 50_000, 50_000, 200_000]

    /// Uploads in parts, one after the other, each of a name of its own: two parts at a time, in any order and some of them
    /// twice, then committed, cancelled or left.
    static func uploadParts(_ bucket: DirectoryBucket, _ lane: Int, _ seed: UInt64) async throws {
        var random = Random(state: seed &* 1_000_003 &+ UInt64(lane))
        for number in 0... {
            let name = "\(seed)/\(lane)/\(number)"
            let upload = try await bucket.beginUpload(name)
            let id = upload.id.text
            say("begun \(id) \(name)")
            let count = 1 + random.next(below: 6)
            for _ in 0..<random.next(below: 5) {
                let first = 1 + random.next(below: count)
                let pair = [first, first % count + 1].prefix(count)
                let plans = pair.map { number in
                    let size = partSizes[random.next(below: partSizes.count)]
                    return (number: number, size: size, content: random.next(below: 1_000_000))
                }
                try await withThrowingTaskGroup(of: Void.self) { group in
                    for part in plans {
                        group.addTask(executorPreference: EventLoop.current) {
                            say("try \(id) \(part.number) \(part.size) \(part.content)")
                            try await upload.send(part.number, pattern(part.size, seed: UInt64(part.content)))
                            say("part \(id) \(part.number)")
                        }
                    }
                    try await group.waitForAll()
                }
            }
            switch random.next(below: 5) {
            case 0: break
            case 1:
                say("cancel \(id)")
                try await upload.cancel()
                say("cancelled \(id)")
            default:
                let numbers = try await upload.parts(after: 0, limit: count).map(\.number)
                if numbers.isEmpty { continue }
                say("commit \(id)")
                let generation = try await upload.commitAll(numbers).metadata.generation
                say("committed \(id) \(generation)")
            }
        }
    }

    static func unlessMissing(_ body: () async throws -> Void) async throws {
        do {
            try await body()
        } catch let error as BucketError where error.code == .objectNotFound {}
    }

    /// One line, in one write: lines never mix, and none is lost in a buffer.
    static func say(_ line: String) {
        var text = line + "\n"
        text.withUTF8 { bytes in
            if write(1, bytes.baseAddress, bytes.count) != bytes.count { exit(1) }
        }
    }
}

/// A small generator: the same seed gives the same storm.
struct Random {
    var state: UInt64

    mutating func next(below bound: Int) -> Int {
        state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
        return Int(state >> 33) % bound
    }
}
