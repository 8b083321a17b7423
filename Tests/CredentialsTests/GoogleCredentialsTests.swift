import Glibc
import HTTPClient
import Synchronization
import System
import TestSupport
import Testing
import Wire

@testable import Credentials

@Suite("Google's credentials", .timeLimit(.minutes(2)))
struct GoogleCredentialsTests {
    private let directory = TemporaryDirectory()

    private func read(_ path: String) throws -> String {
        String(decoding: try File.contents(of: path, limit: 1 << 20), as: UTF8.self)
    }

    private func key() throws -> (pem: String, publicPath: String) {
        let path = directory.path + "/key.pem"
        #expect(run("openssl", "genpkey", "-algorithm", "RSA", "-out", path) == 0)
        #expect(run("openssl", "pkey", "-in", path, "-pubout", "-out", path + ".pub") == 0)
        return (try read(path), path + ".pub")
    }

    private func serviceAccount(_ service: FakeService, _ pem: String) -> String {
        let escaped = pem.split(separator: "\n").joined(separator: "\\n")
        return directory.write(
            "account.json",
            """
            {"type": "service_account", "client_email": "robot@example.com", "private_key_id": "k1",
             "private_key": "\(escaped)\\n", "token_uri": "\(service.origin)/token"}
            """)
    }

    private func credentials(
        _ source: GoogleCredentials.Source, _ environment: [BytewiseString: String] = [:],
        clock: @escaping @Sendable () -> UInt64 = EventLoop.monotonicNow
    ) -> GoogleCredentials {
        GoogleCredentials(
            source, scope: .storage, pool: sharedPool, environment: environment, clock: clock)
    }

    private func authorization(_ credentials: GoogleCredentials) async throws -> String? {
        try await TestLoop.run { try await credentials.authorization() }
    }

