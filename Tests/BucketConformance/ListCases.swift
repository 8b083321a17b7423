import Buckets
import Wire

extension BucketConformance {
    static let listCases: [Case] = [
        Case("an empty bucket lists nothing") { driver in
            for delimited in [true, false] {
                let query = ListQuery(prefix: "", delimited: delimited, limit: 1000)
                try expectEqual(try await driver.list(query, after: nil), ListPage(), "the page")
            }
        },
        Case("names are folded into prefixes, in byte order", folders),
        Case("pages of any size contain every entry once, in order", pages),
        Case("names that can't be opened are not listed", hidden),
        Case("a list can have the properties of its items", properties),
        Case(
            "an object that exists throughout is listed once while others change", changing),
        Case("a list continues after an entry that was deleted") { driver in
            for name in ["a", "b", "c", "d/x", "e"] { try await driver.put(name, []) }
            let query = ListQuery(prefix: "", delimited: true, limit: 2)
            let first = try await driver.list(query, after: nil)
            try expectEqual(first.end, "b", "end")
            try await driver.delete("b", Preconditions())
            try await driver.delete("d/x", Preconditions())
            let second = try await driver.list(query, after: first.end)
            try expectEqual(second.items, ["c", "e"], "items")
            try expectEqual(second.prefixes, [], "prefixes")
            try expectEqual(second.end, nil, "end")
        },
        Case("a full last page has no continuation") { driver in
            for name in ["a", "b/1", "b/2", "c"] { try await driver.put(name, []) }
            let query = ListQuery(prefix: "", delimited: true, limit: 3)
            let page = try await driver.list(query, after: nil)
            try expectEqual(page.items, ["a", "c"], "items")
            try expectEqual(page.prefixes, ["b/"], "prefixes")
            try expectEqual(page.end, nil, "end")
        },
    ]

    private static let tree = [
        "a", "a.txt", "a/1", "a/2", "a/b/1", "a/b/2", "a/b/c/d", "a0", "b/1", "c", "images/a.png",
        "images/b.png", "images/uid/x", "images/uid/y", "z\u{fffd}", "z\u{10000}", "ä/ö/ü", "日/本",
    ]

    @Sendable private static func folders(_ driver: any BucketDriver) async throws {
        for name in tree.reversed() { try await driver.put(name, []) }
        let wanted: [(String, Bool, [String], [String])] = [
            (
                "", true, ["a/", "b/", "images/", "ä/", "日/"],
                ["a", "a.txt", "a0", "c", "z\u{fffd}", "z\u{10000}"]
            ),
            ("a", true, ["a/"], ["a", "a.txt", "a0"]),
            ("a/", true, ["a/b/"], ["a/1", "a/2"]),
            ("a/b", true, ["a/b/"], []),
            ("a/b", false, [], ["a/b/1", "a/b/2", "a/b/c/d"]),
            ("a/b/", true, ["a/b/c/"], ["a/b/1", "a/b/2"]),
            ("images/", true, ["images/uid/"], ["images/a.png", "images/b.png"]),
            ("ä/ö/", true, [], ["ä/ö/ü"]),
            ("none", true, [], []),
            ("none/", false, [], []),
            ("zz", true, [], []),
        ]
        for (prefix, delimited, prefixes, items) in wanted {
            let page = try await driver.list(
                ListQuery(prefix: prefix, delimited: delimited, limit: 1000), after: nil)
            try expectEqual(page.prefixes, prefixes, "prefixes of '\(prefix)'")
            try expectEqual(page.items, items, "items of '\(prefix)'")
            try expectEqual(page.end, nil, "end of '\(prefix)'")
        }
    }

    @Sendable private static func pages(_ driver: any BucketDriver) async throws {
        for name in tree { try await driver.put(name, []) }
        for prefix in ["", "a", "a/", "images/", "z", "日/"] {
            for delimited in [true, false] {
                let whole = try await driver.list(
                    ListQuery(prefix: prefix, delimited: delimited, limit: 1000), after: nil)
                for limit in 1...tree.count {
                    let walked = try await driver.listAll(
                        prefix: prefix, delimited: delimited, limit: limit)
                    try expectEqual(walked, whole, "'\(prefix)' in pages of \(limit)")
                }
            }
        }
    }

