import BucketConformance
import Buckets
import TestSupport
import Testing

@Suite("S3 lists, whatever order the service has", .serialized, .timeLimit(.minutes(5)))
struct S3ListTests {
    /// Names whose segments sort differently in folder order and in byte order.
    static func names(_ random: inout some RandomNumberGenerator) -> [String] {
        var names: Set<String> = []
        for _ in 0..<70 {
            let segments = (0..<Int.random(in: 1...3, using: &random)).map { _ in
                String(
                    (0..<Int.random(in: 1...3, using: &random)).map { place in
                        (place == 0 ? "ab" : "ab-!0 .").randomElement(using: &random)!
                    })
            }
            names.insert(segments.map { $0.hasSuffix(".") ? $0 + "x" : $0 }.joined(separator: "/"))
        }
        return Array(names)
    }

    /// The expected entries of a list, in byte order.
    static func expected(_ names: [String], _ prefix: String, _ delimited: Bool) -> [String] {
        let shown = names.filter { $0.utf8.starts(with: prefix.utf8) }.map { name in
            let rest = name.dropFirst(prefix.count)
            guard delimited, let slash = rest.firstIndex(of: "/") else { return name }
            return prefix + rest[...slash]
        }
        return Set(shown).sorted { $0.utf8.lexicographicallyPrecedes($1.utf8) }
    }

    /// The entries of all pages. The items and prefixes of each page are merged in order.
    static func walked(_ driver: any BucketDriver, _ query: ListQuery) async throws -> [String] {
        var found: [String] = []
        var after: String?
        repeat {
            let page = try await driver.list(query, after: after)
            let entries = (page.items + page.prefixes).sorted {
                $0.utf8.lexicographicallyPrecedes($1.utf8)
            }
            #expect(entries.count <= query.limit && (page.end == nil || !entries.isEmpty))
            if let end = page.end { #expect(entries.last == end) }
            found += entries
            after = page.end
        } while after != nil && found.count < 1000
        return found
    }

    @Test(
        .enabled(if: S3Server.directory != nil), arguments: [S3Server.seaweedfs, .moto],
        [UInt64(1), 2, 3])
    func everyEntryComesOnceAndInByteOrder(_ server: S3Server, _ seed: UInt64) async throws {
        let running = try RunningServer(server)
        try await onLoop {
            var random = SeededGenerator(seed)
            let names = Self.names(&random)
            let bucket = try await running.makeBucket()
            for name in names { _ = try await bucket.put(name, []) }
            for prefix in ["", "a", "a/", "a-", "b/a", "a b", "none"] {
                for delimited in [true, false] {
                    let wanted = Self.expected(names, prefix, delimited)
                    for limit in [1, 2, 3, 7, 33, 1000] {
                        let found = try await Self.walked(
                            bucket, ListQuery(prefix: prefix, delimited: delimited, limit: limit))
                        #expect(
                            found == wanted,
                            "'\(prefix)' \(delimited ? "folded" : "flat") in pages of \(limit)")
                    }
                }
            }
            await bucket.close()
        }
    }
}
