import COpenSSL
import COpenSSLSetup
import Testing

/// AES-GCM with vectors of 64 bytes, which contexts of TLS ask for, beside OpenSSL's own.
@Suite(
    "AES-GCM of IPsec MB",
    .enabled(if: sluice_wide_gcm() != nil, "needs IPsec MB, the instructions and OpenSSL 3.0"))
struct WideGCMTests {
    private static let ours = sluice_wide_gcm().map { String(cString: $0) }
    private static let theirs = "provider=default"

    /// One direction of a connection.
    private final class Cipher {
        let context = EVP_CIPHER_CTX_new()
        private let cipher: OpaquePointer?

        init(_ name: String, _ provider: String?, encrypts: Bool, key: [UInt8]) {
            cipher = EVP_CIPHER_fetch(nil, name, provider)
            precondition(
                EVP_CipherInit_ex(context, cipher, nil, nil, nil, encrypts ? 1 : 0) == 1
                    && EVP_CipherInit_ex(context, nil, nil, key, nil, -1) == 1)
        }

        deinit {
            EVP_CIPHER_CTX_free(context)
            EVP_CIPHER_free(cipher)
        }

        func begin(_ nonce: [UInt8]) -> Bool {
            EVP_CipherInit_ex(context, nil, nil, nil, nonce, -1) == 1
        }

        func authenticate(_ data: ArraySlice<UInt8>) -> Bool {
            var count: Int32 = 0
            return EVP_CipherUpdate(context, nil, &count, Array(data), Int32(data.count)) == 1
        }

        /// nil if it fails.
        func update(_ bytes: ArraySlice<UInt8>) -> [UInt8]? {
            var out = [UInt8](repeating: 0, count: bytes.count + 1)
            var count: Int32 = 0
            guard EVP_CipherUpdate(context, &out, &count, Array(bytes), Int32(bytes.count)) == 1
            else { return nil }
            return Array(out[..<Int(count)])
        }

        func end() -> Bool {
            var (byte, count): (UInt8, Int32) = (0, 0)
            return EVP_CipherFinal_ex(context, &byte, &count) == 1 && count == 0
        }

        var tag: [UInt8]? {
            var tag = [UInt8](repeating: 0, count: 16)
            let isKnown = EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, &tag) == 1
            return isKnown ? tag : nil
        }

