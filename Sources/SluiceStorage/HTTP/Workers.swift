import Foundation

#if os(Linux)
    import System
#endif

/// Runs the transfers on threads of the library: they wait for files, which must not take the threads of Swift's tasks.
final class Workers: TaskExecutor {
    static let shared = Workers()
    #if os(Linux)
        private let pool = BlockingPool(threads: 4)

        /// Has glibc return each piece of a transfer to the system when it is freed: otherwise each thread keeps some, which
        /// tripled the memory of an upload. Swift's module of glibc leaves mallopt(3) out.
        private init() {
            typealias Function = @convention(c) (Int32, Int32) -> Int32
            let mmapThreshold: Int32 = -3
            guard let symbol = dlsym(nil, "mallopt") else { return }
            _ = unsafeBitCast(symbol, to: Function.self)(mmapThreshold, 1 << 20)
        }
    #else
        private let queue = DispatchQueue(label: "SluiceStorage.workers", attributes: .concurrent)
    #endif

    func enqueue(_ job: consuming ExecutorJob) {
        let job = UnownedJob(job)
        #if os(Linux)
            pool.submit { job.runSynchronously(on: self.asUnownedTaskExecutor()) }
        #else
            queue.async { job.runSynchronously(on: self.asUnownedTaskExecutor()) }
        #endif
    }
}
