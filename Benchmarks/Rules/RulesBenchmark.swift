import CAllocations
import Glibc
import SecurityRules

/// Measures decisions and loading. Prints the nanoseconds of processor time and the heap allocations for each: the
/// median of several runs.
///
/// An argument selects the cases whose names contain it.
@main
struct RulesBenchmark {
    static let reference = """
        rules_version = '2';
        service firebase.storage {
          match /b/{bucket}/o {
            match /users/{userId}/{file=**} {
              allow write: if request.auth != null
                && request.auth.uid == userId
                && request.resource.size < 5 * 1024 * 1024
                && request.resource.contentType.matches('image/.*');
            }
          }
        }
        """

    static let withFunctions = """
        rules_version = '2';
        service firebase.storage {
          function signedIn() { return request.auth != null; }
          function owns(id) { return signedIn() && request.auth.uid == id; }
          function isSmallImage(type) {
            let limit = 5 * 1024 * 1024;
            return request.resource.size < limit && request.resource.contentType.matches(type);
          }
          match /b/{bucket}/o/users/{userId}/{file=**} {
            allow write: if owns(userId) && isSmallImage('image/.*');
          }
        }
        """

    static func main() throws {
        print("case                                        ns  allocations")
        let request = upload(to: "users/abcdefghijklmnopqrstuvwxyz/holiday/cat.png")
        try decide("reference rule", reference, request)
        try decide("reference rule, in functions", withFunctions, request)
        let general = reference.replacing("'image/.*'", with: "'image/(png|jpe?g|gif|webp)'")
        try decide("reference rule, alternatives through RE2", general, request)
        try decide("200 match blocks", blocks(200), upload(to: "folder150/alice/cat.png"))
        try decide("2,000 match blocks", blocks(2000), upload(to: "folder1500/alice/cat.png"))
        let long = [String](repeating: "x", count: 500).joined(separator: "/")
        try decide("name of 500 segments, denied", reference, upload(to: long))
        try decide("call bomb, to its limit", bomb, request)
        var early = request
        early.incoming?.set(.size, .unknown)
        try decide("reference rule, size unknown", reference, early)
        try make()
        try load()
    }

    static func upload(to name: String) -> Request {
        var incoming = ObjectFacts(name: name, bucket: "photos.example.com")
        incoming.set(.size, .known(.int(123_456)))
        incoming.set(.contentType, .known(.string("image/png")))
        return Request(
            .create, bucket: "photos.example.com", object: name,
            caller: Caller(
                uid: name.split(separator: "/").count > 1
                    ? String(name.split(separator: "/")[1]) : "",
                token: ["email": "alice@example.com"]),
            time: Timestamp(seconds: 1_714_564_800)!, existing: .absent, incoming: incoming)
    }

    static func blocks(_ count: Int) -> String {
        let blocks = (0..<count).map {
            "match /folder\($0)/{user}/{file} { allow write: if request.auth.uid == user"
                + " && request.resource.size < \($0 + 1) * 1024 * 1024; }"
        }
        return "rules_version = '2'; service firebase.storage { match /b/{bucket}/o { "
            + blocks.joined(separator: "\n") + " } }"
    }

    static var bomb: String {
        let functions = (1...19).map { level in
            let callee = level == 1 ? "request.auth != null" : "f\(level - 1)()"
            return "function f\(level)() { return \(callee) && \(callee); }"
        }
        return
            "rules_version = '2'; service firebase.storage { \(functions.joined(separator: "\n"))"
            + " match /b/{bucket}/o/{all=**} { allow write: if f19(); } }"
    }

    // MARK: Measuring

    static func decide(_ name: String, _ source: String, _ request: Request) throws {
        let rules = try Ruleset.load(source: source)
        measure(name, times: 20_000) { _ = blackHole(rules.decide(request)) }
    }

    /// The cost of creating a request, which a gateway does once for several decisions.
    static func make() throws {
        measure("making a request", times: 20_000) {
            _ = blackHole(upload(to: "users/alice/cat.png").method)
        }
    }

    static func load() throws {
        var source = blocks(1900)
        source += String(
            repeating: " ", count: max(0, Ruleset.maximumSourceLength - source.utf8.count))
        precondition(source.utf8.count <= Ruleset.maximumSourceLength)
        let rules = try Ruleset.load(source: source)
        measure("loading 256 KiB, 1,900 blocks", times: 5) {
            _ = blackHole((try? Ruleset.load(source: source))?.version == rules.version)
        }
    }

    @inline(never)
    static func blackHole<Value>(_ value: Value) -> Value { value }

    static func measure(_ name: String, times: Int, _ body: () -> Void) {
        guard CommandLine.arguments.dropFirst().allSatisfy({ name.contains($0) }) else { return }
        for _ in 0..<times / 10 { body() }
        var results: [Double] = []
        for _ in 0..<9 {
            let start = now()
            for _ in 0..<times { body() }
            results.append(Double(now() - start) / Double(times))
        }
        let before = sluice_allocations()
        for _ in 0..<times { body() }
        let each = Double(sluice_allocations() - before) / Double(times)
        let time = String(Int(results.sorted()[4].rounded()))
        let padding = String(repeating: " ", count: max(1, 46 - name.count - time.count))
        print("\(name)\(padding)\(time)  \(each)")
    }

    static func now() -> UInt64 {
        var time = timespec()
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
        return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
    }
}
