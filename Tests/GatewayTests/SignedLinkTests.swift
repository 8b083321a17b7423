import Buckets
import OpenSSL
import TestSupport
import Testing
import Wire

@testable import Gateway

/// Links as texts: what is signed, and that nothing else holds.
@Suite struct SignedLinkTests {
    private static let now: Int64 = 1_767_225_600
    private let keys = try! LinkKeys(
        text: "new \(Base64.encodeForURL([UInt8](repeating: 1, count: 32)))\n"
            + "old \(Base64.encodeForURL([UInt8](repeating: 2, count: 32)))\n")

    private func verified(
        _ target: String, method: String = "GET", bucket: String = "photos", name: String = "a",
        now: Int64 = now, keys: LinkKeys? = nil, maximumLifetime: Int64 = 7 * 86_400
    ) throws -> (link: SignedLink, key: String) {
        let query = target.split(separator: "?", maxSplits: 1)[1]
        return try SignedLink.verified(
            method: method, bucket: bucket, name: name,
            query: QueryParameters(bytes(String(query))),
            keys ?? self.keys, maximumLifetime: maximumLifetime, now: now)
    }

    private func code(_ body: () throws -> (link: SignedLink, key: String)) -> Problem.Code? {
        do {
            _ = try body()
            return nil
        } catch {
            return (error as? Problem)?.code
        }
    }

