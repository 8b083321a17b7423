import BucketConformance
import EventLoop
import Glibc
import Synchronization
import TestSupport
import Testing
import Wire

@testable import Buckets

@Suite("AWS's credentials", .timeLimit(.minutes(2)))
struct AWSCredentialTests {
    private let directory = TemporaryDirectory()

    private func file(_ name: String, _ text: String) -> String {
        let path = directory.path + "/" + name
        let descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0o600)
        precondition(Glibc.write(descriptor, text, text.utf8.count) == text.utf8.count)
        close(descriptor)
        return path
    }

    private func fetch(_ environment: [String: String], _ source: AWSCredentialSource = .standard)
        async throws -> Result<AWSCredentials, AWSCredentialsError>
    {
        try await onLoop {
            let fetcher = AWSCredentialFetcher(
                source, region: "eu-north-1", pool: sharedPool, environment: environment)
            let outcome = await fetcher.fetch()
            await fetcher.close()
            return outcome
        }
    }

    private static func sts(_ key: String = "ASIA1") -> FakeService.Response {
        FakeService.Response(
            body: Array(
                """
                <AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
                <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>\(key)</AccessKeyId>
                <SecretAccessKey>a/b+c=</SecretAccessKey><SessionToken>token&amp;1</SessionToken>
                <Expiration>2033-05-18T03:33:20Z</Expiration></Credentials>
                </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>
                """.utf8))
    }

    private static let answer = #"""
        {"Code": "Success", "AccessKeyId": "ASIA2", "SecretAccessKey": "s", "Token": "t",
         "Expiration": "2033-05-18T03:33:20Z", "RoleArn": "ignored"}
        """#
    private static let wanted = AWSCredentials(
        accessKey: "ASIA2", secretKey: "s", sessionToken: "t", expires: 2_000_000_000)

    @Test func aWebIdentityIsExchangedBySTS() async throws {
        let service = FakeService { _ in Self.sts() }
        let token = file("token", " e.y=J \n")
        let role = "arn:aws:iam::1:role/a+b"
        let found = try await fetch([
            "AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": role,
            "AWS_ROLE_SESSION_NAME": "here", "AWS_ENDPOINT_URL_STS": "\(service.origin)",
        ]).get()
        #expect(
            found
                == AWSCredentials(
                    accessKey: "ASIA1", secretKey: "a/b+c=", sessionToken: "token&1",
                    expires: 2_000_000_000))
        let asked = try #require(service.log.first)
        #expect(service.log.count == 1 && asked.method == "POST" && asked.target == "/")
        #expect(
            FakeService.Request.members(asked.text) == [
                "Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": role,
                "RoleSessionName": "here", "WebIdentityToken": "e.y=J",
            ])
    }

    @Test func aProfileMayNameAWebIdentity() async throws {
        let service = FakeService { _ in Self.sts() }
        let token = file("token", "jwt")
        let configuration = file(
            "config",
            "[profile pod]\nrole_arn = arn:1\nweb_identity_token_file = \(token)\n")
        let found = try await fetch([
            "AWS_CONFIG_FILE": configuration, "AWS_SHARED_CREDENTIALS_FILE": "/none",
            "AWS_PROFILE": "pod", "AWS_ENDPOINT_URL_STS": "\(service.origin)",
        ]).get()
        #expect(found.accessKey == "ASIA1")
    }

    @Test func whatSTSRefusesIsSaidWithoutTheToken() async throws {
        let service = FakeService { _ in
            FakeService.Response(
                status: 400,
                body: Array(
                    "<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>hush-jwt</Message></Error></ErrorResponse>"
                        .utf8))
        }
        let outcome = try await fetch([
            "AWS_WEB_IDENTITY_TOKEN_FILE": file("token", "hush-jwt"), "AWS_ROLE_ARN": "arn:1",
            "AWS_ENDPOINT_URL_STS": "\(service.origin)",
            // What comes later in the order is not used in its place.
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "\(service.origin)/creds",
        ])
        guard case .failure(let error) = outcome else {
            Issue.record("there are credentials")
            return
        }
        #expect(error.cause.contains("ExpiredTokenException") && !error.cause.contains("hush"))
        #expect(service.log.count == 1)
    }

    @Test func aTokenGoesToNoServiceInClearText() async throws {
        let outcome = try await fetch([
            "AWS_WEB_IDENTITY_TOKEN_FILE": file("token", "jwt"), "AWS_ROLE_ARN": "arn:1",
            "AWS_ENDPOINT_URL_STS": "http://192.0.2.1",
        ])
        #expect(throws: AWSCredentialsError.self) { try outcome.get() }
    }

    @Test func aContainersAgentIsAskedWithItsToken() async throws {
        let service = FakeService { _ in .json(Self.answer) }
        let found = try await fetch([
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "\(service.origin)/v1/credentials?id=7",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": file("token", "Basic abc\n"),
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "not this one",
        ]).get()
        #expect(found == Self.wanted)
        let asked = try #require(service.log.first)
        #expect(asked.target == "/v1/credentials?id=7" && asked.method == "GET")
        #expect(asked.fields["authorization"] == "Basic abc")
    }

    @Test func aContainersAgentIsNoOtherHost() async throws {
        let outcome = try await fetch([
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://192.0.2.1/creds",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "hush",
        ])
        guard case .failure(let error) = outcome else {
            Issue.record("it was asked")
            return
        }
        #expect(!error.cause.contains("hush"))
    }

    /// An instance's metadata service as it is: a session first, and nothing without it.
    private static func instance(_ request: FakeService.Request) -> FakeService.Response {
        let path = "/latest/meta-data/iam/security-credentials/"
        switch (request.method, request.target) {
        case ("PUT", "/latest/api/token"):
            let seconds = Int(request.fields["x-aws-ec2-metadata-token-ttl-seconds"] ?? "") ?? 0
            return FakeService.Response(
                status: (1...21_600).contains(seconds) ? 200 : 400, body: Array("session-1".utf8))
        case _ where request.fields["x-aws-ec2-metadata-token"] != "session-1":
            return FakeService.Response(status: 401)
        case ("GET", path): return FakeService.Response(body: Array("my role\n".utf8))
        case ("GET", path + "my%20role"): return .json(answer)
        default: return FakeService.Response(status: 404)
        }
    }

    @Test func anInstanceIsAskedInASession() async throws {
        let service = FakeService(Self.instance)
        let environment = [
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "\(service.origin)", "HOME": directory.path,
        ]
        #expect(try await fetch(environment).get() == Self.wanted)
        #expect(service.log.map(\.method) == ["PUT", "GET", "GET"])
        let off = environment.merging(["AWS_EC2_METADATA_DISABLED": "TRUE"]) { $1 }
        let none = try await fetch(off)
        #expect(throws: AWSCredentialsError.self) { try none.get() }
        #expect(service.log.count == 3)
    }

    @Test func anInstanceWithoutARoleHasNone() async throws {
        let service = FakeService { request in
            request.method == "PUT"
                ? FakeService.Response(body: Array("s".utf8)) : FakeService.Response(status: 404)
        }
        let outcome = try await fetch([
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "\(service.origin)", "HOME": directory.path,
        ])
        #expect(throws: AWSCredentialsError.self) { try outcome.get() }
    }

    // MARK: Renewal

    @Test func manyRequestsShareOneFetch() async throws {
        let agent = Agent()
        let keys = try await onLoop {
            let waiting = (0..<20).map { _ in
                Task(executorPreference: EventLoop.current) {
                    await agent.key
                }
            }
            await eventually { agent.service.log.count == 1 }
            agent.state.isOpen.store(true, ordering: .releasing)
            var keys: [String?] = []
            for task in waiting { keys.append(await task.value) }
            return keys
        }
        #expect(keys == [String?](repeating: "K1", count: 20))
        #expect(agent.service.log.count == 1)
    }

    @Test func renewalBeginsAheadOfExpiryAndHoldsNobodyUp() async throws {
        let agent = Agent()
        agent.state.isOpen.store(true, ordering: .releasing)
        try await onLoop {
            #expect(await agent.key == "K1")
            agent.pass(seconds: 3600 - AWSCredentialProvider.renewalLead - 1)
            #expect(await agent.key == "K1")
            #expect(agent.service.log.count == 1)
            agent.state.isOpen.store(false, ordering: .releasing)
            agent.pass(seconds: 2)
            // The service does not answer yet: the old ones are used, and nobody asks twice.
            for _ in 0..<20 { #expect(await agent.key == "K1") }
            await eventually { agent.service.log.count == 2 }
            for _ in 0..<20 { #expect(await agent.key == "K1") }
            agent.state.isOpen.store(true, ordering: .releasing)
            await eventually { await agent.key == "K2" }
            #expect(agent.service.log.count == 2)
        }
    }

    @Test func aRenewalThatFailsIsTriedAgainUntilTheyExpire() async throws {
        let agent = Agent()
        agent.state.isOpen.store(true, ordering: .releasing)
        try await onLoop {
            #expect(await agent.key == "K1")
            agent.state.fails.store(true, ordering: .releasing)
            agent.pass(seconds: 3600 - AWSCredentialProvider.renewalLead + 1)
            #expect(await agent.key == "K1")
            await eventually {
                await sharedPool.run {}
                return agent.state.ended.load(ordering: .acquiring) == 2
            }
            // A failure is followed by a pause.
            for _ in 0..<20 {
                await sharedPool.run {}
                #expect(await agent.key == "K1")
            }
            #expect(agent.service.log.count == 2)
            agent.pass(seconds: AWSCredentialProvider.retryPause)
            #expect(await agent.key == "K1")
            await eventually {
                await sharedPool.run {}
                return agent.state.ended.load(ordering: .acquiring) == 3
            }
            agent.pass(seconds: 3600)
            #expect(await agent.key == nil)
            agent.state.fails.store(false, ordering: .releasing)
            #expect(await agent.key == "K2")
        }
    }

    /// What the service refuses is fetched anew, but not again and again: a right may be missing.
    @Test func refusedCredentialsAreRenewedOnceInAWhile() async throws {
        let agent = Agent()
        agent.state.isOpen.store(true, ordering: .releasing)
        try await onLoop {
            let first = try await agent.provider.current()
            #expect(agent.provider.refused(first))
            #expect(await agent.key == "K2")
            // Who was refused with those from before may try with these; these are trusted for now.
            #expect(agent.provider.refused(first))
            let second = try await agent.provider.current()
            #expect(!agent.provider.refused(second))
            #expect(await agent.key == "K2" && agent.service.log.count == 2)
            agent.pass(seconds: AWSCredentialProvider.suspicionPause)
            agent.state.fails.store(true, ordering: .releasing)
            #expect(agent.provider.refused(second))
            // There are no others: the old ones may still do for something else.
            #expect(await agent.key == "K2" && agent.service.log.count == 3)
            #expect(await agent.key == "K2" && agent.service.log.count == 3)
        }
    }
}

/// A container's agent whose clock and answers a test controls; its keys are numbered, and live for an hour.
private final class Agent: Sendable {
    let service: FakeService
    let provider: AWSCredentialProvider
    let state = State()

    final class State: Sendable {
        let time = Atomic<Int64>(1_900_000_000)
        let answers = Atomic<Int>(0)
        /// Fetches that have ended.
        let ended = Atomic<Int>(0)
        /// Whether it answers now.
        let isOpen = Atomic<Bool>(false)
        /// Whether its answers are errors.
        let fails = Atomic<Bool>(false)
    }

    init() {
        let state = state
        service = FakeService { _ in
            while !state.isOpen.load(ordering: .acquiring) { sched_yield() }
            if state.fails.load(ordering: .acquiring) { return FakeService.Response(status: 400) }
            let number = state.answers.add(1, ordering: .acquiringAndReleasing).newValue
            var expiry = time_t(state.time.load(ordering: .acquiring) + 3600)
            var parts = tm()
            gmtime_r(&expiry, &parts)
            var text = [CChar](repeating: 0, count: 32)
            let count = strftime(&text, text.count, "%Y-%m-%dT%H:%M:%SZ", &parts)
            let stamp = String(decoding: text[..<count].map { UInt8($0) }, as: UTF8.self)
            return .json(
                #"{"AccessKeyId": "K\#(number)", "SecretAccessKey": "s", "Token": "t", "#
                    + #""Expiration": "\#(stamp)"}"#)
        }
        let fetcher = AWSCredentialFetcher(
            .container, region: "us-east-1", pool: sharedPool,
            environment: ["AWS_CONTAINER_CREDENTIALS_FULL_URI": "\(service.origin)/creds"])
        provider = AWSCredentialProvider(
            clock: { state.time.load(ordering: .acquiring) },
            fetch: {
                defer { state.ended.add(1, ordering: .acquiringAndReleasing) }
                return await fetcher.fetch()
            })
    }

    /// Names the current credentials; nil where there are none.
    var key: String? {
        get async { try? await provider.current().accessKey }
    }

    func pass(seconds: Int64) { state.time.add(seconds, ordering: .acquiringAndReleasing) }
}
