import Identity
import Testing
import Wire

import struct Gateway.Caller

@testable import Gateway

/// Uploads by forms: the fields, the policy and the signature.
@Suite struct PostPolicyTests {
    private let signer = RequestSigner()
    private let credential = "\(Example.id)/20130524/us-east-1/s3/aws4_request"

    /// A form that is signed, with a policy that covers its fields.
    private func form(
        _ conditions: String = #"{"bucket":"b"},["starts-with","$key","user/"]"#,
        expiration: String = "2013-05-24T01:00:00.000Z", fields: [(String, String)] = [("key", "user/a")],
        signer: RequestSigner? = nil, policy: String? = nil
    ) -> PostForm {
        let signer = signer ?? self.signer
        let rest =
            #"["starts-with","$x-amz-credential",""],["eq","$X-Amz-Algorithm","AWS4-HMAC-SHA256"],{"x-amz-date":"20130524T000000Z"}"#
        let json = policy ?? #"{"expiration":"\#(expiration)","conditions":[\#(conditions),\#(rest)]}"#
        let text = Base64.encode(Array(json.utf8))
        var form = PostForm()
        for (name, value) in fields + [
            ("policy", text), ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
            ("x-amz-credential", "\(signer.id)/\(signer.scope)"), ("x-amz-date", signer.stamp),
            ("x-amz-signature", signer.signature(of: text)),
        ] { form.fields.append(PostForm.Field(name: name, value: value)) }
        return form
    }

    private func code(_ form: PostForm, bucket: String = "b", now: Int64 = Example.time) throws -> String? {
        let verifier = try Example.verifier()
        return Refusal.of { try verifier.verify(form, bucket: bucket, now: now) }.map { "\($0.status) \($0.code)" }
    }

    private func changing(_ form: PostForm, _ name: String, _ value: String?) -> PostForm {
        var form = form
        form.fields = form.fields.compactMap { field in
            field.name != name ? field : value.map { PostForm.Field(name: name, value: $0) }
        }
        return form
    }

    /// Each type in a list of content types must begin with the prefix.
    @Test(arguments: [
        ("image/png", true), ("image/png, image/gif", true), ("image/png,text/html", false), ("image/png,", false),
        ("text/html", false),
    ])
    func listsOfContentTypes(_ value: String, _ isAllowed: Bool) throws {
        let conditions = #"{"bucket":"b"},["starts-with","$key",""],["starts-with","$Content-Type","image/"]"#
        let form = form(conditions, fields: [("key", "user/a"), ("content-type", value)])
        #expect(try code(form) == (isAllowed ? nil : "403 AccessDenied"))
    }

