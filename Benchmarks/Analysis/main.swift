import Glibc
import RulesAnalysis
import SecurityRules
import Wire

// Measures `sluice rules diff` on real rules: for each file of a directory, several changed copies of it. It counts the
// questions that are decided within 5 seconds, and looks with random requests for openings that were missed.

guard CommandLine.arguments.count == 2, let directory = opendir(CommandLine.arguments[1]) else {
    print("usage: AnalysisBenchmark DIRECTORY")
    exit(64)
}
var names: [String] = []
while let entry = readdir(directory) {
    let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
    }
    if name.utf8.first != UInt8(ascii: ".") { names.append(name) }
}
closedir(directory)

/// The text of a file.
func read(_ path: String) -> String {
    guard let file = fopen(path, "r") else { return "" }
    defer { fclose(file) }
    var bytes = [UInt8](repeating: 0, count: 1 << 20)
    let count = fread(&bytes, 1, bytes.count, file)
    return String(decoding: bytes.prefix(count), as: UTF8.self)
}

struct Totals {
    var files = 0
    var questions = 0
    var decided = 0
    var opening = 0
    var missed = 0
    var contradicted = 0
    var unconfirmed = 0
    var milliseconds: [Int] = []
}

let solver = try Solver()
let clock = ContinuousClock()
var totals = Totals()
for name in names.sorted() {
    let source = read("\(CommandLine.arguments[1])/\(name)")
    guard let old = try? Ruleset.load(source: source, fileName: "old") else {
        print("does not load: \(name)")
        continue
    }
    totals.files += 1
    for new in Mutations.of(source) {
        let start = clock.now
        let diff = RulesDiff(from: old, to: new, solver, milliseconds: 2_500)
        let milliseconds = Int((clock.now - start) / .milliseconds(1))
        totals.milliseconds.append(milliseconds)
        for side in [diff.opened, diff.closed] {
            totals.questions += 1
            if side.open.isEmpty, milliseconds < 5_000 { totals.decided += 1 }
        }
        for open in diff.opened.open + diff.closed.open {
            print(
                "\(name): \(new.fileName): \(milliseconds) ms, \(open.methods): \(open.obstacles.map { "\($0)" }.joined(separator: "; "))"
            )
        }
        if !diff.opened.changes.isEmpty { totals.opening += 1 }
        // Does a random request find what the analysis has not?
        // Other requests than those that the analysis tries.
        var sampler = RequestSampler([AnalyzedRules(old), AnalyzedRules(new)], seed: 7)
        for method in Method.allCases
        where !diff.opened.changes.contains(where: { $0.examples.contains { $0.method == method } }) {
            for _ in 0..<300 {
                var request = sampler.next(method)
                guard request.isAllowed(by: new) == true, request.isAllowed(by: old) == false else { continue }
                if diff.opened.provenMethods.contains(method) {
                    totals.contradicted += 1
                    print("CONTRADICTED \(name): \(new.fileName): \(request.text.utf8.count) bytes")
                } else {
                    totals.missed += 1
                    print("missed \(name): \(new.fileName): \(request.text.utf8.count) bytes")
                }
                break
            }
        }
    }
}
totals.milliseconds.sort()
let times = totals.milliseconds
func quantile(_ share: Double) -> Int { times.isEmpty ? 0 : times[Int(Double(times.count - 1) * share)] }
print(
    """
    \(totals.files) files, \(totals.questions) questions: \(totals.decided) decided \
    (\(100 * totals.decided / max(1, totals.questions)) %); \(totals.opening) changes open something, \(totals.missed) not found, \
    \(totals.contradicted) proofs contradicted; milliseconds for both directions: \
    median \(quantile(0.5)), 95 % \(quantile(0.95)), most \(quantile(1))
    """)
