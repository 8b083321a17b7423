import Glibc
import System
import Testing

@Suite struct ReceiveCoalescingTests {
    private static let (start, fast) = (UInt64(1_000_000_000), ReceiveCoalescing.limit)
    private let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)

    /// The number of bytes from which the kernel reports the socket.
    private var lowWater: Int32 {
        var (value, length) = (Int32(0), socklen_t(4))
        getsockopt(descriptor, SOL_SOCKET, SO_RCVLOWAT, &value, &length)
        return value
    }

    /// One whose last bytes arrived in the given time, which ends at `start`.
    private func receiving(within time: UInt64) -> ReceiveCoalescing {
        var coalescing = ReceiveCoalescing()
        for now in [Self.start - time, Self.start] {
            coalescing.received(ReceiveCoalescing.maximum)
            coalescing.wait(descriptor, for: 0, now)
        }
        return coalescing
    }

    @Test(arguments: [
        (0, 1), (17 << 10, 1), (49 << 10 - 1, 1), (49 << 10, 32 << 10),
        (100_000, 100_000 - 17 << 10),
        (145 << 10, 128 << 10), (Int.max, 128 << 10),
    ])
    func theKernelWaitsForNoMoreThanIsExpected(expected: Int, lowWater: Int) {
        var coalescing = receiving(within: Self.fast)
        coalescing.wait(descriptor, for: expected, Self.start)
        #expect(self.lowWater == Int32(lowWater))
        #expect(coalescing.deadline == (lowWater > 1 ? Self.start + ReceiveCoalescing.limit : .max))
        Glibc.close(descriptor)
    }

    @Test func bytesThatArriveSlowlyAreReportedAtOnce() {
        var coalescing = receiving(within: Self.fast + 1)
        coalescing.wait(descriptor, for: .max, Self.start)
        #expect(lowWater == 1)
        #expect(coalescing.deadline == .max)
        Glibc.close(descriptor)
    }

    @Test func afterTheDeadlineBytesMustArriveFastAgain() {
        var coalescing = receiving(within: Self.fast)
        coalescing.wait(descriptor, for: .max, Self.start)
        #expect(lowWater == Int32(ReceiveCoalescing.maximum))
        let now = coalescing.deadline
        coalescing.expired()
        #expect(coalescing.deadline == .max)
        // These have arrived since the wait began, which is the longest time for fast bytes.
        coalescing.received(ReceiveCoalescing.maximum - 1)
        coalescing.wait(descriptor, for: .max, now)
        #expect(lowWater == 1)
        coalescing.received(1)
        coalescing.wait(descriptor, for: .max, now)
        #expect(lowWater == Int32(ReceiveCoalescing.maximum))
        coalescing.expired()
        coalescing.received(ReceiveCoalescing.maximum)
        coalescing.wait(descriptor, for: .max, now + Self.fast + 1)
        #expect(lowWater == 1)
        Glibc.close(descriptor)
    }

    @Test func aTurnWithoutBytesDoesNotDelayThoseThatWait() {
        var coalescing = receiving(within: Self.fast)
        coalescing.wait(descriptor, for: .max, Self.start)
        let deadline = coalescing.deadline
        coalescing.wait(descriptor, for: .max, Self.start + 1)
        #expect(coalescing.deadline == deadline)
        coalescing.received(1)
        #expect(coalescing.deadline == .max)
        coalescing.wait(descriptor, for: .max, Self.start + 1)
        #expect(coalescing.deadline == deadline + 1)
        Glibc.close(descriptor)
    }

    @Test func theSpeedOfABodyDoesNotCountForTheNextOne() {
        var coalescing = receiving(within: Self.fast)
        coalescing.wait(descriptor, for: .max, Self.start)
        coalescing.end(descriptor)
        #expect(lowWater == 1)
        #expect(coalescing.deadline == .max)
        coalescing.received(ReceiveCoalescing.maximum)
        coalescing.wait(descriptor, for: .max, Self.start)
        #expect(lowWater == 1)
        Glibc.close(descriptor)
    }
}
