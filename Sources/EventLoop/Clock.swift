import Glibc

/// Seconds since 1970 by the system's clock.
@Sendable public func systemSeconds() -> Int64 {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    return Int64(time.tv_sec)
}
