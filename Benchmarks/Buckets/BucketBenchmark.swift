import Buckets
import Glibc
import System

/// Measures the directory driver alone: `BucketBenchmark DIRECTORY [OBJECTS]`. The directory must not exist.
///
/// `BucketBenchmark seed DIRECTORY OBJECTS` only fills a bucket with small objects at its root, for other measurements.
@main
struct BucketBenchmark {
    static func main() async throws {
        var arguments = CommandLine.arguments.dropFirst()
        let isSeed = arguments.first == "seed"
        if isSeed { arguments.removeFirst() }
        guard let path = arguments.first,
            let objects = arguments.count == 1 && !isSeed ? 10_000 : Int(arguments.last ?? ""),
            arguments.count <= 2, objects > 0
        else {
            print(
                "usage: BucketBenchmark DIRECTORY [OBJECTS] | BucketBenchmark seed DIRECTORY OBJECTS"
            )
            exit(64)
        }
        let pool = BlockingPool(threads: 4)
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        let bucket = try DirectoryBucket(path: path, pool: pool)
        let work = Task(executorPreference: loop) {
            let benchmark = BucketBenchmark(bucket: bucket, objects: objects)
            if isSeed {
                try await benchmark.put("o", size: 16, count: objects, 256)
            } else {
                try await benchmark.run()
            }
        }
        try await work.value
        await bucket.close()
        loop.stop()
        pthread_join(thread, nil)
    }

    let bucket: DirectoryBucket
    let objects: Int

    func run() async throws {
        for (size, count, lanes) in [
            (1024, objects, 256), (1024, 20_000, 64), (1024, 500, 1), (8192, 5_000, 64),
            (65_536, 2_000, 64), (16 << 20, 16, 4),
        ] {
            let name = "put-\(size)-\(lanes)/"
            let seconds = try await time { try await put(name, size: size, count: count, lanes) }
            report("PUT \(size) B, \(lanes) at once", count, seconds, bytes: size)
        }
        let reads = 200_000
        for hot in [objects, 100] {
            let stat = try await time {
                for index in 0..<reads { _ = try await bucket.stat(name(index % hot)) }
            }
            report("stat, \(hot) names", reads, stat, bytes: 0)
        }
        var chunk = [UInt8](repeating: 0, count: 64 * 1024)
        for (folder, size, count, available) in [
            ("put-1024-256/", 1024, 100_000, objects), ("put-1024-256/", 1024, 100_000, 100),
            ("put-8192-64/", 8192, 50_000, 5_000),
            ("put-65536-64/", 65_536, 20_000, 2_000), ("put-16777216-4/", 16 << 20, 64, 16),
        ] {
            let seconds = try await time {
                var random = UInt64(1)
                for _ in 0..<count {
                    random = random &* 6_364_136_223_846_793_005 &+ 1
                    try await get(
                        folder + "\(Int(random >> 33) % available)", size, &chunk)
                }
            }
            report("GET \(size) B, \(available) names", count, seconds, bytes: size)
        }
        let query = ListQuery(prefix: "put-1024-256/", delimited: true, limit: 1000)
        let pages = 200
        let list = try await time {
            for _ in 0..<pages { _ = try await bucket.list(query, after: nil) }
        }
        report("list 1,000 of \(objects)", pages, list, bytes: 0)
    }

    /// The name of an object, in pseudo-random order.
    func name(_ index: Int) -> String { "put-1024-256/\(index &* 7_919 % objects)" }

    func put(_ folder: String, size: Int, count: Int, _ lanes: Int) async throws {
        let bucket = bucket
        try await withThrowingTaskGroup(of: Void.self) { group in
            for lane in 0..<lanes {
                group.addTask(executorPreference: EventLoop.current) {
                    let body = [UInt8](repeating: UInt8(truncatingIfNeeded: lane), count: size)
                    for index in stride(from: lane, to: count, by: lanes) {
                        let upload = try await bucket.beginUpload(
                            folder + "\(index)",
                            UploadPlan(
                                ObjectAttributes(contentType: "image/png"), size: UInt64(size)))
                        var offset = 0
                        while offset < size {
                            let taken = try upload.write(body.span.bytes.extracting(offset..<size))
                            offset += taken
                            if taken == 0 {
                                await withCheckedContinuation { waiter in
                                    upload.whenWritable { waiter.resume() }
                                }
                            }
                        }
                        _ = try await upload.finish()
                        _ = try await upload.commit(Preconditions())
                    }
                }
            }
            try await group.waitForAll()
        }
    }

    func get(_ name: String, _ size: Int, _ chunk: inout [UInt8]) async throws {
        let reader = try await bucket.open(name, ReadPlan())
        let source = try await reader.bytes(0..<UInt64(size))
        var done = 0
        while true {
            var span = chunk.mutableSpan
            var bytes = span.mutableBytes
            switch try source.read(into: &bytes) {
            case .bytes(let count): done += count
            case .end:
                precondition(done == size)
                source.close()
                return
            case .wait:
                await withCheckedContinuation { waiter in source.whenReadable { waiter.resume() } }
            }
        }
    }

    /// The elapsed time, and the processor time of the whole process.
    struct Duration {
        let seconds: Double
        let processor: Double
    }

    func time(_ body: () async throws -> Void) async throws -> Duration {
        let (start, processor) = (EventLoop.monotonicNow(), BucketBenchmark.processorTime())
        try await body()
        return Duration(
            seconds: Double(EventLoop.monotonicNow() - start) / 1e9,
            processor: BucketBenchmark.processorTime() - processor)
    }

    static func processorTime() -> Double {
        var time = timespec()
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time)
        return Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
    }

    func report(_ what: String, _ count: Int, _ duration: Duration, bytes: Int) {
        let seconds = duration.seconds
        func rounded(_ value: Double) -> Double { (value * 100).rounded() / 100 }
        let rate = Int(Double(count) / seconds)
        let volume = bytes == 0 ? "" : ", \(Int(Double(count * bytes) / seconds / 1e6)) MB/s"
        let (each, processor) = (
            rounded(seconds / Double(count) * 1e6),
            rounded(duration.processor / Double(count) * 1e6)
        )
        print("\(what): \(each) µs each (processor \(processor) µs), \(rate)/s\(volume)")
    }
}
