import System
import Testing

@Suite("The memory of the process", .serialized)
struct ProcessMemoryTests {
    @Test("Code that is given back takes no memory until it runs again, and runs as before")
    func releasesCode() async {
        // In a process of its own: other tests would run code meanwhile.
        await #expect(processExitsWith: .success) {
            let before = try Self.residentCode()
            ProcessMemory.releaseCode()
            let after = try Self.residentCode()
            #expect(before > 1024 && after < before)
            #expect([3, 1, 2].sorted().map(String.init) == ["1", "2", "3"])
        }
    }

    /// The resident code in KiB.
    private static func residentCode() throws -> Int {
        let text = String(
            decoding: try File.contents(of: "/proc/self/smaps", limit: 1 << 24), as: UTF8.self)
        var (total, isCode) = (0, false)
        for line in text.split(separator: "\n") {
            let words = line.split(separator: " ")
            if words.count >= 5, words[1].count == 4 { isCode = words[1] == "r-xp" }
            if isCode, words[0] == "Rss:" { total += Int(words[1]) ?? 0 }
        }
        return total
    }
}
