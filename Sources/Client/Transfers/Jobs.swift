import ClientCommands
import SluiceStorage

/// One transfer, or one change of an object.
struct Job: Sendable {
    /// The word for it in JSON: `upload`, `download`, `copy`, `delete`.
    let action: String
    let source: String
    var target: String?
    /// In bytes, if it is known.
    var size: Int64?
    /// Performs the job.
    /// - Returns: The number of bytes, or nil if there was nothing to do.
    let perform: @Sendable (TransferProgress) async throws -> Int64?

    /// The same job with another action.
    func performing(_ perform: @escaping @Sendable (TransferProgress) async throws -> Int64?) -> Job {
        Job(action: action, source: source, target: target, size: size, perform: perform)
    }
}

/// Runs jobs, a limited number of them at a time.
struct Jobs: Sendable {
    let report: Report
    /// One for each job that runs.
    let slots: TransferSlots

    /// Runs the jobs that `produce` submits, while it runs. A failure does not end the other jobs. If all would fail, no
    /// further jobs begin. Running jobs complete, even if `produce` throws.
    func run(
        _ produce: ((Job) async throws -> Void) async throws -> Void
    ) async throws {
        let result: Result<Void, any Error> = await withDiscardingTaskGroup { group in
            do {
                try await produce { job in
                    await slots.acquire()
                    // Further transfers would fail in the same way, each after its retry time.
                    if report.isStopped {
                        slots.release()
                        throw Stopped()
                    }
                    group.addTask {
                        await run(job)
                        slots.release()
                    }
                }
                return .success(())
            } catch {
                return .failure(error)
            }
        }
        try result.get()
    }

    private func run(_ job: Job) async {
        let progress = TransferProgress(job.source, size: job.size)
        let handle = report.display?.begin(progress)
        do {
            let size = try await job.perform(progress)
            if let size {
                progress.set(size)
                report.done(job.action, job.source, job.target, size: size)
            }
            if let handle { report.display?.end(handle, isDone: size != nil) }
        } catch {
            if let handle { report.display?.end(handle, isDone: false) }
            report.failed(
                ClientError(error, about: job.source), job.action, job.source, job.target)
        }
    }
}

/// No further jobs are run; the failure is reported already.
struct Stopped: Error {}
