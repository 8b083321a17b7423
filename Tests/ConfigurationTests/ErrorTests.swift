import Foundation
import Testing
import Wire

@testable import Configuration

/// Every way in which a configuration can be wrong, and the exact words for it. `FILE` stands for the file's path and
/// `DIR` for its directory.
@Suite struct ConfigurationErrorTests {
    func findings(
        _ yaml: String, environment: [BytewiseString: String] = [:],
        flags: [Configuration.Override] = []
    ) throws -> [String] {
        let file = try ConfigurationFile(yaml)
        do throws(ConfigurationError) {
            _ = try Configuration.load(file: file.path, environment: environment, flags: flags)
            return []
        } catch {
            return error.findings.map {
                $0.replacingOccurrences(of: file.path, with: "FILE")
                    .replacingOccurrences(of: file.directory, with: "DIR")
            }
        }
    }

    /// One thing is wrong beside the minimal configuration.
    @Test(arguments: [
        ("thread: 2", "1:1: error: unknown key 'thread'; did you mean 'threads'?"),
        (
            "idleTimeout: 2s",
            "1:1: error: unknown key 'idleTimeout'; did you mean 'limits.idleTimeout'?"
        ),
        ("nonsense: 2", "1:1: error: unknown key 'nonsense'"),
        (
            "limits: { idleTimout: 2s }",
            "1:11: error: unknown key 'idleTimout' in 'limits'; did you mean 'idleTimeout'?"
        ),
        (
            "listen:\n  https:\n    adress: 127.0.0.1:1",
            "3:5: error: unknown key 'adress' in 'listen.https'; did you mean 'address'?"
        ),
        ("limits: 3", "1:9: error: 'limits': expected a mapping, found '3'"),
        ("limits: [1]", "1:9: error: 'limits': expected a mapping, found a list"),
        ("? [a]\n: 1", "1:3: error: a key must be a word"),
        (
            "threads: two",
            "1:10: error: 'threads': expected a whole number from 0 to 256, found 'two'"
        ),
        (
            "threads: \"2\"",
            "1:10: error: 'threads': expected a whole number from 0 to 256, found '2' in quotes"
        ),
        (
            "threads: -1",
            "1:10: error: 'threads': expected a whole number from 0 to 256, found '-1'"
        ),
        (
            "threads: 1.5",
            "1:10: error: 'threads': expected a whole number from 0 to 256, found '1.5'"
        ),
        ("threads:", "1:9: error: 'threads': expected a whole number from 0 to 256, found nothing"),
        (
            "threads: [1]",
            "1:10: error: 'threads': expected a whole number from 0 to 256, found a list"
        ),
        (
            "threads: { a: 1 }",
            "1:10: error: 'threads': expected a whole number from 0 to 256, found a mapping"
        ),
        (
            "threads: 99999999999999999999",
            "1:10: error: 'threads': expected a whole number from 0 to 256, found '99999999999999999999'"
        ),
        (
            "fileThreads: 0",
            "1:14: error: 'fileThreads': expected a whole number from 1 to 64, found '0'"
        ),
        ("log: { access: yes }", "1:16: error: 'log.access': expected true or false, found 'yes'"),
        (
            "log: { level: inf }",
            "1:15: error: 'log.level': expected one of trace, debug, info, notice, warning, error, critical, found 'inf'; did you mean 'info'?"
        ),
        (
            "limits: { idleTimeout: 60 }",
            "1:24: error: 'limits.idleTimeout': expected a duration such as 500ms or 10s, from 10ms to 24h, found '60'"
        ),
        (
            "limits: { idleTimeout: 0s }",
            "1:24: error: 'limits.idleTimeout': expected a duration such as 500ms or 10s, from 10ms to 24h, found '0s'"
        ),
        (
            "limits: { headerBytes: 32K }",
            "1:24: error: 'limits.headerBytes': expected bytes such as 4096 or 32KiB, from 1KiB to 1MiB, found '32K'"
        ),
        (
            "limits: { headerBytes: 2MiB }",
            "1:24: error: 'limits.headerBytes': expected bytes such as 4096 or 32KiB, from 1KiB to 1MiB, found '2MiB'"
        ),
        (
            "limits: { initialWindow: 2MiB, maximumWindow: 1MiB }",
            "1:26: error: 'limits.initialWindow' (2MiB) is larger than 'limits.maximumWindow' (1MiB)"
        ),
        (
            "limits: { receiveBudget: 64KiB, initialWindow: 65KiB }",
            "1:48: error: 'limits.initialWindow' (65KiB) is larger than 'limits.receiveBudget' (64KiB)"
        ),
        (
            "listen: { http: 8080 }",
            "1:17: error: 'listen.http': expected an address such as 127.0.0.1:8080, '[::1]:8080' or unix:/run/sluice/http.sock, or null for off, found '8080'"
        ),
        (
            "listen: { http: localhost }",
            "1:17: error: 'listen.http': expected an address such as 127.0.0.1:8080, '[::1]:8080' or unix:/run/sluice/http.sock, found 'localhost'"
        ),
        (
            "listen: { http: 127.0.0.1:9090 }",
            "1:17: error: 'listen.http' and 'listen.operator' listen on the same address"
        ),
        (
            "listen: { operator: 0.0.0.0:8080 }",
            "1:21: error: 'listen.http' and 'listen.operator' listen on the same address"
        ),
        (
            "listen: { http: null }",
            "1:17: error: nothing is served: 'listen.http' and 'listen.https.address' are both off"
        ),
        (
            "listen: { https: { key: k.pem } }",
            "1:25: error: 'listen.https.key' requires 'listen.https.address'"
        ),
        (
            "listen: { https: { address: 127.0.0.1:8443, certificate: self-signed, key: k.pem } }",
            "1:76: error: 'listen.https.key' can't be combined with a self-signed certificate"
        ),
        (
            "cors: { origins: https://a.example }",
            "1:18: error: 'cors.origins': expected a list of origins such as https://app.example, or \"*\", found 'https://a.example'"
        ),
        (
            "cors: { origins: [https://a.example, a.example/] }",
            "1:38: error: 'cors.origins': expected an origin such as https://app.example, or \"*\", found 'a.example/'"
        ),
        (
            "cors: { origins: [7] }",
            "1:19: error: 'cors.origins': expected a list of origins such as https://app.example, or \"*\", found '7'"
        ),
    ])
    func oneFault(_ line: String, _ expected: String) throws {
        let found = try findings(line + "\n" + ConfigurationFile.minimal)
        #expect(found == ["FILE:" + expected])
    }

