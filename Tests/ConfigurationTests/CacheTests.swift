import Buckets
import Foundation
import SecurityRules
import Testing
import Wire

@testable import Configuration

/// The keys of the read cache.
@Suite struct CacheConfigurationTests {
    private func load(_ yaml: String, environment: [BytewiseString: String] = [:]) throws -> Configuration {
        let file = try ConfigurationFile("rules: none\n" + yaml)
        return try Configuration.load(file: file.path, environment: environment, directory: "/srv")
    }

    private static let bucket = "buckets: { photos: { s3: { bucket: b } } }\n"

    @Test func theCacheIsOffByDefault() throws {
        let configuration = try load(CacheConfigurationTests.bucket)
        #expect(configuration.cache.settings == nil)
        #expect(configuration.buckets[0].cache == BucketCache())
        #expect(configuration.yaml().contains("freshness: null"))
    }

    @Test func theDefaultsAreThoseOfTheCache() throws {
        let configuration = try load(CacheConfigurationTests.bucket, environment: ["SLUICE_CACHE_DIRECTORY": "cache"])
        #expect(configuration.cache.settings == ReadCache.Settings(directory: "/srv/cache"))
    }

    @Test func everyKeyIsRead() throws {
        let configuration = try load(
            """
            cache: { directory: /var/cache/sluice, size: 1TiB, reserve: 0, metadata: 64MiB, fills: 1000, minimumUses: 2 }
            buckets:
              a: { gcs: { bucket: b }, cache: { freshness: validate, staleIfError: 720h } }
              b: { s3: { bucket: b }, cache: { freshness: 30s } }
              c: { s3: { bucket: b }, cache: { freshness: "forever" } }
            """)
        #expect(
            configuration.cache.settings
                == ReadCache.Settings(
                    directory: "/var/cache/sluice", size: 1 << 40, reserve: 0, metadata: 64 << 20, fills: 1000,
                    minimumUses: 2))
        #expect(configuration.buckets.map(\.cache.freshness) == [.validate, .limited(30_000_000_000), .forever])
        #expect(configuration.buckets[0].cache.staleIfError == 720 * 3_600_000_000_000)
        let again = try ConfigurationFile(configuration.yaml()).load()
        #expect(again.buckets == configuration.buckets && again.cache == configuration.cache)
    }

    /// A directory is not cached, and has no keys for that.
    @Test func aDirectoryShowsNoKeysOfTheCache() throws {
        let yaml = try load("buckets: { photos: { directory: { path: p } } }\n").yaml()
        #expect(!yaml.contains("freshness"))
    }

    /// A reload may change them.
    @Test func theKeysOfABucketAreNotItsStore() throws {
        let cache = "cache: { directory: /c }\n"
        let one = try load(cache + CacheConfigurationTests.bucket)
        let other = try load(
            cache + "buckets: { photos: { s3: { bucket: b }, cache: { freshness: 1s, staleIfError: 1h } } }\n")
        #expect(other.hasStores(of: one))
    }

    @Test(arguments: [
        ("freshness: 999ms", "77: error: 'cache.freshness': expected \(type), found '999ms'"),
        ("freshness: 721h", "77: error: 'cache.freshness': expected \(type), found '721h'"),
        ("freshness: 30", "77: error: 'cache.freshness': expected \(type), found '30'"),
        (
            "freshness: forver",
            "77: error: 'cache.freshness': expected \(type), found 'forver'; did you mean 'forever'?"
        ),
        (
            "staleIfError: 1h",
            "80: error: 'buckets.photos.cache.staleIfError' requires 'buckets.photos.cache.freshness'"
        ),
    ])
    func oneFaultOfABucket(_ keys: String, _ expected: String) throws {
        try expectFault(
            "cache: { directory: /c }\nbuckets: { photos: { s3: { bucket: b, endpoint: null }, cache: { \(keys) } } }\n",
            "3:" + expected)
    }

    private static let type = "validate, a duration from 1s to 720h, forever, or null"

    @Test func aDirectoryIsNotCached() throws {
        try expectFault(
            "cache: { directory: /c }\nbuckets: { photos: { directory: { path: p }, cache: { freshness: 1s } } }\n",
            "3:66: error: 'buckets.photos.cache.freshness' does not apply to a directory")
    }

    @Test func aBucketIsCachedOnlyWithADirectory() throws {
        try expectFault(
            "buckets: { photos: { s3: { bucket: b }, cache: { freshness: 1s } } }\n",
            "2:61: error: 'buckets.photos.cache.freshness' requires 'cache.directory'")
    }

    @Test(arguments: ["DIR/photos", "DIR", "DIR/photos/cache"])
    func theCacheHasADirectoryOfItsOwn(_ directory: String) throws {
        let file = try ConfigurationFile("rules: none\nbuckets: { photos: { directory: { path: photos } } }\n")
        let path = directory.replacing("DIR", with: file.directory)
        let error = #expect(throws: ConfigurationError.self) {
            _ = try Configuration.load(file: file.path, environment: ["SLUICE_CACHE_DIRECTORY": path])
        }
        #expect(
            error?.findings == [
                "SLUICE_CACHE_DIRECTORY: error: 'cache.directory' and bucket 'photos' have the same directory, or one inside the other"
            ])
    }

    @Test(arguments: [
        (
            "size: 255MiB",
            "9: error: 'cache.size': expected bytes such as 4096 or 32KiB, from 256MiB to 64TiB, found '255MiB'"
        ),
        (
            "size: 65TiB",
            "9: error: 'cache.size': expected bytes such as 4096 or 32KiB, from 256MiB to 64TiB, found '65TiB'"
        ),
        ("fills: 0", "10: error: 'cache.fills': expected a whole number from 1 to 1000, found '0'"),
        ("minimumUses: 3", "16: error: 'cache.minimumUses': expected a whole number from 1 to 2, found '3'"),
    ])
    func oneFaultOfTheCache(_ key: String, _ expected: String) throws {
        try expectFault("cache:\n  \(key)\n" + CacheConfigurationTests.bucket, "3:" + expected)
    }

    private func expectFault(_ yaml: String, _ expected: String) throws {
        let file = try ConfigurationFile("rules: none\n" + yaml)
        let error = #expect(throws: ConfigurationError.self) { _ = try file.load() }
        #expect(error?.findings.map { $0.replacing(file.path, with: "FILE") } == ["FILE:" + expected])
    }

    // MARK: Warnings

    private static func rules(_ allow: String, bucket: String = "photos") -> String {
        "rules_version = '2'; service firebase.storage { match /b/\(bucket)/o { match /{name=**} { \(allow) } } }"
    }

    @Test(arguments: [
        (rules("allow read, create;"), false), (rules("allow read, write;"), true), (rules("allow update;"), true),
        (rules("allow delete: if request.auth != null;"), true), (rules("allow write: if false;"), false),
        (rules("allow write;", bucket: "other"), false),
    ])
    func foreverIsForObjectsThatNobodyChanges(_ rules: String, _ isWarning: Bool) throws {
        let file = try ConfigurationFile(
            """
            rules: storage.rules
            cache: { directory: /c }
            buckets: { photos: { s3: { bucket: b }, cache: { freshness: forever } } }

            """)
        try rules.write(toFile: file.directory + "/storage.rules", atomically: true, encoding: .utf8)
        let configuration = try file.load()
        let loaded = try Ruleset.load(source: rules)
        let warnings = configuration.cacheWarnings { _ in loaded }
        #expect(warnings.count == (isWarning ? 1 : 0))
        #expect(warnings.allSatisfy { $0.hasPrefix("buckets.photos.cache.freshness: warning: ") })
    }

    @Test func openBucketsMayBeChangedByEverybody() throws {
        func warnings(_ freshness: String) throws -> [String] {
            try load(
                "cache: { directory: /c }\nbuckets: { photos: { s3: { bucket: b }, cache: { freshness: \(freshness) } } }\n"
            ).cacheWarnings { _ in nil }
        }
        #expect(try warnings("forever").count == 1)
        #expect(try warnings("720h") == [])
    }
}
