/// A timer that a loop can arm and disarm repeatedly without allocating.
public final class LoopTimer {
    fileprivate(set) var deadline: UInt64 = 0
    fileprivate var index = -1
    private let fire: () -> Void

    /// Creates a disarmed timer; `fire` runs on the loop's thread.
    public init(_ fire: @escaping () -> Void) { self.fire = fire }

    /// Whether the timer is waiting to fire.
    public var isArmed: Bool { index >= 0 }

    func callAsFunction() { fire() }
}

/// A binary heap of armed timers, earliest first. Each timer stores its index, so removal is O(log n).
struct TimerHeap {
    private var heap: [LoopTimer] = []

    var nextDeadline: UInt64? { heap.first?.deadline }

    mutating func set(_ timer: LoopTimer, deadline: UInt64) {
        timer.deadline = deadline
        if timer.index < 0 {
            timer.index = heap.count
            heap.append(timer)
        }
        siftUp(timer.index)
        siftDown(timer.index)
    }

    mutating func remove(_ timer: LoopTimer) {
        let index = timer.index
        guard index >= 0 else { return }
        timer.index = -1
        let last = heap.removeLast()
        guard last !== timer else { return }
        heap[index] = last
        last.index = index
        siftUp(index)
        siftDown(last.index)
    }

    /// Removes and returns the earliest timer if it is due.
    mutating func takeDue(_ now: UInt64) -> LoopTimer? {
        guard let first = heap.first, first.deadline <= now else { return nil }
        remove(first)
        return first
    }

    private mutating func siftUp(_ start: Int) {
        var child = start
        while child > 0 {
            let parent = (child - 1) / 2
            if heap[parent].deadline <= heap[child].deadline { return }
            exchange(parent, child)
            child = parent
        }
    }

    private mutating func siftDown(_ start: Int) {
        var parent = start
        while true {
            var least = 2 * parent + 1
            if least >= heap.count { return }
            if least + 1 < heap.count, heap[least + 1].deadline < heap[least].deadline {
                least += 1
            }
            if heap[parent].deadline <= heap[least].deadline { return }
            exchange(parent, least)
            parent = least
        }
    }

    private mutating func exchange(_ first: Int, _ second: Int) {
        heap.swapAt(first, second)
        heap[first].index = first
        heap[second].index = second
    }
}
