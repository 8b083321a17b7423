import Glibc
import System
import Wire

extension PrometheusRegistry {
    /// Adds metrics of the build and the usual ones of a process (`process_…`), from `/proc` at each scrape.
    public func addProcess(_ build: BuildInfo) {
        let labels = [
            PrometheusLabel("version", build.version), PrometheusLabel("swift", build.swift),
            PrometheusLabel("commit", build.commit ?? "unknown"),
            PrometheusLabel("date", build.date ?? "unknown"),
        ]
        let started = ProcessFacts.startTime()
        collect { text in
            text.family("sluice_build_info", .gauge, "The build; always 1.")
            text.sample("sluice_build_info", labels, 1)
            text.family("process_cpu_seconds_total", .counter, "CPU time, user and system.")
            text.sample("process_cpu_seconds_total", [], ProcessFacts.cpuSeconds())
            text.single(
                "process_resident_memory_bytes", .gauge, "Resident memory.",
                ProcessFacts.residentBytes())
            text.single(
                "process_open_fds", .gauge, "Open descriptors.", ProcessFacts.openDescriptors())
            text.single(
                "process_max_fds", .gauge, "Maximum number of open descriptors.",
                ProcessFacts.maximumDescriptors())
            text.family(
                "process_start_time_seconds", .gauge,
                "Start time of the process, in seconds since the Unix epoch.")
            text.sample("process_start_time_seconds", [], started)
        }
    }
}

/// The kernel's figures about this process. A figure that can't be read is zero.
enum ProcessFacts {
    static func cpuSeconds() -> Double {
        var usage = rusage()
        getrusage(__rusage_who_t(RUSAGE_SELF.rawValue), &usage)
        let seconds = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec
        return Double(seconds) + Double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6
    }

    static func residentBytes() -> Int {
        let fields = contents("/proc/self/statm").split(separator: " ")
        guard fields.count > 1, let pages = Int(fields[1]) else { return 0 }
        return pages * sysconf(Int32(_SC_PAGESIZE))
    }

    static func openDescriptors() -> Int {
        var status = stat()
        // On Linux 6.2 and newer the directory's size is the number.
        if stat("/proc/self/fd", &status) == 0, status.st_size > 0 { return Int(status.st_size) }
        guard let directory = opendir("/proc/self/fd") else { return 0 }
        defer { closedir(directory) }
        var count = 0
        while readdir(directory) != nil { count += 1 }
        // Don't count `.`, `..` and the directory's own descriptor.
        return max(0, count - 3)
    }

    static func maximumDescriptors() -> UInt {
        var limit = rlimit()
        getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
        return limit.rlim_cur
    }

    /// Seconds since the Unix epoch.
    static func startTime() -> Double {
        // The name in parentheses may contain any character; only numbers follow it (proc(5)).
        let stat = contents("/proc/self/stat")
        guard let end = stat.lastIndex(of: ")") else { return 0 }
        let fields = stat[end...].split(separator: " ")
        guard fields.count > 20, let ticks = Double(fields[20]) else { return 0 }
        let real = SystemClock.time()
        var boot = timespec()
        clock_gettime(CLOCK_BOOTTIME, &boot)
        let uptime = Double(boot.tv_sec) + Double(boot.tv_nsec) / 1e9
        let now = Double(real.tv_sec) + Double(real.tv_nsec) / 1e9
        let started = now - uptime + ticks / Double(sysconf(Int32(_SC_CLK_TCK)))
        return (started * 100).rounded() / 100
    }

    private static func contents(_ path: String) -> String {
        let descriptor = open(path, O_RDONLY | O_CLOEXEC)
        guard descriptor >= 0 else { return "" }
        defer { close(descriptor) }
        var buffer = [UInt8](repeating: 0, count: 4096)
        let count = read(descriptor, &buffer, buffer.count)
        return count > 0 ? String(decoding: buffer[..<count], as: UTF8.self) : ""
    }
}