        func expect(_ tag: [UInt8]) -> Bool {
            var tag = tag
            return EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, Int32(tag.count), &tag) == 1
        }

        /// A whole record of TLS 1.2 with space for nonce and tag, in place; nil if it fails.
        func record(_ bytes: inout [UInt8], header: [UInt8]) -> [UInt8]? {
            var header = header
            guard EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_TLS1_AAD, 13, &header) == 16 else {
                return nil
            }
            var count: Int32 = 0
            let isDone = bytes.withUnsafeMutableBufferPointer {
                EVP_CipherUpdate(
                    context, $0.baseAddress, &count, $0.baseAddress, Int32($0.count))
            }
            return isDone == 1 ? Array(bytes[..<Int(count)]) : nil
        }
    }

    private func random(_ count: Int) -> [UInt8] {
        (0..<count).map { _ in UInt8.random(in: 0 ... .max) }
    }

    /// Cuts bytes into pieces of random sizes.
    private func pieces(_ bytes: [UInt8]) -> [ArraySlice<UInt8>] {
        var (rest, pieces) = (bytes[...], [ArraySlice<UInt8>]())
        while !rest.isEmpty {
            let count = Int.random(in: 1...rest.count)
            pieces.append(rest.prefix(count))
            rest = rest.dropFirst(count)
        }
        return pieces
    }

    @Test(
        "Other users of OpenSSL get its own cipher", arguments: ["AES-128-GCM", "AES-256-GCM"])
    func others(name: String) throws {
        for (query, wanted) in [(nil, "default"), (WideGCMTests.ours, "sluice")] {
            let cipher = try #require(EVP_CIPHER_fetch(nil, name, query))
            defer { EVP_CIPHER_free(cipher) }
            let provider = OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(cipher))
            #expect(provider.map { String(cString: $0) } == wanted)
        }
    }

    @Test("Sessions of TLS use it, on both sides")
    func sessions() async {
        let server = ScriptedServer(.tls) { peer, _ in
            guard peer.request() != nil else { return }
            peer.respond(200, "hello")
        }
        let upstream = server.upstream()
        let before = sluice_wide_gcm_keys()
        #expect(await upstream.ask().text == "hello")
        // The scripted server has contexts of its own. With the keys of the handshake, the client makes four.
        #expect(sluice_wide_gcm_keys() >= before + 4)
        await upstream.close()
    }

    @Test(
        "Messages in random pieces, both ways, as with OpenSSL",
        arguments: [("AES-128-GCM", 16), ("AES-256-GCM", 32)])
    func messages(name: String, keyBytes: Int) {
        let key = random(keyBytes)
        let theirs = Cipher(name, WideGCMTests.theirs, encrypts: true, key: key)
        let ours = Cipher(name, WideGCMTests.ours, encrypts: true, key: key)
        let reader = Cipher(name, WideGCMTests.ours, encrypts: false, key: key)
        for round in 0..<400 {
            let text = random(round % 8 == 0 ? Int.random(in: 0...40_000) : round)
            let (nonce, data) = (random(12), random(Int.random(in: 0...64)))
            #expect(theirs.begin(nonce) && ours.begin(nonce) && reader.begin(nonce))
            #expect(pieces(data).allSatisfy { theirs.authenticate($0) && reader.authenticate($0) })
            #expect(pieces(data).allSatisfy { ours.authenticate($0) })
            let expected = theirs.update(text[...])
            #expect(theirs.end())
            let sent = pieces(text).map { ours.update($0) }
            #expect(ours.end())
            #expect(sent.flatMap { $0 ?? [] } == expected)
            guard let tag = theirs.tag, let expected else { return #expect(Bool(false)) }
            #expect(ours.tag == tag)
            var shown = tag
            if round % 2 == 1 { shown[round % 16] ^= 1 << UInt8(round % 8) }
            #expect(reader.expect(shown))
            #expect(pieces(expected).flatMap { reader.update($0) ?? [] } == text)
            #expect(reader.end() == (shown == tag))
        }
    }

    @Test(
        "Records of TLS 1.2, which are rejected if a bit differs",
        arguments: [("AES-128-GCM", 16), ("AES-256-GCM", 32)])
    func records(name: String, keyBytes: Int) throws {
        let key = random(keyBytes)
        var implicit = random(4)
        for (sender, receiver) in [
            (WideGCMTests.ours, WideGCMTests.theirs), (WideGCMTests.theirs, WideGCMTests.ours),
        ] {
            let writer = Cipher(name, sender, encrypts: true, key: key)
            let reader = Cipher(name, receiver, encrypts: false, key: key)
            for cipher in [writer, reader] {
                #expect(
                    EVP_CIPHER_CTX_ctrl(
                        cipher.context, EVP_CTRL_AEAD_SET_IV_FIXED, 4, &implicit) == 1)
            }
            var last: UInt64?
            for round in 0..<600 {
                let text = random(round % 100 == 99 ? 16_384 : round % 20)
                var bytes = random(8) + text + random(16)
                let sent = try #require(
                    writer.record(&bytes, header: header(text.count + 8, number: round)))
                #expect(sent.count == text.count + 24)
                // More than 256, so that a carry is among them.
                let nonce = sent[..<8].reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
                if let last { #expect(nonce == last &+ 1) }
                last = nonce
                if round % 3 == 2 { bytes[round % sent.count] ^= 0x10 }
                let read = reader.record(&bytes, header: header(bytes.count, number: round))
                #expect(read?.count == (round % 3 == 2 ? nil : text.count))
                let shown = round % 3 == 2 ? [UInt8](repeating: 0, count: text.count) : text
                #expect(Array(bytes[8..<8 + text.count]) == shown, "nothing false is shown")
            }
        }
    }

    /// The header of a record of TLS 1.2, as additional data.
    private func header(_ count: Int, number: Int = 0) -> [UInt8] {
        [0, 0, 0, 0, 0, 0, UInt8(number >> 8), UInt8(number & 0xff), 23, 3, 3]
            + [UInt8(count >> 8), UInt8(count & 0xff)]
    }

    @Test("What would break the cipher is refused")
    func misuse() {
        let name = "AES-128-GCM"
        let cipher = Cipher(name, WideGCMTests.ours, encrypts: true, key: random(16))
        #expect(cipher.update([1]) == nil, "no nonce")
        #expect(cipher.begin(random(12)) && cipher.update([1]) != nil)
        #expect(cipher.tag == nil, "not before the end")
        #expect(!cipher.authenticate([1]), "not behind the text")
        #expect(cipher.end() && cipher.tag != nil)
        #expect(cipher.update([1]) == nil && !cipher.end(), "a nonce twice")
        #expect(cipher.begin(random(12)) && !cipher.authenticate(random(65)[...]), "too much")
        #expect(!cipher.expect(random(16)), "it makes its tag itself")
        #expect(EVP_CIPHER_CTX_ctrl(cipher.context, EVP_CTRL_AEAD_SET_IVLEN, 8, nil) != 1)
        let reader = Cipher(name, WideGCMTests.ours, encrypts: false, key: random(16))
        #expect(reader.begin(random(12)) && reader.update([1]) != nil && !reader.end(), "no tag")
        #expect(!reader.expect(random(12)), "a short tag")
        // A record needs the fixed part of its nonce, and space for the rest and the tag.
        for encrypts in [true, false] {
            let cipher = Cipher(name, WideGCMTests.ours, encrypts: encrypts, key: random(16))
            var bytes = random(40)
            #expect(cipher.begin(random(12)) && cipher.record(&bytes, header: header(40)) == nil)
            var fixed = random(4)
            #expect(
                EVP_CIPHER_CTX_ctrl(cipher.context, EVP_CTRL_AEAD_SET_IV_FIXED, 4, &fixed) == 1)
            var nonce = [UInt8](repeating: 0, count: 12)
            #expect(EVP_CIPHER_CTX_get_updated_iv(cipher.context, &nonce, 12) == 1)
            #expect(Array(nonce[..<4]) == fixed)
            var short = random(23)
            #expect(cipher.record(&short, header: header(24)) == nil)
        }
    }
}