    /// Computed by hand: anybody who has a key can make links.
    @Test func theSignatureMatchesTheDocumentation() throws {
        let link = SignedLink(
            .put, bucket: "photos", name: "ü/1", issued: 5, expires: 7, size: 12, contentType: "a/b"
        )
        let message =
            "13:sluice link 2" + "3:PUT" + "6:photos" + "4:ü/1" + "1:5" + "1:7" + "2:12" + "3:a/b"
            + "0:" + "5:false"
        let expected = HMAC.sha256(
            key: [UInt8](repeating: 1, count: 32), Array(message.utf8).span.bytes)
        #expect(
            link.target(keys)
                == "/b/photos/o/%C3%BC/1?link-method=PUT&link-issued=5&link-expires=7&link-size=12&link-type=a%2Fb&link-key=new&link-signature="
                + Base64.encodeForURL(expected))
    }

    @Test func aLinkRoundTrips() throws {
        for link in [
            link(.get), link(.put, size: 0, contentType: "text/plain; charset=\"utf 8\"&+%"),
            link(.delete, size: .max), link(.put, pin: .absent),
            link(.get, pin: .version(.max, 1)), link(.put, pin: .version(7, 3), isDeadline: true),
        ] {
            let found = try verified(link.target(keys), method: link.method.rawValue)
            #expect(found.link == link && found.key == "new")
        }
    }

    /// A link for the object `a`.
    private func link(
        _ method: SignedLink.Method, issued: Int64 = now, expires: Int64 = now + 1,
        size: UInt64? = nil, contentType: String? = nil, pin: SignedLink.Pin? = nil,
        isDeadline: Bool = false
    ) -> SignedLink {
        var link = SignedLink(
            method, bucket: "photos", name: "a", issued: issued, expires: expires, size: size,
            contentType: contentType)
        link.pin = pin
        link.isDeadline = isDeadline
        return link
    }

    /// Whoever has signed it, and whenever: the limit is that of the gateway that is asked.
    @Test func noLinkIsValidForLongerThanTheMaximum() {
        func found(_ issued: Int64, _ expires: Int64, maximum: Int64 = 3600) -> Problem.Code? {
            let target = link(.get, issued: issued, expires: expires).target(keys)
            return code { try verified(target, maximumLifetime: maximum) }
        }
        let now = Self.now
        #expect(found(now, now + 3600) == nil)
        #expect(found(now, now + 3601) == .invalidLink)
        #expect(found(now - 3599, now + 1) == nil)
        #expect(found(now - 3600, now + 1) == .invalidLink)
        #expect(found(now - 3600, now) == .linkExpired)
        #expect(found(now, now + 3600, maximum: 3599) == .invalidLink)
        // It can't be dated ahead either; clocks may differ by a minute.
        #expect(found(now + 60, now + 3660) == nil)
        #expect(found(now + 61, now + 3600) == .invalidLink)
        for (issued, expires) in [(Int64.min, .max), (-1, .max), (.max, .max), (.min, now + 1)] {
            #expect(found(issued, expires, maximum: .max) == .invalidLink)
        }
    }

    /// Links of the form that had no `link-issued` were signed for another message.
    @Test func linksOfTheFirstFormAreRejected() {
        let message = "13:sluice link 1" + "3:GET" + "6:photos" + "1:a" + "10:\(Self.now + 1)0:0:"
        let signature = HMAC.sha256(
            key: [UInt8](repeating: 1, count: 32), Array(message.utf8).span.bytes)
        let query =
            "/b/photos/o/a?link-method=GET&link-expires=\(Self.now + 1)&link-key=new&link-signature="
            + Base64.encodeForURL(signature)
        #expect(code { try verified(query) } == .invalidLink)
        #expect(code { try verified(query + "&link-issued=\(Self.now)") } == .invalidLink)
    }

    @Test(arguments: [
        "link-object=", "link-object=None", "link-object=1", "link-object=1.2.3", "link-object=1.",
        "link-object=.1", "link-object=01.1", "link-object=1.+1", "link-object=a.b",
        "link-object=1.2", "link-object=none", "link-deadline=", "link-deadline=false",
        "link-deadline=true", "link-deadline=1",
    ])
    func additionalParametersAreRejected(_ parameter: String) {
        let target = link(.get).target(keys) + "&" + parameter
        #expect(code { try verified(target) } == .invalidLink)
    }

    @Test func aPinnedLinkIsForOneVersion() {
        let object = ObjectMetadata(
            name: "a", generation: 7, metageneration: 3, size: 1, created: 0, updated: 0, md5: nil,
            crc32c: nil, etag: "e", attributes: ObjectAttributes())
        func isAllowed(_ pin: SignedLink.Pin?, _ existing: CurrentObject) -> Bool? {
            switch link(.put, pin: pin).decide(existing, now: Self.now) {
            case .allow: true
            case .deny: false
            default: nil
            }
        }
        for existing in [CurrentObject.unknown, .absent, .object(object)] {
            #expect(isAllowed(nil, existing) == true)
        }
        for pin in [SignedLink.Pin.absent, .version(7, 3)] {
            #expect(isAllowed(pin, .unknown) == nil)
        }
        #expect(isAllowed(.absent, .absent) == true)
        #expect(isAllowed(.absent, .object(object)) == false)
        #expect(isAllowed(.version(7, 3), .object(object)) == true)
        for pin in [SignedLink.Pin.version(7, 2), .version(8, 3)] {
            #expect(isAllowed(pin, .object(object)) == false)
            #expect(isAllowed(pin, .absent) == false)
        }
        let deadline = link(.put, isDeadline: true)
        #expect(deadline.decide(.unknown, now: Self.now) == .allow)
        #expect(deadline.decide(.unknown, now: Self.now + 1) != .allow)
        #expect(link(.put).decide(.unknown, now: Self.now + 1) == .allow)
    }

    @Test func itExpiresAtItsTime() {
        let target = link(.get, issued: Self.now - 9, expires: Self.now).target(keys)
        #expect(code { try verified(target, now: Self.now - 1) } == nil)
        #expect(code { try verified(target, now: Self.now) } == .linkExpired)
        #expect(code { try verified(target, name: "b", now: Self.now) } == .invalidLink)
        #expect(code { try verified(target, method: "HEAD", now: Self.now - 1) } == nil)
        for method in ["PUT", "get", "", "OPTIONS"] {
            #expect(
                code { try verified(target, method: method, now: Self.now - 1) } == .invalidLink)
        }
    }

    /// Parts that would be the same text side by side are not the same link.
    @Test func partsAreSeparated() {
        let target = SignedLink(
            .put, bucket: "photos", name: "a1", issued: Self.now, expires: Self.now + 23, size: 4
        ).target(keys)
        #expect(code { try verified(target, method: "PUT", name: "a1") } == nil)
        #expect(
            code { try verified(target, method: "PUT", bucket: "photosa", name: "1") }
                == .invalidLink)
        #expect(code { try verified(target, method: "PUT", name: "a") } == .invalidLink)
    }

    /// Any byte of a query changed is another link, or none: only other ways to write the same bytes hold.
    @Test func noByteCanBeChanged() throws {
        let target = link(
            .put, size: 12, contentType: "a/b", pin: .version(12, 3), isDeadline: true
        ).target(keys)
        let start = target.utf8.count - target.split(separator: "?")[1].utf8.count
        var generator = SeededGenerator(5)
        var refused = 0
        for place in start..<target.utf8.count {
            for _ in 0..<20 {
                var changed = Array(target.utf8)
                changed[place] = UInt8.random(in: 0x21...0x7e, using: &generator)
                let text = String(decoding: changed, as: UTF8.self)
                let found = try? verified(text, method: "PUT")
                if let found {
                    #expect(found.link.size == 12 && found.link.contentType == "a/b", "\(text)")
                    #expect(found.link.expires == Self.now + 1, "\(text)")
                    #expect(found.link.pin == .version(12, 3), "\(text)")
                    #expect(found.link.issued == Self.now && found.link.isDeadline, "\(text)")
                } else {
                    refused += 1
                }
            }
        }
        #expect(refused > 2000)
    }

    @Test func anyQueryIsRejectedOrValid() {
        var generator = SeededGenerator(6)
        let seeds = [
            link(.get).target(keys), link(.get, pin: .version(1, 1), isDeadline: true).target(keys),
            "/?link-signature=&link-key=new&link-expires=-9223372036854775808&link-method=GET",
            "/?link-size=18446744073709551616&link-type=%&link-type=&&=&link-object=9.9&link-issued=",
        ]
        for _ in 0..<20_000 {
            var query = generator.mutation(of: seeds)[...]
            if let mark = query.firstIndex(of: UInt8(ascii: "?")) { query = query[(mark + 1)...] }
            let found = try? SignedLink.verified(
                method: "GET", bucket: "photos", name: "a", query: QueryParameters(query), keys,
                maximumLifetime: 3600, now: Self.now)
            if let found { #expect(found.link.expires == Self.now + 1) }
        }
    }

    @Test func olderKeysVerifyAndRemovedOnesDoNot() throws {
        let old = try LinkKeys(text: "old \(Base64.encodeForURL([UInt8](repeating: 2, count: 32)))")
        let link = self.link(.get)
        #expect(try verified(link.target(old)).key == "old")
        #expect(code { try verified(link.target(keys), keys: old) } == .invalidLink)
    }

    @Test(arguments: [
        ("", "expected 1 to 100 keys, found 0"),
        ("# nothing\n \t\n", "expected 1 to 100 keys, found 0"),
        ("a", "line 1: expected an id and a key"), ("a b c", "line 1: expected an id and a key"),
        ("a AAAA", "line 1: expected base64url of at least 32 bytes"),
        (
            "\n\na/b AAAA",
            "line 3: 'a/b' can't be a name here: it has 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.'"
        ),
    ])
    func invalidKeyFiles(_ text: String, _ expected: String) {
        #expect(throws: LinkKeys.Malformed(description: expected)) { try LinkKeys(text: text) }
    }

    @Test func generatedKeysAreDifferentAndValid() throws {
        let (first, second) = (try LinkKeys.generate(id: "k"), try LinkKeys.generate(id: "k"))
        #expect(first != second)
        #expect(try LinkKeys(text: first + " # newest\r\n").newest.secret.count == 32)
        #expect(throws: LinkKeys.Malformed(description: "line 2: a second key 'k'")) {
            try LinkKeys(text: first + "\n" + second)
        }
        #expect(throws: LinkKeys.Malformed.self) { try LinkKeys.generate(id: "a b") }
    }

    @Test func aLinkIsForAnObjectAlone() throws {
        let link = try SignedLink(.get, path: "/b/photos/o/a%20b/%C3%BC", issued: 0, expires: 1)
        #expect(link.bucket == "photos" && link.name == "a b/ü")
        for path in [
            "/b/photos/o", "/b/photos/o/", "/b/photos/o/a?x", "/a", "", "/b/photos/o/%0a",
            "/b/photos/o/%",
        ] {
            #expect(throws: LinkKeys.Malformed.self, "\(path)") {
                try SignedLink(.get, path: path, issued: 0, expires: 1)
            }
        }
        #expect(throws: LinkKeys.Malformed(description: "the type is empty")) {
            try SignedLink(.put, path: "/b/photos/o/a", issued: 0, expires: 1, contentType: "")
        }
    }
}