    @Test func aKeyFileGivesASignedAssertionForAToken() async throws {
        let (pem, publicPath) = try key()
        let service = FakeService { _ in .json(#"{"access_token": "t1", "expires_in": 3600}"#) }
        let credentials = credentials(.file(serviceAccount(service, pem)))
        #expect(try await authorization(credentials) == "Bearer t1")
        #expect(try await authorization(credentials) == "Bearer t1")
        #expect(service.log.count == 1)
        let form = FakeService.Request.members(service.log[0].text)
        #expect(form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer")
        let parts = form["assertion"]!.split(separator: ".").map { Array($0.utf8) }
        let head = try JSONReader.parse(Base64.decodeForURL(parts[0][...])!)
        #expect(head["alg"]?.text == "RS256" && head["kid"]?.text == "k1")
        let claims = try JSONReader.parse(Base64.decodeForURL(parts[1][...])!)
        #expect(claims["iss"]?.text == "robot@example.com")
        #expect(claims["aud"]?.text == "\(service.origin)/token")
        #expect(claims["scope"]?.text == GoogleCredentials.Scope.storage.rawValue)
        #expect(claims["exp"]!.integer! - claims["iat"]!.integer! == 3600)
        directory.write("message", parts[0] + [UInt8(ascii: ".")] + parts[1])
        directory.write("signature", Base64.decodeForURL(parts[2][...])!)
        let status = run(
            "openssl", "dgst", "-sha256", "-verify", publicPath, "-signature",
            directory.path + "/signature", directory.path + "/message")
        #expect(status == 0)
    }

    @Test func aTokenIsRenewedBeforeExpiryAndShared() async throws {
        let time = Atomic<UInt64>(1_000_000_000_000)
        let count = Atomic<Int>(0)
        let isDown = Atomic<Bool>(false)
        let service = FakeService { request in
            #expect(request.fields["metadata-flavor"] == "Google")
            if isDown.load(ordering: .relaxed) { return .json("{}", 403) }
            let number = count.add(1, ordering: .relaxed).newValue
            return .json(
                #"{"access_token": "t\#(number)", "expires_in": 1000}"#, 200,
                [("metadata-flavor", "Google")])
        }
        let credentials = credentials(
            .metadataServer, ["GCE_METADATA_HOST": service.origin.authority],
            clock: { time.load(ordering: .relaxed) })
        @Sendable func advance(_ seconds: UInt64) {
            time.add(seconds * 1_000_000_000, ordering: .relaxed)
        }
        try await TestLoop.run {
            try await withThrowingTaskGroup(of: String?.self) { group in
                for _ in 0..<20 {
                    group.addTask(executorPreference: EventLoop.current) {
                        try await credentials.authorization()
                    }
                }
                for try await value in group { #expect(value == "Bearer t1") }
            }
            #expect(count.load(ordering: .relaxed) == 1)
            // Renewed while the old token is still valid and in use.
            advance(801)
            #expect(try await credentials.authorization() == "Bearer t1")
            try await eventually { try await credentials.authorization() == "Bearer t2" }
            // After a failed renewal the old token stays in use until it expires.
            isDown.store(true, ordering: .relaxed)
            advance(801)
            #expect(try await credentials.authorization() == "Bearer t2")
            advance(100)
            #expect(try await credentials.authorization() == "Bearer t2")
            advance(200)
            let error = await #expect(throws: ClientError.self) {
                _ = try await credentials.authorization()
                _ = try await credentials.authorization()
            }
            #expect(error?.cause.contains("403") == true)
            isDown.store(false, ordering: .relaxed)
            advance(20)
            await eventually { (try? await credentials.authorization()) == "Bearer t3" }
            // A token that the service has rejected is not used again.
            credentials.reject("Bearer t2")
            #expect(try await credentials.authorization() == "Bearer t3")
            credentials.reject("Bearer t3")
            #expect(try await credentials.authorization() == "Bearer t4")
        }
    }

    @Test func aForeignMetadataServerIsRejected() async throws {
        let service = FakeService { _ in .json(#"{"access_token": "t", "expires_in": 9}"#) }
        let credentials = credentials(
            .automatic, ["GCE_METADATA_HOST": service.origin.authority, "HOME": directory.path])
        let error = await #expect(throws: ClientError.self) {
            _ = try await authorization(credentials)
        }
        #expect(error?.cause.contains("not a metadata server") == true)
    }

    @Test(arguments: [true, false])
    func anotherIssuersTokenIsExchanged(impersonates: Bool) async throws {
        let service = FakeService { request in
            switch request.path {
            case "/subject":
                #expect(request.fields["x-key"] == "v")
                return .json(#"{"value": "subject-token"}"#)
            case "/sts": return .json(#"{"access_token": "federated", "expires_in": 3600}"#)
            default:
                #expect(request.fields["authorization"] == "Bearer federated")
                return .json(
                    #"{"accessToken": "impersonated", "expireTime": "2999-01-01T00:00:00Z"}"#)
            }
        }
        let subject =
            impersonates
            ? #""url": "\#(service.origin)/subject", "headers": {"X-Key": "v"}, "format": {"type": "json", "subject_token_field_name": "value"}"#
            : #""file": "\#(directory.write("token", "subject-token\n"))""#
        let impersonation =
            impersonates
            ? #", "service_account_impersonation_url": "\#(service.origin)/impersonate""# : ""
        let path = directory.write(
            "external.json",
            """
            {"type": "external_account", "audience": "//iam/pool", "subject_token_type": "urn:jwt",
             "token_url": "\(service.origin)/sts", "credential_source": {\(subject)}\(impersonation)}
            """)
        let credentials = credentials(.automatic, ["GOOGLE_APPLICATION_CREDENTIALS": path])
        #expect(
            try await authorization(credentials)
                == (impersonates ? "Bearer impersonated" : "Bearer federated"))
        let sts = try #require(service.log.first { $0.path == "/sts" })
        let form = FakeService.Request.members(sts.text)
        #expect(form["subject_token"] == "subject-token")
        #expect(form["audience"] == "//iam/pool")
        #expect(form["subject_token_type"] == "urn:jwt")
        #expect(
            form["scope"]
                == (impersonates
                    ? "https://www.googleapis.com/auth/cloud-platform"
                    : GoogleCredentials.Scope.storage.rawValue))
    }

    @Test func aLoginOfGcloudIsRefreshed() async throws {
        let service = FakeService { _ in .json(#"{"access_token": "u", "expires_in": 3600}"#) }
        mkdir(directory.path + "/gcloud", 0o700)
        directory.write(
            "gcloud/application_default_credentials.json",
            """
            {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r&",
             "token_uri": "\(service.origin)/token"}
            """)
        let credentials = credentials(.automatic, ["CLOUDSDK_CONFIG": directory.path + "/gcloud"])
        #expect(try await authorization(credentials) == "Bearer u")
        #expect(FakeService.Request.members(service.log[0].text)["refresh_token"] == "r&")
    }

    @Test(arguments: [
        ("{", "is not JSON"), ("{}", "type 'none'"),
        (#"{"type": "service_account", "client_email": "a"}"#, "'private_key' is missing"),
        (
            #"{"type": "service_account", "client_email": "a", "private_key": "secretkey"}"#,
            "private key"
        ),
        (
            #"{"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "secretkey", "token_uri": "http://example.com/token"}"#,
            "must be https"
        ),
    ])
    func aBrokenFileIsNamedAndItsSecretsAreNot(text: String, words: String) async throws {
        let path = directory.write("broken.json", text)
        let credentials = credentials(.file(path))
        let error = await #expect(throws: ClientError.self) {
            _ = try await authorization(credentials)
        }
        #expect(error?.cause.contains(words) == true, "\(String(describing: error))")
        #expect(error?.cause.contains(path) == true)
        #expect(error?.cause.contains("secretkey") == false)
    }

    @Test func theReasonOfARejectionIsReported() async throws {
        let (pem, _) = try key()
        let service = FakeService { _ in
            .json(#"{"error": "invalid_grant", "error_description": "Invalid JWT\n"}"#, 400)
        }
        let credentials = credentials(.file(serviceAccount(service, pem)))
        let error = await #expect(throws: ClientError.self) {
            _ = try await authorization(credentials)
        }
        #expect(error?.cause.contains("400: invalid_grant: Invalid JWT ") == true)
    }

    @Test func anonymousAndTheEmulatorsOwnerSendNoRequests() async throws {
        #expect(try await authorization(credentials(.anonymous)) == nil)
        #expect(try await authorization(credentials(.emulatorOwner)) == "Bearer owner")
    }
}
