import Glibc
import HTTPClient
import Synchronization
import System
import TestSupport
import Testing
import Wire

@testable import Identity

/// Noon of 1 May 2024: what the tests' tokens take for now.
let noon: Int64 = 1_714_564_800
let issuerName = "https://issuer.example"
let audience = "sluice"
let sharedPool = BlockingPool(threads: 2)

/// A clock that a test moves.
final class TestClock: Sendable {
    private let seconds = Atomic<Int64>(noon)
    func advance(_ count: Int64) { seconds.add(count, ordering: .relaxed) }
    var now: Int64 { seconds.load(ordering: .relaxed) }
}

/// The claims of a usual token with others in place of, or beside, them. A claim of nil is left out.
func claims(_ changes: (String, String?)...) -> String {
    var members: [(String, String)] = [
        ("iss", "\"\(issuerName)\""), ("sub", "\"alice\""), ("aud", "\"\(audience)\""),
        ("exp", "\(noon + 600)"), ("iat", "\(noon - 10)"),
    ]
    for (name, value) in changes {
        members.removeAll { $0.0 == name }
        if let value { members.append((name, value)) }
    }
    return "{" + members.map { "\"\($0)\": \($1)" }.joined(separator: ", ") + "}"
}

func header(_ key: TestKey, _ more: String = "", algorithm: String? = nil) -> String {
    #"{"alg": "\#(algorithm ?? key.algorithm)", "kid": "\#(key.keyID)"\#(more)}"#
}

func token(_ key: TestKey, _ claims: String = claims(), algorithm: String? = nil) -> String {
    key.token(header: header(key, algorithm: algorithm), claims: claims, algorithm: algorithm)
}

func keySet(_ keys: String...) -> String { "{\"keys\": [\(keys.joined(separator: ", "))]}" }

func write(_ text: String, to path: String) {
    let descriptor = open(path + ".new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
    let bytes = Array(text.utf8)
    precondition(Glibc.write(descriptor, bytes, bytes.count) == bytes.count)
    close(descriptor)
    precondition(rename(path + ".new", path) == 0)
}

/// Times that no test waits for.
let quickly = RefreshTimes(
    ages: 20_000_000...20_000_000, usualAge: 20_000_000, pauses: 1_000_000...5_000_000,
    earlyInterval: 0, waitLimit: 5_000_000_000, look: 5_000_000)

/// Early fetches that no slow machine repeats.
let patiently: RefreshTimes = {
    var times = RefreshTimes()
    times.earlyInterval = 3_600_000_000_000
    times.waitLimit = 60_000_000_000
    return times
}()

/// An authenticator whose keys come from where a test says, on the tests' loop.
final class Harness: Sendable {
    let directory = TemporaryDirectory()
    let clock = TestClock()
    let authenticator: Authenticator

    init(
        _ issuers: [TokenIssuer], staticTokens: [StaticToken] = [], acceptsUnsigned: Bool = false,
        environment: [BytewiseString: String] = [:], times: RefreshTimes = RefreshTimes(),
        warn: @escaping @Sendable (String) -> Void = { _ in }
    ) {
        authenticator = Authenticator(
            issuers: issuers, staticTokens: staticTokens, acceptsUnsigned: acceptsUnsigned,
            pool: sharedPool, now: { [clock] in clock.now }, observer: nil,
            environment: environment, times: times)
        authenticator.start(on: TestLoop.loop, warn: warn)
    }

    /// One issuer with the keys of a file.
    convenience init(keys: String, _ change: (inout TokenIssuer) -> Void = { _ in }) {
        let path = "/tmp/sluice-keys-\(getpid())-\(UInt64.random(in: 0 ... .max)).json"
        write(keys, to: path)
        var issuer = TokenIssuer(
            name: "example", keys: .file(path), issuer: issuerName, audiences: [audience])
        change(&issuer)
        self.init([issuer])
    }

    /// Waits until all keys are there.
    func ready() async -> Harness {
        await eventually { authenticator.pending.isEmpty }
        for issuer in authenticator.issuers {
            if case .file(let path) = issuer.keys, path.hasPrefix("/tmp/sluice-keys-") {
                unlink(path)
            }
        }
        return self
    }

    func ask(_ authorization: String...) async throws -> Principal? {
        let fields = authorization.reduce(into: HeaderFields()) { $0.append("authorization", $1) }
        return try await TestLoop.run { [authenticator] in
            try await authenticator.authenticate(fields)
        }
    }

    /// The code that a bearer token is refused with; nil where it is accepted.
    func rejection(_ token: String) async throws -> CredentialError.Code? {
        do {
            _ = try await ask("Bearer " + token)
            return nil
        } catch let error as CredentialError {
            // Nothing of a token but issuer and kid may be told.
            let parts = token.split(separator: ".").filter { $0.count > 8 }
            #expect(!parts.contains { error.cause.contains($0) })
            return error.code
        }
    }
}

extension Principal {
    /// The text of a string, number or Boolean within the claims; nil if there is none at this path.
    func claim(_ path: String...) -> String? {
        guard let claims else { return nil }
        var index = 0
        for name in path {
            guard claims.kind(index) == .object,
                let key = claims.children(of: index).first(where: { claims.has($0, name) })
            else { return nil }
            index = key + 1
        }
        return switch claims.kind(index) {
        case .string, .number: claims.text(index)
        case .true: "true"
        case .false: "false"
        case .null, .array, .object: nil
        }
    }
}
