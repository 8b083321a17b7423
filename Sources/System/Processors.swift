import CLinux
import Glibc
import Wire

/// The number of processors that this process may use.
public enum Processors {
    /// The smaller of the affinity mask and the cgroup's CPU quota (rounded up), at least 1.
    public static func available(cgroup root: String = "/sys/fs/cgroup") -> Int {
        // 1,024 processors, as in cpu_set_t.
        var set = [UInt64](repeating: 0, count: 16)
        var count = 1
        if sched_getaffinity(0, 128, &set) >= 0 {
            count = set.reduce(0) { $0 + $1.nonzeroBitCount }
        }
        return max(1, min(count, quota(root) ?? count))
    }

    /// The quota of cgroup version 2 (`cpu.max`) or 1 (`cpu.cfs_quota_us`); nil if there is none.
    static func quota(_ root: String) -> Int? {
        var quota: Int?
        var period: Int?
        if let text = contents(root + "/cpu.max") {
            let parts = text.split(whereSeparator: \.isWhitespace)
            quota = parts.first.flatMap { Int($0) }
            period = parts.dropFirst().first.flatMap { Int($0) }
        } else {
            quota = contents(root + "/cpu/cpu.cfs_quota_us").flatMap { Int($0) }
            period = contents(root + "/cpu/cpu.cfs_period_us").flatMap { Int($0) }
        }
        guard let quota, let period, quota > 0, period > 0 else { return nil }
        return (quota + period - 1) / period
    }

    private static func contents(_ path: String) -> String? {
        let descriptor = open(path, O_RDONLY | O_CLOEXEC)
        guard descriptor >= 0 else { return nil }
        defer { close(descriptor) }
        var buffer = [UInt8](repeating: 0, count: 256)
        let count = read(descriptor, &buffer, buffer.count)
        guard count > 0 else { return nil }
        let text = String(decoding: buffer[..<count], as: UTF8.self)
        return text.last == "\n" ? String(text.dropLast()) : text
    }
}