    @Sendable private static func properties(_ driver: any BucketDriver) async throws {
        let names = ["a", "f/b ü+%", "f/c", "f/g/d", "z"]
        for (size, name) in names.enumerated() {
            try await driver.put(
                name, [UInt8](repeating: 1, count: size * 1000),
                ObjectAttributes(contentType: "text/x-\(size)"))
        }
        for (prefix, delimited) in [("", false), ("", true), ("f/", true), ("f/", false)] {
            let query = ListQuery(
                prefix: prefix, delimited: delimited, limit: 2, withProperties: true)
            var after: String?
            var seen: [String] = []
            repeat {
                let page = try await driver.list(query, after: after)
                seen += page.items
                for item in page.items {
                    let object = try await driver.stat(item)
                    guard let listed = page.properties[BytewiseString(item)] else {
                        throw ConformanceFailure(description: "\(item) has no properties")
                    }
                    try expectEqual(listed.size, object.size, "size of \(item)")
                    try expectEqual(listed.etag, object.etag, "etag of \(item)")
                    // Some stores list whole seconds, and of their own clock.
                    try expect(abs(listed.updated - object.updated) < 5000, "time of \(item)")
                    try expect(
                        [nil, object.generation].contains(listed.generation)
                            && [nil, object.md5].contains(listed.md5)
                            && [nil, object.crc32c].contains(listed.crc32c)
                            && [nil, object.attributes.contentType].contains(listed.contentType),
                        "\(listed) are of \(object)")
                }
                after = page.end
            } while after != nil
            let whole = try await driver.listAll(prefix: prefix, delimited: delimited, limit: 1000)
            try expectEqual(seen, whole.items, "items of '\(prefix)'")
            try expectEqual(whole.properties, [:], "properties that were not asked for")
        }
    }

    @Sendable private static func hidden(_ driver: any BucketDriver) async throws {
        let names = [
            "correctPrefix/happyItem", "wrongPrefix//sadItem", "lonelyItem/", "a//b/c", "a//b/d",
            "x/y//z",
        ]
        for name in names { try await driver.put(name, [1]) }
        for limit in [1, 2, 3, 1000] {
            func page(_ prefix: String, _ delimited: Bool = true) async throws -> ListPage {
                try await driver.listAll(prefix: prefix, delimited: delimited, limit: limit)
            }
            let root = try await page("")
            try expectEqual(
                root.prefixes, ["a/", "correctPrefix/", "lonelyItem/", "wrongPrefix/", "x/"], "root"
            )
            try expectEqual(root.items, [], "items of the root")
            try expectEqual(
                try await page("correctPrefix/").items, ["correctPrefix/happyItem"], "items")
            for prefix in [
                "wrongPrefix/", "lonelyItem/", "wrongPrefix//", "a/", "a//", "a//b/", "x/y/",
            ] {
                for delimited in [true, false] {
                    try expectEqual(
                        try await page(prefix, delimited), ListPage(), "the page of \(prefix)")
                }
            }
            try expectEqual(try await page("x/").prefixes, ["x/y/"], "prefixes of x/")
            let flat = try await page("", false)
            try expectEqual(flat.items, ["correctPrefix/happyItem"], "items without delimiter")
            try expectEqual(flat.prefixes, [], "prefixes without delimiter")
        }
    }

    @Sendable private static func changing(_ driver: any BucketDriver) async throws {
        let steady = (0..<40).map { "s\($0 * 10 + 100)" }
        for name in steady { try await driver.put(name, []) }
        for delimited in [true, false] {
            var seen: [String] = []
            var after: String?
            var round = 0
            repeat {
                let page = try await driver.list(
                    ListQuery(prefix: "", delimited: delimited, limit: 7), after: after)
                seen += page.items
                after = page.end
                // One name before the listed ones, one after, and one right after the end of the page.
                for name in ["r\(round)", "t\(round)", (page.end ?? "s") + "+"] {
                    try await driver.put(name, [])
                }
                if round > 0 { try await driver.delete("t\(round - 1)", Preconditions()) }
                round += 1
            } while after != nil && round < 100
            try expectEqual(seen.filter { steady.contains($0) }, steady, "the steady names")
            try expectEqual(Set(seen).count, seen.count, "names that are listed once")
        }
    }
}