    /// One thing is wrong with a bucket.
    @Test(arguments: [
        (
            "photos: {}",
            "1:12: error: bucket 'photos' has no store: one of 'directory: { path: PATH }', 'gcs: { bucket: NAME }' and 's3: { bucket: NAME }' is missing"
        ),
        (
            "photos: 3",
            "1:20: error: expected a mapping such as { directory: { path: ./data/photos } }, found '3'"
        ),
        ("photos: { dir: { path: p } }", "1:22: error: unknown key 'dir' in 'buckets.photos'"),
        (
            "photos: { directory: { pth: p } }",
            "1:35: error: unknown key 'pth' in 'buckets.photos.directory'; did you mean 'path'?"
        ),
        (
            "photos: { directory: { path: 12 } }",
            "1:41: error: 'directory.path': expected a path, or null, found '12'"
        ),
        (
            "photos: { directory: { path: p }, rules: [none] }",
            "1:53: error: 'rules': expected a path, none, or null, found a list"
        ),
        (
            "photos: { directory: { path: p }, maximumObjectSize: 0 }",
            "1:65: error: 'maximumObjectSize': expected bytes such as 4096 or 32KiB, from 1 to 1024TiB, found '0'"
        ),
        (
            "photos: { directory: { path: p }, paths: { allowed: [a//b] } }",
            "1:65: error: 'paths.allowed': pattern 'a//b': it has an empty segment, which no name has; begin and end without '/'"
        ),
        (
            "Photos: { directory: { path: p } }",
            "1:12: error: 'Photos' can't be a bucket's name: it has 1 to 222 of a-z, 0-9, '-', '_' and '.', and begins and ends with a letter or digit"
        ),
        (
            "a: { directory: { path: p } }, b: { directory: { path: ./x/../p } }",
            "1:36: error: buckets 'a' and 'b' have the same directory"
        ),
        (
            "a: { directory: { path: p } }, b: { directory: { path: p/q } }",
            "1:36: error: buckets 'a' and 'b' have directories inside each other"
        ),
    ])
    func oneFaultOfABucket(_ bucket: String, _ expected: String) throws {
        let found = try findings("buckets: { \(bucket) }\nrules: none\n")
        #expect(found == ["FILE:" + expected])
    }

