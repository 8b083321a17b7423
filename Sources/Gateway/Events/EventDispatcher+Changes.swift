import Buckets
import Logging
import System
import Wire

/// What operators and reloads change.
extension EventDispatcher {
    /// How long a change waits for requests under way, in nanoseconds. Those that take longer are given up, and their
    /// events are sent again.
    private static let changeLimit: UInt64 = 2_000_000_000

    private var isIdle: Bool { sending.isEmpty && !isReading && !isSettling && !isAsking && !isChanging }

    func resumeIdle() {
        guard isHalted, isIdle, !idleWaiters.isEmpty else { return }
        let waiters = idleWaiters
        idleWaiters = []
        for waiter in waiters { waiter.resume() }
    }

    /// Waits until nothing is under way. Gives up the requests that take longer than `limit` nanoseconds.
    private func whenIdle(within limit: UInt64) async {
        let alarm = LoopTimer { [self] in
            asking?.cancel()
            for task in sending.values { task.cancel() }
        }
        loop.arm(alarm, after: limit)
        while !isIdle { await withUnsafeContinuation { idleWaiters.append($0) } }
        loop.disarm(alarm)
    }

    /// Begins nothing more, after the changes that came before, and waits for what is under way.
    /// - Returns: Whether the change can be made; then ``proceed()`` must follow. Not when the dispatcher is closing.
    private func halt() async -> Bool {
        while isHalted, !isClosing { await withUnsafeContinuation { haltWaiters.append($0) } }
        if isClosing { return false }
        isHalted = true
        await whenIdle(within: EventDispatcher.changeLimit)
        isChanging = !isClosing
        return isChanging
    }

    /// Lets the next change begin, or deliveries.
    private func proceed() {
        (isHalted, isChanging) = (isClosing, false)
        let waiters = haltWaiters
        haltWaiters = []
        for waiter in waiters { waiter.resume() }
        step()
    }

    /// Runs a change of the stored progress while nothing is under way, and starts again from it.
    func change<Result: Sendable>(
        _ body: () async throws(BucketError) -> Result
    ) async throws(BucketError) -> Result {
        guard await halt() else { throw BucketError(.unavailable, "the subscription was removed") }
        defer { proceed() }
        if let settlement = state?.takeSettlement(at: now) { await write(settlement) }
        let result = try await body()
        // What follows from the old progress must not be written any more.
        forget()
        try await readProgress()
        return result
    }

    /// Sends events again. Returns their number.
    func replay(_ replay: EventReplay) async throws(BucketError) -> Int {
        try await onLoop { [self] () async throws(BucketError) -> Int in
            try await change { () async throws(BucketError) -> Int in
                try await log.replayEvents(name, replay)
            }
        }
    }

    /// Removes the dead events. Returns their number.
    func dropDead() async throws(BucketError) -> Int {
        try await onLoop { [self] () async throws(BucketError) -> Int in
            let count = try await log.removeDeadEvents(name, before: .max)
            state?.removedDead(count)
            step()
            return count
        }
    }

    /// Takes another configuration of the subscription. Requests under way end before, or are given up.
    func replace(_ sender: WebhookSender) {
        loop.execute { [self] in
            // Only the last one counts.
            let skipped = nextSender
            nextSender = sender
            Task(executorPreference: loop) { [self] in
                await skipped?.close()
                await takeNextSender()
            }
        }
    }

    private func takeNextSender() async {
        guard nextSender != nil, await halt() else { return }
        let old = sender
        // Another one may have come meanwhile.
        if let next = nextSender {
            nextSender = nil
            sender = next
            subscription = next.subscription
            (isPermitted, permissionTime, permittedInterval) = (false, 0, 0)
            state?.limits = subscription.limits
            state?.keep { next.subscription.wants($0.kind, $0.object.name) }
            // What the old sink has answered last does not count. The same one has asked for its silence.
            state?.resume(at: now, keepsSilence: next.subscription.isSameSink(as: old.subscription))
        }
        proceed()
        if old !== sender { await old.close() }
    }

    /// Takes other keys for the next requests.
    func replace(_ keys: WebhookKeys?) {
        loop.execute { [self] in
            sender.replace(keys)
            nextSender?.replace(keys)
        }
    }

    /// Sends again to a sink that did not want events, or failed.
    func resume() {
        loop.execute { [self] in
            state?.resume(at: now)
            permissionTime = 0
            step()
        }
    }

    /// Sends again to a sink that did not want events, after a reload.
    func reopen() {
        loop.execute { [self] in
            state?.isGone = false
            step()
        }
    }

    /// Runs work on the dispatcher's loop, from any task.
    func onLoop<Result: Sendable>(
        _ body: @escaping @Sendable () async throws(BucketError) -> Result
    ) async throws(BucketError) -> Result {
        let task = Task(executorPreference: loop) { () async -> Swift.Result<Result, BucketError> in
            do throws(BucketError) { return .success(try await body()) } catch { return .failure(error) }
        }
        return try await task.value.get()
    }

    /// Begins nothing more, waits for at most `limit` nanoseconds for what is under way, and writes what is settled.
    func close(within limit: UInt64) async {
        let task = Task(executorPreference: loop) { [self] in
            (isHalted, isClosing) = (true, true)
            let waiters = haltWaiters
            haltWaiters = []
            for waiter in waiters { waiter.resume() }
            log.removeEventObserver(self)
            await whenIdle(within: limit)
            if let settlement = state?.takeSettlement(at: now) { await write(settlement) }
            isClosed = true
            if let timer { loop.disarm(timer) }
            timer = nil
            await sender.close()
            await nextSender?.close()
        }
        await task.value
    }
}
