import Foundation

#if os(Linux)
    import System
#endif

/// Runs the transfers on threads of the library: they wait for files, which must not take the threads of Swift's tasks.
final class Workers: TaskExecutor {
    static let shared = Workers()
    #if os(Linux)
        private let pool = BlockingPool(threads: 4)
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
