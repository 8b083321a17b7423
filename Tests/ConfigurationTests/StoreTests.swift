import Testing
import Wire

@testable import Configuration

/// Keys that say where a bucket's objects are, right and wrong.
@Suite struct StoreConfigurationTests {
    private func load(
        _ yaml: String, environment: [BytewiseString: String] = [:]
    ) throws -> Configuration {
        let file = try ConfigurationFile("rules: none\n" + yaml)
        return try Configuration.load(
            file: file.path, environment: environment, directory: "/srv")
    }

    @Test func everyStoreIsRead() throws {
        let configuration = try load(
            """
            firestore: { project: my-project }
            temporaryDirectory: /var/spool/sluice
            upstream: { connectTimeout: 2s, maximumTransfers: 7, attempts: 2 }
            buckets:
              google: { gcs: { bucket: real.example.com, userProject: payer } }
              local: { directory: { path: /srv/local } }
              seaweed:
                s3:
                  endpoint: http://127.0.0.1:8333
                  bucket: photos
                  accessKeyId: AKIA
                  secretAccessKey: "123"
            """)
        #expect(
            configuration.buckets.map(\.store) == [
                .gcs(.init(bucket: "real.example.com", userProject: "payer")),
                .directory("/srv/local"),
                .s3(
                    .init(
                        bucket: "photos", endpoint: "http://127.0.0.1:8333", accessKeyID: "AKIA",
                        secretAccessKey: "123")),
            ])
        #expect(configuration.firestore.project == "my-project")
        #expect(configuration.temporaryDirectory == "/var/spool/sluice")
        #expect(configuration.upstream.connectTimeout == 2_000_000_000)
        #expect(configuration.upstream.maximumTransfers == 7)
        #expect(configuration.upstream.attempts == 2)
    }

    @Test(arguments: [
        (Configuration.S3(bucket: "b"), false), (.init(bucket: "b.example"), true),
        (.init(bucket: "b", endpoint: "https://minio"), true),
        (.init(bucket: "b", endpoint: "https://minio", addressing: "virtual-host"), false),
        (.init(bucket: "b", addressing: "path"), true),
    ])
    func theNameIsInTheHostOrThePath(_ s3: Configuration.S3, _ isPathStyle: Bool) {
        #expect(s3.isPathStyle == isPathStyle)
    }

    @Test func secretsComeFromVariablesAndAreNeverPrinted() throws {
        let yaml = "buckets: { photos: { s3: { bucket: b, accessKeyId: AKIA } } }\n"
        let configuration = try load(
            yaml, environment: ["SLUICE_BUCKETS_PHOTOS_S3_SECRETACCESSKEY": "hush/hush+"])
        #expect(configuration.buckets[0].s3.secretAccessKey == "hush/hush+")
        let printed = configuration.yaml()
        #expect(!printed.contains("hush"))
        #expect(printed.contains("secretAccessKey: <redacted>  # from SLUICE_BUCKETS_PHOTOS_S3_"))
        for secret in ["[hush]", "{ hush: 1 }", "\"hu\\x01sh\"", "<redacted>"] {
            let bad = "buckets: { photos: { s3: { bucket: b, secretAccessKey: \(secret) } } }\n"
            let error = #expect(throws: ConfigurationError.self) { _ = try load(bad) }
            let text = error?.description ?? ""
            #expect(text.contains("'s3.secretAccessKey': expected a secret as text"))
            #expect(!text.contains("hush") && !text.contains("<redacted>"))
        }
    }

    /// What is printed of a bucket is its own store, and loads again as the same.
    @Test(arguments: [
        "{ gcs: { bucket: b, endpoint: \"http://[::1]:4443\", credentials: anonymous } }",
        "{ s3: { bucket: b, region: eu-north-1, conditionalWrites: no } }",
        "{ directory: { path: /srv/local } }",
    ])
    func whatIsPrintedLoadsAgain(_ bucket: String) throws {
        let first = try load("buckets: { photos: \(bucket) }\n")
        let file = try ConfigurationFile(first.yaml())
        #expect(try file.load().buckets == first.buckets)
        let yaml = first.yaml()
        let bucket = yaml[try #require(yaml.firstRange(of: "\nbuckets:")).upperBound...]
        let sections = ["directory:", "gcs:", "s3:"].filter { bucket.contains($0) }
        #expect(sections.count == 1)
    }

    /// Each request is decided by the rules of the bucket it names, and a cloud bucket has many writers anyway.
    @Test func severalBucketsMayShareACloudBucket() throws {
        let configuration = try load(
            "buckets: { a: { gcs: { bucket: b } }, c: { gcs: { bucket: b } } }\n")
        #expect(configuration.buckets[0].store == configuration.buckets[1].store)
    }

    @Test(arguments: [
        (
            "gcs: { bucket: b }, s3: { bucket: b }",
            "2:12: error: bucket 'photos' has more than one store: 'gcs' and 's3'"
        ),
        (
            "s3: { endpoint: https://minio }",
            "2:12: error: bucket 'photos' has no store: 's3.bucket' is missing"
        ),
        (
            "gsc: { bucket: b }",
            "2:22: error: unknown key 'gsc' in 'buckets.photos'; did you mean 'gcs'?"
        ),
        (
            "s3: { bucket: b, acessKeyId: k }",
            "2:39: error: unknown key 'acessKeyId' in 'buckets.photos.s3'; did you mean 'accessKeyId'?"
        ),
        (
            "s3: { bucket: a/b }",
            "2:36: error: 's3.bucket': expected a bucket's name, found 'a/b'"
        ),
        (
            "s3: { bucket: b, endpoint: minio:9000 }",
            "2:49: error: 's3.endpoint': expected a URL such as https://s3.example.com or http://127.0.0.1:8333, without a path, found 'minio:9000'"
        ),
        (
            "s3: { bucket: b, endpoint: \"https://user:pw@minio\" }",
            "2:49: error: 's3.endpoint': expected a URL such as https://s3.example.com or http://127.0.0.1:8333, without a path or a user"
        ),
        (
            "s3: { bucket: b, addressing: virtual }",
            "2:51: error: 's3.addressing': expected one of auto, path, virtual-host, found 'virtual'"
        ),
        (
            "s3: { bucket: b, credentials: anonymus }",
            "2:52: error: 's3.credentials': expected default, anonymous, or a path, found 'anonymus'; did you mean 'anonymous'?"
        ),
        (
            "gcs: { bucket: b, credentials: key.json }",
            "2:53: error: 'buckets.photos.gcs.credentials': DIR/key.json can't be read: No such file or directory"
        ),
        (
            "gcs: { bucket: b, endpoint: \"http://127.0.0.1:1\" }",
            "2:50: error: 'buckets.photos.gcs.endpoint' without TLS requires 'credentials: anonymous': anybody who sees a token can use it"
        ),
        (
            "s3: { bucket: b, accessKeyId: k }",
            "2:52: error: 'buckets.photos.s3.secretAccessKey' is missing"
        ),
        (
            "s3: { bucket: b, accessKeyId: k, secretAccessKey: s, credentials: anonymous }",
            "2:52: error: 'buckets.photos.s3.accessKeyId' can't be combined with 'buckets.photos.s3.credentials'"
        ),
        (
            "s3: { bucket: b, profile: p, credentials: anonymous }",
            "2:48: error: 'buckets.photos.s3.profile' requires a file of profiles"
        ),
        (
            "directory: { path: p }, tls: { clientKey: k }",
            "2:64: error: 'buckets.photos.tls.clientKey' does not apply to a directory"
        ),
        (
            "s3: { bucket: b, endpoint: \"http://minio\" }, tls: { certificateAuthorities: ca }",
            "2:98: error: 'buckets.photos.tls.certificateAuthorities' does not apply to an endpoint without TLS"
        ),
        (
            "s3: { bucket: b }, tls: { clientKey: /etc/passwd }",
            "2:59: error: 'buckets.photos.tls.clientCertificate' is missing"
        ),
    ])
    func oneFaultOfAStore(_ store: String, _ expected: String) throws {
        try expectFault("buckets: { photos: { \(store) } }\n", expected)
    }

    @Test(arguments: [
        (
            "firestore: { endpoint: \"https://firestore\" }",
            "2:24: error: 'firestore.endpoint' requires 'firestore.project'"
        ),
        (
            "firestore: { project: p, endpoint: \"http://firestore\" }",
            "2:36: error: 'firestore.endpoint' without TLS requires 'credentials: anonymous': anybody who sees a token can use it"
        ),
        (
            "upstream: { retryDelay: 10s }",
            "2:25: error: 'upstream.retryDelay' (10s) is larger than 'upstream.maximumRetryDelay' (5s)"
        ),
        (
            "upstream: { atempts: 2 }",
            "2:13: error: unknown key 'atempts' in 'upstream'; did you mean 'attempts'?"
        ),
    ])
    func oneFaultOfAllStores(_ line: String, _ expected: String) throws {
        try expectFault(line + "\nbuckets: { photos: { gcs: { bucket: b } } }\n", expected)
    }

    private func expectFault(_ yaml: String, _ expected: String) throws {
        let file = try ConfigurationFile("rules: none\n" + yaml)
        let error = #expect(throws: ConfigurationError.self) { _ = try file.load() }
        let found = error?.findings.map {
            $0.replacing(file.path, with: "FILE").replacing(file.directory, with: "DIR")
        }
        #expect(found == ["FILE:" + expected])
    }
}
