import Glibc
import Synchronization
import System
import TestSupport
import Testing
import Wire

@testable import Credentials

@Suite("AWS's credentials", .timeLimit(.minutes(2)))
struct AWSCredentialTests {
    private let directory = TemporaryDirectory()

    private func fetch(
        _ environment: [BytewiseString: String], _ source: AWSCredentialSource = .standard
    )
        async throws -> Result<AWSCredentials, AWSCredentialsError>
    {
        try await TestLoop.run {
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

    private static let response = #"""
        {"Code": "Success", "AccessKeyId": "ASIA2", "SecretAccessKey": "s", "Token": "t",
         "Expiration": "2033-05-18T03:33:20Z", "RoleArn": "ignored"}
        """#
    private static let wanted = AWSCredentials(
        accessKey: "ASIA2", secretKey: "s", sessionToken: "t", expires: 2_000_000_000)

    @Test func aWebIdentityIsExchangedBySTS() async throws {
        let service = FakeService { _ in Self.sts() }
        let token = directory.write("token", " e.y=J \n")
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
        let token = directory.write("token", "jwt")
        let configuration = directory.write(
            "config",
            "[profile pod]\nrole_arn = arn:1\nweb_identity_token_file = \(token)\n")
        let found = try await fetch([
            "AWS_CONFIG_FILE": configuration, "AWS_SHARED_CREDENTIALS_FILE": "/none",
            "AWS_PROFILE": "pod", "AWS_ENDPOINT_URL_STS": "\(service.origin)",
        ]).get()
        #expect(found.accessKey == "ASIA1")
    }

    @Test func anErrorOfSTSIsReportedWithoutTheToken() async throws {
        let service = FakeService { _ in
            FakeService.Response(
                status: 400,
                body: Array(
                    "<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>hush-jwt</Message></Error></ErrorResponse>"
                        .utf8))
        }
        let outcome = try await fetch([
            "AWS_WEB_IDENTITY_TOKEN_FILE": directory.write("token", "hush-jwt"),
            "AWS_ROLE_ARN": "arn:1",
            "AWS_ENDPOINT_URL_STS": "\(service.origin)",
            // A later source is not used as a fallback.
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
            "AWS_WEB_IDENTITY_TOKEN_FILE": directory.write("token", "jwt"), "AWS_ROLE_ARN": "arn:1",
            "AWS_ENDPOINT_URL_STS": "http://192.0.2.1",
        ])
        #expect(throws: AWSCredentialsError.self) { try outcome.get() }
    }

    @Test func aContainerAgentGetsItsToken() async throws {
        let service = FakeService { _ in .json(Self.response) }
        let found = try await fetch([
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "\(service.origin)/v1/credentials?id=7",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": directory.write("token", "Basic abc\n"),
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "not this one",
        ]).get()
        #expect(found == Self.wanted)
        let asked = try #require(service.log.first)
        #expect(asked.target == "/v1/credentials?id=7" && asked.method == "GET")
        #expect(asked.fields["authorization"] == "Basic abc")
    }

    @Test func aContainerAgentOnAnotherHostIsRejected() async throws {
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

    /// The metadata service of an instance: it requires a session token.
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
        case ("GET", path + "my%20role"): return .json(response)
        default: return FakeService.Response(status: 404)
        }
    }

    @Test func anInstanceUsesASession() async throws {
        let service = FakeService(Self.instance)
        let environment: [BytewiseString: String] = [
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "\(service.origin)", "HOME": directory.path,
        ]
        var wanted = Self.wanted
        wanted.mayOutliveExpiry = true
        #expect(try await fetch(environment).get() == wanted)
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
        let keys = try await TestLoop.run {
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

    @Test func renewalBeginsBeforeExpiryAndDelaysNoRequest() async throws {
        let agent = Agent()
        agent.state.isOpen.store(true, ordering: .releasing)
        try await TestLoop.run {
            #expect(await agent.key == "K1")
            agent.pass(seconds: 3600 - AWSCredentialProvider.renewalLead - 1)
            #expect(await agent.key == "K1")
            #expect(agent.service.log.count == 1)
            agent.state.isOpen.store(false, ordering: .releasing)
            agent.pass(seconds: 2)
            // The service does not respond yet: the old credentials are used, and only one renewal runs.
            for _ in 0..<20 { #expect(await agent.key == "K1") }
            await eventually { agent.service.log.count == 2 }
            for _ in 0..<20 { #expect(await agent.key == "K1") }
            agent.state.isOpen.store(true, ordering: .releasing)
            await eventually { await agent.key == "K2" }
            #expect(agent.service.log.count == 2)
        }
    }

    @Test func aFailedRenewalIsRetriedUntilExpiry() async throws {
        let agent = Agent()
        agent.state.isOpen.store(true, ordering: .releasing)
        try await TestLoop.run {
            #expect(await agent.key == "K1")
            agent.state.fails.store(true, ordering: .releasing)
            agent.pass(seconds: 3600 - AWSCredentialProvider.renewalLead + 1)
            #expect(await agent.key == "K1")
            await eventually {
                await sharedPool.run {}
                return agent.state.ended.load(ordering: .acquiring) == 2
            }
            // A failure is followed by a delay.
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
            // It is not requested again at once either.
            let before = agent.service.log.count
            for _ in 0..<20 { #expect(await agent.key == nil) }
            #expect(agent.service.log.count == before)
            agent.state.fails.store(false, ordering: .releasing)
            agent.pass(seconds: AWSCredentialProvider.failureHold)
            #expect(await agent.key == "K2")
        }
    }

    /// Requests credentials until all renewals have ended. Returns the number of renewals.
    private func renewals(_ agent: Agent, atLeast least: Int = 0) async -> Int {
        let before = agent.state.ended.load(ordering: .acquiring)
        for _ in 0..<50 {
            #expect(await agent.key != nil)
            await sharedPool.run {}
        }
        await eventually {
            _ = await agent.key
            await sharedPool.run {}
            let ended = agent.state.ended.load(ordering: .acquiring)
            return agent.state.begun.load(ordering: .acquiring) == ended && ended - before >= least
        }
        return agent.state.ended.load(ordering: .acquiring) - before
    }

    @Test(arguments: [false, true])
    func aMetadataServiceWithoutNewCredentialsGetsFewRequests(fails: Bool) async throws {
        let agent = Agent(isInstance: true)
        agent.state.isOpen.store(true, ordering: .releasing)
        let expiry = agent.state.time.load(ordering: .acquiring) + 3600
        agent.state.expiry.store(expiry, ordering: .releasing)
        try await TestLoop.run {
            #expect(await renewals(agent, atLeast: 1) == 1)
            agent.state.fails.store(fails, ordering: .releasing)
            agent.pass(seconds: 3600 - AWSCredentialProvider.renewalLead + 1)
            #expect(await renewals(agent, atLeast: 1) == 1)
            agent.pass(seconds: AWSCredentialProvider.retryPause)
            #expect(await renewals(agent, atLeast: 1) == 1)
            // The delays grow.
            agent.pass(seconds: AWSCredentialProvider.retryPause / 2)
            #expect(await renewals(agent) == 0)
            agent.pass(seconds: AWSCredentialProvider.retryPause * 2)
            #expect(await renewals(agent, atLeast: 1) == 1)
            // After the expiry the credentials stay in use, and renewals continue.
            agent.pass(seconds: 3600)
            #expect(await renewals(agent, atLeast: 1) == 1)
            agent.pass(seconds: AWSCredentialProvider.extensionSeconds.lowerBound - 1)
            #expect(await renewals(agent) == 0)
            agent.pass(seconds: AWSCredentialProvider.extensionSeconds.upperBound)
            #expect(await renewals(agent, atLeast: 1) == 1)
            // The service has recovered.
            let last = agent.state.responses.load(ordering: .acquiring)
            agent.state.fails.store(false, ordering: .releasing)
            agent.state.expiry.store(0, ordering: .releasing)
            agent.pass(seconds: AWSCredentialProvider.extensionSeconds.upperBound)
            #expect(await renewals(agent, atLeast: 1) == 1)
            #expect(await agent.key == "K\(last + 1)")
            #expect(await renewals(agent) == 0)
        }
    }

    @Test func expiredCredentialsOfAnAgentAreNotFetchedForEachRequest() async throws {
        let agent = Agent()
        agent.state.isOpen.store(true, ordering: .releasing)
        agent.state.expiry.store(1, ordering: .releasing)
        try await TestLoop.run {
            #expect(await renewals(agent, atLeast: 1) == 1)
            #expect(await renewals(agent) == 0)
            agent.pass(seconds: AWSCredentialProvider.retryPause)
            #expect(await renewals(agent, atLeast: 1) == 1)
        }
    }

    @Test func aConfiguredProfileMustExist() async throws {
        let service = FakeService(Self.instance)
        let other = directory.write(
            "credentials", "[other]\naws_access_key_id = A\naws_secret_access_key = s\n")
        let configuration = directory.write("config", "[profile plain]\n[default]\nregion = x\n")
        var environment: [BytewiseString: String] = [
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "\(service.origin)",
            "AWS_SHARED_CREDENTIALS_FILE": other, "AWS_CONFIG_FILE": configuration,
        ]
        for variable in ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"] {
            let named = environment.merging([BytewiseString(variable): "missing"]) { $1 }
            guard case .failure(let error) = try await fetch(named) else {
                Issue.record("another source's credentials are used")
                return
            }
            #expect(error.cause.contains("'missing'"))
        }
        #expect(service.log.isEmpty)
        // A profile without keys leaves them to the next source. So does `default`, which was not named explicitly.
        for name in ["plain", "default", ""] {
            environment["AWS_PROFILE"] = name
            #expect(try await fetch(environment).get().accessKey == "ASIA2")
        }
        environment["AWS_PROFILE"] = "other"
        #expect(try await fetch(environment).get().accessKey == "A")
    }

    /// Rejected credentials are renewed, but not repeatedly, because the cause may be a missing permission.
    @Test func rejectedCredentialsAreRenewedAtIntervals() async throws {
        let agent = Agent()
        agent.state.isOpen.store(true, ordering: .releasing)
        try await TestLoop.run {
            let first = try await agent.provider.current()
            #expect(agent.provider.reject(first))
            #expect(await agent.key == "K2")
            // A request rejected with the old credentials may be retried with the new ones, which are now trusted.
            #expect(agent.provider.reject(first))
            let second = try await agent.provider.current()
            #expect(!agent.provider.reject(second))
            #expect(await agent.key == "K2" && agent.service.log.count == 2)
            agent.pass(seconds: AWSCredentialProvider.suspicionPause)
            agent.state.fails.store(true, ordering: .releasing)
            #expect(agent.provider.reject(second))
            // There are no other credentials, and the old ones may still work for other requests.
            #expect(await agent.key == "K2" && agent.service.log.count == 3)
            #expect(await agent.key == "K2" && agent.service.log.count == 3)
        }
    }

    @Test func profiles() {
        let file = AWSConfigurationFile(
            """
            # comment
            [default]
            aws_access_key_id = A  # mine
              nested = 1
            [profile  two]
            AWS_SECRET_ACCESS_KEY=s#c
            """)
        #expect(file.profile("default", inConfiguration: false) == ["aws_access_key_id": "A"])
        #expect(file.profile("two", inConfiguration: true) == ["aws_secret_access_key": "s#c"])
        #expect(file.profile("none", inConfiguration: true) == [:])
    }

    @Test func credentialsAreNotShown() {
        let credentials = AWSCredentials(
            accessKey: "key-1", secretKey: "secret-1", sessionToken: "token-1")
        var dumped = ""
        dump(credentials, to: &dumped)
        for text in ["\(credentials)", String(reflecting: credentials), dumped] {
            #expect(!text.contains("-1"))
        }
    }
}

/// A container's agent, or an instance's metadata service. The test controls its clock and responses. Its keys are
/// numbered and valid for an hour.
private final class Agent: Sendable {
    let service: FakeService
    let provider: AWSCredentialProvider
    let state = State()

    final class State: Sendable {
        let time = Atomic<Int64>(1_900_000_000)
        let responses = Atomic<Int>(0)
        /// The expiry of the credentials; 0 for one hour from now.
        let expiry = Atomic<Int64>(0)
        /// Fetches that have begun.
        let begun = Atomic<Int>(0)
        /// Fetches that have ended.
        let ended = Atomic<Int>(0)
        /// Whether it responds now.
        let isOpen = Atomic<Bool>(false)
        /// Whether it responds with errors.
        let fails = Atomic<Bool>(false)
    }

    init(isInstance: Bool = false) {
        let state = state
        service = FakeService { request in
            let path = "/latest/meta-data/iam/security-credentials/"
            if isInstance, request.target != path + "role" {
                let isSession = request.method == "PUT"
                return FakeService.Response(body: Array((isSession ? "s" : "role").utf8))
            }
            while !state.isOpen.load(ordering: .acquiring) { sched_yield() }
            if state.fails.load(ordering: .acquiring) { return FakeService.Response(status: 400) }
            let number = state.responses.add(1, ordering: .acquiringAndReleasing).newValue
            let fixed = state.expiry.load(ordering: .acquiring)
            var expiry = time_t(fixed > 0 ? fixed : state.time.load(ordering: .acquiring) + 3600)
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
            isInstance ? .instance : .container, region: "us-east-1", pool: sharedPool,
            environment: [
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": "\(service.origin)/creds",
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": "\(service.origin)",
            ])
        provider = AWSCredentialProvider(
            clock: { state.time.load(ordering: .acquiring) },
            fetch: {
                state.begun.add(1, ordering: .acquiringAndReleasing)
                defer { state.ended.add(1, ordering: .acquiringAndReleasing) }
                return await fetcher.fetch()
            })
    }

    /// The name of the current credentials; nil if there are none.
    var key: String? {
        get async { try? await provider.current().accessKey }
    }

    func pass(seconds: Int64) { state.time.add(seconds, ordering: .acquiringAndReleasing) }
}
