import System
import Testing

/// One refresh at a time, and those who wait for it.
@Suite(.timeLimit(.minutes(1))) struct RefreshingTests {
    private func begin(_ refreshing: Refreshing<Int>) -> Bool {
        refreshing.begin { _, _ in ((), true) }.begins
    }

    @Test func oneRunsAtATime() async {
        let refreshing = Refreshing(0)
        #expect(
            refreshing.begin { value, phase in (value + (phase == .idle ? 1 : 0), false) } == (
                1, false
            ))
        let (first, second) = (begin(refreshing), begin(refreshing))
        #expect(first && !second)
        #expect(refreshing.begin { _, phase in (phase == .running, true) } == (true, false))
        let ended = refreshing.end { value in
            value += 7
            return value
        }
        #expect(ended == 7 && refreshing.withState { $0 } == 7)
        #expect(begin(refreshing))
    }

    @Test func allWaitForItsEnd() async {
        let refreshing = Refreshing(0)
        await refreshing.wait()
        #expect(begin(refreshing))
        let waiting = (0..<20).map { _ in
            Task {
                await refreshing.wait()
                return refreshing.withState { $0 }
            }
        }
        await Task.yield()
        refreshing.end { $0 = 1 }
        for task in waiting { #expect(await task.value == 1) }
    }

    @Test func nobodyWaitsForASlowOne() async {
        let refreshing = Refreshing(0)
        #expect(begin(refreshing))
        let waiting = Task { await refreshing.wait() }
        await Task.yield()
        refreshing.stopWaiting()
        await waiting.value
        await refreshing.wait()
        #expect(refreshing.begin { _, phase in (phase == .slow, true) } == (true, false))
        refreshing.end { _ in }
        refreshing.stopWaiting()
        #expect(refreshing.begin { _, phase in (phase == .idle, false) } == (true, false))
    }
}