    @Test func aSignedForm() throws {
        let found = try Example.verifier().verify(form(), bucket: "b", now: Example.time)
        guard case .accessKey(let principal) = found.signer else {
            Issue.record("another signer")
            return
        }
        #expect(principal.uid == "alice" && found.accessKeyID == Example.id && found.sizes == 0 ... .max)
        let ranged = try Example.verifier().verify(
            form(
                #"{"bucket":"b"},["eq","$key","user/a"],["content-length-range",1,"10"],["content-length-range",0,9]"#),
            bucket: "b", now: Example.time)
        #expect(ranged.sizes == 1...9)
    }

    @Test func anonymousForms() throws {
        var form = PostForm()
        form.fields = [PostForm.Field(name: "key", value: "a")]
        let found = try Example.verifier().verify(form, bucket: "b", now: Example.time)
        guard case .anonymous = found.signer else {
            Issue.record("another signer")
            return
        }
        #expect(found.policy == nil && found.accessKeyID == nil)
        form.fields.append(PostForm.Field(name: "awsaccesskeyid", value: "x"))
        #expect(try code(form) == "400 InvalidRequest")
    }

    @Test func everyFieldIsRequired() throws {
        for name in ["policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"] {
            #expect(try code(changing(form(), name, nil)) == "400 InvalidArgument")
            let wrong = try code(changing(form(), name, "x"))
            let isOther = name == "policy" || name == "x-amz-signature"
            #expect(wrong == (isOther ? "403 SignatureDoesNotMatch" : "400 InvalidArgument"))
        }
        #expect(try code(changing(form(), "x-amz-date", "20130525T000000Z")) == "400 InvalidArgument")
        var other = signer
        other.id = "OTHER"
        #expect(try code(form(signer: other)) == "403 InvalidAccessKeyId")
        other = signer
        other.secret = "another-secret-of-the-key"
        #expect(try code(form(signer: other)) == "403 SignatureDoesNotMatch")
    }

    @Test(arguments: [
        "", "{}", "[]", "x", #"{"expiration":"2013-05-24T01:00:00Z"}"#, #"{"expiration":"tomorrow","conditions":[]}"#,
        #"{"expiration":"2013-05-24T01:00:00Z","conditions":[["eq","key","a"]]}"#,
        #"{"expiration":"2013-05-24T01:00:00Z","conditions":[["ends-with","$key","a"]]}"#,
        #"{"expiration":"2013-05-24T01:00:00Z","conditions":[["content-length-range",2,1]]}"#,
        #"{"expiration":"2013-05-24T01:00:00Z","conditions":[["content-length-range",-1,1]]}"#,
        #"{"expiration":"2013-05-24T01:00:00Z","conditions":[{"key":1}]}"#,
        #"{"expiration":"2013-05-24T01:00:00Z","conditions":[["content-length-range",0,1],["content-length-range",2,3]]}"#,
    ])
    func invalidPolicies(json: String) throws {
        #expect(try code(form(policy: json)) == "400 InvalidPolicyDocument")
    }

    @Test func conditions() throws {
        #expect(try code(form()) == nil)
        #expect(try code(form(), now: Example.time + 3600) == "403 AccessDenied")
        #expect(try code(form(), bucket: "c") == "403 AccessDenied")
        #expect(try code(form(fields: [("key", "other/a")])) == "403 AccessDenied")
        #expect(try code(form(fields: [("key", "USER/a")])) == "403 AccessDenied")
        #expect(try code(form(fields: [])) == "403 AccessDenied")
        // Each field is covered, whatever the case of its name in the policy.
        #expect(try code(form(fields: [("key", "user/a"), ("acl", "private")])) == "403 AccessDenied")
        #expect(try code(form(fields: [("key", "user/a"), ("x-ignore-a", "x")])) == nil)
        let acl = #"{"bucket":"b"},["starts-with","$key","user/"],{"ACL":"private"}"#
        #expect(try code(form(acl, fields: [("key", "user/a"), ("acl", "private")])) == nil)
        #expect(try code(form(acl, fields: [("key", "user/a"), ("acl", "Private")])) == "403 AccessDenied")
        #expect(try code(form(acl)) == "403 AccessDenied")
        let two = #"{"bucket":"b","key":"user/a"},["starts-with","$key","x"]"#
        #expect(try code(form(two)) == "400 InvalidPolicyDocument")
        let verifier = try Example.verifier()
        let expired = Refusal.of { try verifier.verify(form(), bucket: "b", now: Example.time + 3600) }
        #expect(expired?.detail == "Invalid according to Policy: Policy expired.")
        let named = #"{"bucket":"b"},["starts-with","$key",""],["eq","$bucket","b"]"#
        #expect(try code(form(named, fields: [("key", "a"), ("bucket", "b")])) == nil)
        #expect(try code(form(named, fields: [("key", "a"), ("bucket", "c")])) == "403 AccessDenied")
    }

    @Test func sessions() throws {
        var caller = Caller(peer: "127.0.0.1:1", isSecure: true)
        caller.identify(Principal(kind: .token, uid: "bob", source: "i", group: "g", expires: .max))
        let keys = S3SessionKeys.random()
        let credentials = try keys.issue(
            try #require(SavedCaller(caller)), now: Example.time, expires: Example.time + 9)
        let other = RequestSigner(id: credentials.accessKeyID, secret: credentials.secretAccessKey)
        let conditions = #"{"bucket":"b"},["starts-with","$key",""],["starts-with","$x-amz-security-token",""]"#
        let fields = [("key", "a"), ("x-amz-security-token", credentials.sessionToken)]
        let verifier = try Example.verifier(sessionKeys: keys)
        let form = form(conditions, fields: fields, signer: other)
        let found = try verifier.verify(form, bucket: "b", now: Example.time)
        guard case .session(let saved) = found.signer else {
            Issue.record("another signer")
            return
        }
        #expect(saved.principal.uid == "bob")
        #expect(Refusal.of { try verifier.verify(form, bucket: "b", now: Example.time + 9) }?.code == "ExpiredToken")
        let without = changing(form, "x-amz-security-token", nil)
        #expect(
            Refusal.of { try verifier.verify(without, bucket: "b", now: Example.time) }?.code == "InvalidAccessKeyId")
    }

    // MARK: Forms

    private struct Parsed: Equatable {
        var form: PostForm?
        var content = ""
        var code: String?
    }

    private func parse(_ body: String, chunk: Int = .max, room: Int = .max) throws -> Parsed {
        let boundary = try #require(MultipartBoundary("multipart/form-data; boundary=B", type: "multipart/form-data"))
        var parser = PostFormParser(boundary)
        var content: [UInt8] = []
        let bytes = Array(body.utf8)
        let code = Refusal.of {
            var offset = 0
            while offset < bytes.count {
                let end = bytes.count - offset > chunk ? offset + chunk : bytes.count
                offset += try parser.write(Array(bytes[offset..<end]).span.bytes) { part in
                    let taken = min(room, part.byteCount)
                    part.extracting(0..<taken).withUnsafeBytes { content += $0 }
                    return taken
                }
            }
            try parser.end()
        }?.code
        return Parsed(
            form: parser.isAtContent ? parser.form : nil, content: String(decoding: content, as: UTF8.self), code: code)
    }

    private func field(_ name: String, _ value: String) -> String {
        "--B\r\nContent-Disposition: form-data; name=\"\(name)\"\r\n\r\n\(value)\r\n"
    }

    private let file =
        "--B\r\ncontent-disposition: form-data; name=file; filename=\"C:/d/ü \\\"1\\\".txt\"\r\nContent-Type: text/plain\r\n\r\n"

    @Test(arguments: ["", "x", "\r\n", "\r\n--", "\r\n--A\r\n", "--B--", "\r\r\n-", "\r\n--b\r\n"])
    func readsForms(content: String) throws {
        var wanted = PostForm()
        wanted.fields = [
            PostForm.Field(name: "key", value: "u/${filename}"), PostForm.Field(name: "x-amz-meta-a", value: content),
        ]
        wanted.fileName = "ü \"1\".txt"
        wanted.fileType = "text/plain"
        #expect(wanted.key == "u/ü \"1\".txt")
        for end in ["\r\n--B--", "\r\n--B--\r\nmore", "\r\n--B\r\n" + field("key", "other")] {
            let body = field("Key", "u/${filename}") + field("X-Amz-Meta-A", content) + file + content + end
            for (chunk, room) in [(Int.max, Int.max), (1, .max), (1, 1), (3, 2), (7, .max)] {
                #expect(try parse(body, chunk: chunk, room: room) == Parsed(form: wanted, content: content))
            }
        }
    }

    @Test func wrongForms() throws {
        let key = field("key", "a")
        for (body, code) in [
            ("x", "MalformedPOSTRequest"), ("--C", "MalformedPOSTRequest"), ("--Bx\r\n", "MalformedPOSTRequest"),
            ("--B--", "InvalidArgument"), (key + "--B--", "InvalidArgument"), (key + key + file, "InvalidArgument"),
            (key + field("KEY", "b") + file, "InvalidArgument"), ("--B\r\n\r\nx", "MalformedPOSTRequest"),
            ("--B\r\nContent-Disposition: attachment\r\n", "MalformedPOSTRequest"),
            ("--B\r\nContent-Disposition: form-data; name=\"\"\r\n\r\n", "MalformedPOSTRequest"),
            ("--B\r\nContent-Disposition: form-data; name=a; name=b\r\n", "MalformedPOSTRequest"),
            ("--B\r\nContent-Disposition: form-data; name=\"a\r\n", "MalformedPOSTRequest"),
            ("--B\r\nA\r\n", "MalformedPOSTRequest"), ("--B\r\nA: b\n", "MalformedPOSTRequest"),
            (field("a", String(repeating: "x", count: 20_480)), "MaxPostPreDataLengthExceeded"),
            (field("a", String(repeating: "x", count: 20_400)) + file, "MaxPostPreDataLengthExceeded"),
            ("--B\r\nA: " + String(repeating: "x", count: 21_000), "MaxPostPreDataLengthExceeded"),
            (key + file + "content", "IncompleteBody"), (key + file + "content\r\n--", "IncompleteBody"),
            (key, "IncompleteBody"),
            ("", "IncompleteBody"),
        ] {
            for chunk in [Int.max, 1, 100] { #expect(try parse(body, chunk: chunk).code == code, "\(body.prefix(60))") }
        }
        #expect(try parse(field("a", String(repeating: "x", count: 20_000)) + file + "\r\n--B--").code == nil)
    }
}
