import CAllocations
import COpenSSL
import Glibc
import HTTPClient
import Identity
import OpenSSL
import System
import Wire

/// Measures the lookup of a known token of 1 KiB and the verification of a new one, compared with OpenSSL's
/// verification of the same signature. Prints the nanoseconds of processor time and the heap allocations for each: the
/// median of several runs.
@main
struct IdentityBenchmark {
    static let now: Int64 = 1_714_564_800

    static func main() async throws {
        let key = makeKey()
        let path = "/tmp/sluice-benchmark-\(getpid()).json"
        try write(publicKeys(key), to: path)
        let loop = try EventLoop()
        _ = startThread { loop.run() }
        let authenticator = Authenticator(
            issuers: [
                TokenIssuer(
                    name: "a", keys: .file(path), issuer: "https://a.example", audiences: ["a"])
            ], staticTokens: [], acceptsUnsigned: false, pool: BlockingPool(threads: 1),
            now: { now }, environment: [:])
        authenticator.start(on: loop)
        while !authenticator.pending.isEmpty { usleep(1000) }
        unlink(path)
        let tokens = (0..<3_000).map { token(key, $0) }
        let all = tokens.map { token in
            var fields = HeaderFields()
            fields.append("host", "localhost")
            fields.append("authorization", "Bearer " + token)
            return fields
        }
        print("a token of \(tokens[0].utf8.count) bytes                     ns  allocations")
        try await Task(executorPreference: loop) {
            var verified: [Double] = []
            var allocations: UInt64 = 0
            for batch in 0..<10 {
                let before = sluice_allocations()
                let start = clock()
                for fields in all[(batch * 300)..<(batch * 300 + 300)] {
                    _ = try await authenticator.authenticate(fields)
                }
                verified.append(Double(clock() - start) / 300)
                allocations = (sluice_allocations() - before) / 300
            }
            report("authenticate, new", verified, Double(allocations))
            var known: [Double] = []
            let fields = all[2_999]
            let before = sluice_allocations()
            for _ in 0..<10 {
                let start = clock()
                for _ in 0..<50_000 { _ = try await authenticator.authenticate(fields) }
                known.append(Double(clock() - start) / 50_000)
            }
            report(
                "authenticate, known", known, Double(sluice_allocations() - before) / 500_000)
        }.value
        verify(key, tokens)
        await authenticator.close()
    }

    // MARK: OpenSSL alone

    static func verify(_ key: OpaquePointer, _ tokens: [String]) {
        let pieces = tokens.map { token in
            let text = Array(token.utf8)
            let dot = text.lastIndex(of: UInt8(ascii: "."))!
            return (Array(text[..<dot]), Base64.decodeForURL(text[(dot + 1)...])!)
        }
        let type = EVP_MD_fetch(nil, "SHA2-256", nil)
        measure("OpenSSL: EVP_DigestVerify", pieces) { message, signature in
            let context = EVP_MD_CTX_new()
            EVP_DigestVerifyInit(context, nil, type, nil, key)
            precondition(
                EVP_DigestVerify(context, signature, signature.count, message, message.count) == 1)
            EVP_MD_CTX_free(context)
        }
        let context = EVP_PKEY_CTX_new_from_pkey(nil, key, nil)
        EVP_PKEY_verify_init(context)
        EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PADDING)
        EVP_PKEY_CTX_set_signature_md(context, type)
        measure("OpenSSL: EVP_Digest, EVP_PKEY_verify", pieces) { message, signature in
            var hash = [UInt8](repeating: 0, count: 32)
            EVP_Digest(message, message.count, &hash, nil, type, nil)
            precondition(EVP_PKEY_verify(context, signature, signature.count, hash, 32) == 1)
        }
        measure("OpenSSL: SHA-256 alone", pieces) { message, _ in
            var hash = [UInt8](repeating: 0, count: 32)
            EVP_Digest(message, message.count, &hash, nil, type, nil)
        }
    }

    static func measure(
        _ name: String, _ pieces: [([UInt8], [UInt8])], _ body: ([UInt8], [UInt8]) -> Void
    ) {
        var times: [Double] = []
        let before = sluice_allocations()
        for batch in 0..<10 {
            let start = clock()
            for (message, signature) in pieces[(batch * 300)..<(batch * 300 + 300)] {
                body(message, signature)
            }
            times.append(Double(clock() - start) / 300)
        }
        report(name, times, Double(sluice_allocations() - before) / 3_000)
    }

    static func report(_ name: String, _ times: [Double], _ allocations: Double) {
        let time = String(Int(times.sorted()[times.count / 2].rounded()))
        let padding = String(repeating: " ", count: max(1, 46 - name.count - time.count))
        print("\(name)\(padding)\(time)  \(allocations)")
    }

    /// The processor time of the calling thread, in nanoseconds.
    static func clock() -> UInt64 {
        var time = timespec()
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
        return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
    }

    // MARK: Tokens

    static func makeKey() -> OpaquePointer {
        let context = EVP_PKEY_CTX_new_from_name(nil, "RSA", nil)
        defer { EVP_PKEY_CTX_free(context) }
        var key: OpaquePointer?
        EVP_PKEY_keygen_init(context)
        EVP_PKEY_CTX_set_rsa_keygen_bits(context, 2048)
        precondition(EVP_PKEY_generate(context, &key) == 1)
        return key!
    }

    static func publicKeys(_ key: OpaquePointer) -> String {
        func number(_ name: String) -> String {
            var number: OpaquePointer?
            precondition(EVP_PKEY_get_bn_param(key, name, &number) == 1)
            defer { BN_free(number) }
            var bytes = [UInt8](repeating: 0, count: Int(BN_num_bits(number) + 7) / 8)
            BN_bn2bin(number, &bytes)
            return Base64.encodeForURL(bytes)
        }
        return
            #"{"keys": [{"kty": "RSA", "kid": "k", "n": "\#(number("n"))", "e": "\#(number("e"))"}]}"#
    }

    /// A token of 1 KiB, with claims like those of a Kubernetes pod.
    static func token(_ key: OpaquePointer, _ number: Int) -> String {
        let claims = """
            {"iss": "https://a.example", "aud": ["a"], "sub": "system:serviceaccount:shop:web", \
            "exp": \(now + 600), "iat": \(now), "nbf": \(now), "jti": "\(number + 100_000)", \
            "kubernetes.io": {"namespace": "shop", "node": {"name": "node-1", "uid": "n-1"}, \
            "pod": {"name": "web-0", "uid": "p-1"}, "serviceaccount": {"name": "web", "uid": "s-1"}}, \
            "more": "\(String(repeating: "x", count: 110))"}
            """
        let message =
            Base64.encodeForURL(Array(#"{"alg": "RS256", "kid": "k", "typ": "JWT"}"#.utf8)) + "."
            + Base64.encodeForURL(Array(claims.utf8))
        let context = EVP_MD_CTX_new()
        defer { EVP_MD_CTX_free(context) }
        var signature = [UInt8](repeating: 0, count: 256)
        var length = 256
        let bytes = Array(message.utf8)
        EVP_DigestSignInit(context, nil, EVP_sha256(), nil, key)
        precondition(EVP_DigestSign(context, &signature, &length, bytes, bytes.count) == 1)
        return message + "." + Base64.encodeForURL(signature)
    }

    static func write(_ text: String, to path: String) throws {
        let descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
        let bytes = Array(text.utf8)
        precondition(Glibc.write(descriptor, bytes, bytes.count) == bytes.count)
        close(descriptor)
    }
}