    @Test func withoutRulesNothingIsServed() throws {
        let text =
            "has no rules, so it is not served; 'rules: none' serves it with everything open: "
            + "whoever reaches the listeners can read, list, replace and delete all of it"
        let bucket = "buckets:\n  photos: { directory: { path: p } }\n"
        #expect(try findings(bucket) == ["FILE:2:3: error: bucket 'photos' \(text)"])
        #expect(
            try findings(bucket + "rules: null\n") == ["FILE:2:3: error: bucket 'photos' \(text)"])
        #expect(try findings(bucket + "rules: none\n") == [])
    }

    @Test func httpsNeedsItsFiles() throws {
        let missing = try findings(
            "listen: { https: { address: 127.0.0.1:8443 } }\n" + ConfigurationFile.minimal)
        #expect(
            missing == [
                "FILE:1:29: error: 'listen.https.certificate' is missing: HTTPS needs it; 'self-signed' makes a throw-away one",
                "FILE:1:29: error: 'listen.https.key' is missing: HTTPS needs it",
            ])
        let unreadable = try findings(
            "listen: { https: { address: 127.0.0.1:8443, certificate: c.pem, key: /tmp } }\n"
                + ConfigurationFile.minimal)
        #expect(
            unreadable == [
                "FILE:1:58: error: 'listen.https.certificate': DIR/c.pem can't be read: No such file or directory",
                "FILE:1:70: error: 'listen.https.key': /tmp can't be read: not a file",
            ])
    }

    @Test func allErrorsAreReportedInOrder() throws {
        let found = try findings(
            """
            buckets:
              photos: { directory: { path: p }, ruls: none }
            threads: many
            limits:
              initialWindow: 2MiB
              maximumWindow: 1MiB
              headerFields: 1
            """, environment: ["SLUICE_LOG_FORMAT": "xml"],
            flags: [.init(path: "threads", value: "0x2", source: "--threads")])
        #expect(
            found == [
                "FILE:2:37: error: unknown key 'ruls' in 'buckets.photos'; did you mean 'rules'?",
                "FILE:3:10: error: 'threads': expected a whole number from 0 to 256, found 'many'",
                "FILE:5:18: error: 'limits.initialWindow' (2MiB) is larger than 'limits.maximumWindow' (1MiB)",
                "FILE:7:17: error: 'limits.headerFields': expected a whole number from 8 to 10000, found '1'",
                "SLUICE_LOG_FORMAT: error: expected one of auto, text, json, found 'xml'",
                "--threads: error: expected a whole number from 0 to 256, found '0x2'",
            ])
    }

    @Test(arguments: [
        (
            "SLUICE_THREAD", "1",
            "SLUICE_THREAD: error: no key has this variable; did you mean 'SLUICE_THREADS'?"
        ),
        (
            "SLUICE_LISTEN_PORT", "8080",
            "SLUICE_LISTEN_PORT: error: no key has this variable; did you mean 'SLUICE_LISTEN_HTTP'?"
        ),
        ("SLUICE_NONSENSE_AT_ALL", "1", "SLUICE_NONSENSE_AT_ALL: error: no key has this variable"),
        (
            "SLUICE_LISTEN_OPERATOR", "127.0.0.1:8080",
            "SLUICE_LISTEN_OPERATOR: error: 'listen.http' and 'listen.operator' listen on the same address"
        ),
        (
            "SLUICE_RULES", "/none/x.rules",
            "SLUICE_RULES: error: 'rules': /none/x.rules can't be opened: No such file or directory"
        ),
        (
            "SLUICE_BUCKETS_A_B_RULES", "none",
            "SLUICE_BUCKETS_A_B_RULES: error: could mean 'buckets.a-b.rules' and 'buckets.a.b.rules'; use --set"
        ),
    ])
    func anErrorInAVariable(_ variable: String, _ value: String, _ expected: String) throws {
        let yaml =
            "rules: none\nbuckets: { a-b: { directory: { path: p } }, a.b: { directory: { path: q } } }\n"
        #expect(try findings(yaml, environment: [BytewiseString(variable): value]) == [expected])
    }

    @Test(arguments: [
        (
            "idleTimeout", "1s",
            "error: unknown key 'idleTimeout'; did you mean 'limits.idleTimeout'?"
        ),
        ("buckets.photos.rule", "none", "error: unknown key 'buckets.photos.rule'"),
        (
            "buckets.other.rules", "none",
            "error: bucket 'other' has no store: one of 'directory: { path: PATH }', 'gcs: { bucket: NAME }' and 's3: { bucket: NAME }' is missing"
        ),
        (
            "limits.maximumWindow", "2KiB",
            "error: 'limits.initialWindow' (64KiB) is larger than 'limits.maximumWindow' (2KiB)"
        ),
    ])
    func aFlagsFault(_ path: String, _ value: String, _ expected: String) throws {
        let flag = Configuration.Override(path: path, value: value, source: "--set \(path)")
        let found = try findings(ConfigurationFile.minimal, flags: [flag])
        #expect(found == ["--set \(path): \(expected)"])
    }

    @Test(arguments: [
        ("", "FILE: error: is empty"),
        ("# only a comment\n", "FILE: error: is empty"),
        ("- a\n", "FILE:1:1: error: expected a mapping of keys to values"),
        (
            "threads: 1\nthreads: 2\n",
            "FILE:1:1: error: 'threads' is given more than once; here for the first time"
        ),
        (
            "a: [1\n",
            "FILE:2:1: error: not YAML: while parsing a flow sequence: did not find expected ',' or ']'"
        ),
        (
            "a: 1\n---\nb: 1\n",
            "FILE:2:1: error: not YAML: expected a single document in the stream: but found another document"
        ),
        ("a: \u{1}\n", "FILE: error: not YAML: control characters are not allowed"),
        (
            "rules: none\n",
            "FILE: error: no bucket: 'buckets: { NAME: { directory: { path: PATH } } }' is missing"
        ),
        (
            "rules: none\nbuckets: []\n",
            "FILE:2:10: error: expected a mapping of bucket names, found a list"
        ),
        (
            "rules: none\nbuckets: {}\n",
            "FILE:2:1: error: no bucket: 'buckets: { NAME: { directory: { path: PATH } } }' is missing"
        ),
    ])
    func invalidKeyFiles(_ text: String, _ expected: String) throws {
        let found = try findings(text)
        #expect(found == [expected])
    }

    @Test func filesThatCantBeRead() throws {
        let file = try ConfigurationFile(bytes: [0x61, 0xff])
        func description(_ path: String) -> String? {
            do throws(ConfigurationError) {
                _ = try Configuration.load(file: path)
                return nil
            } catch { return error.description }
        }
        #expect(description(file.path) == "\(file.path): error: is not UTF-8")
        #expect(
            description("/no/such") == "/no/such: error: can't be opened: No such file or directory"
        )
        #expect(description("/tmp") == "/tmp: error: can't be read: Is a directory")
        #expect(description("/dev/zero") == "/dev/zero: error: has more than 1 MiB")
    }
}
