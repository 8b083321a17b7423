import Glibc

/// The system's clock, which can be set back; use ``EventLoop/monotonicNow()`` for durations.
public enum SystemClock {
    /// The time since 1970.
    public static func time() -> timespec {
        var time = timespec()
        clock_gettime(CLOCK_REALTIME, &time)
        return time
    }

    /// Whole seconds since 1970.
    @Sendable public static func seconds() -> Int64 { Int64(time().tv_sec) }

    /// Nanoseconds since 1970.
    public static func nanoseconds() -> UInt64 {
        let time = time()
        return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
    }

    /// Whole microseconds since 1970.
    @Sendable public static func microseconds() -> Int64 {
        let time = time()
        return Int64(time.tv_sec) * 1_000_000 + Int64(time.tv_nsec) / 1000
    }
}