/// The body of `POST …?sign`.
@Suite struct LinkRequestTests {
    private func request(_ text: String) throws(Problem) -> LinkRequest {
        try LinkRequest(json: Array(text.utf8), maximumLifetime: 3600)
    }

    @Test func nothingAsksForADownload() throws {
        for text in ["", "{}"] {
            let request = try request(text)
            #expect(request.method == .get && request.lifetime == 900)
            #expect(request.size == nil && request.contentType == nil)
        }
        let put = try request(
            #"{"method": "PUT", "expiresIn": 3600, "size": 0, "contentType": "a/b"}"#)
        #expect(
            put.method == .put && put.lifetime == 3600 && put.size == 0 && put.contentType == "a/b")
    }

    @Test(arguments: [
        "[]", "{", #"{"method": "get"}"#, #"{"expiresIn": 3601}"#, #"{"expiresIn": 0}"#,
        #"{"expiresIn": 1e2}"#,
        #"{"method": "PUT", "size": 18446744073709551616}"#, #"{"size": 1}"#,
        #"{"method": "PUT", "contentType": ""}"#,
        #"{"method": "PUT", "contentType": "a\nb"}"#, #"{"path": "/b/c/o/d"}"#,
        #"{"method": "PUT", "method": "GET"}"#,
    ])
    func whatCantBeAskedFor(_ text: String) {
        #expect(throws: Problem.self) { try request(text) }
    }
}
