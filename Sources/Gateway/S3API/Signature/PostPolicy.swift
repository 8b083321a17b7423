import Wire

/// The policy of an upload by a form: until when it is valid, and what each field may be.
struct PostPolicy {
    /// A condition on a field; its name is in lower case.
    enum Condition: Equatable {
        case equal(name: String, value: String)
        case startsWith(name: String, prefix: String)
    }

    /// In milliseconds since 1970.
    let expiration: Int64
    private(set) var conditions: [Condition] = []
    /// The sizes that the file may have, in bytes.
    private(set) var sizes: ClosedRange<UInt64> = 0 ... .max

    /// The maximum number of values in a policy's JSON.
    private static let maximumValues = 4096

    static func invalid(_ what: String) -> Problem {
        .s3(
            .invalidArgument, 400, "InvalidPolicyDocument",
            "The content of the form does not meet the conditions specified in the policy document.",
            cause: "policy: \(what)")
    }

    private static func denied(_ what: String) -> Problem {
        .s3(.unauthorized, 403, "AccessDenied", "Invalid according to Policy: \(what)")
    }

    /// Parses the JSON of a policy.
    /// - Throws: ``Problem``: `InvalidPolicyDocument`.
    init(json: [UInt8]) throws(Problem) {
        guard let value = try? JSONReader.parse(json, maximumValues: PostPolicy.maximumValues) else {
            throw PostPolicy.invalid("it is not JSON")
        }
        guard let text = value["expiration"]?.text, let expiration = HTTPDate.parse(rfc3339: text) else {
            throw PostPolicy.invalid("its expiration is missing or malformed")
        }
        self.expiration = expiration
        guard let list = value["conditions"]?.elements else {
            throw PostPolicy.invalid("its conditions are missing")
        }
        for condition in list { try take(condition) }
    }

    private mutating func take(_ condition: JSONValue) throws(Problem) {
        if case .object(let members) = condition {
            guard members.count == 1 else { throw PostPolicy.invalid("an object has not exactly one condition") }
            for member in members {
                guard let value = member.value.text else { throw PostPolicy.invalid("a value is not a text") }
                conditions.append(.equal(name: member.key.asciiLowercased(), value: value))
            }
            return
        }
        guard let parts = condition.elements, parts.count == 3, let kind = parts[0].text?.asciiLowercased() else {
            throw PostPolicy.invalid("a condition is neither an object nor a list of three")
        }
        if kind == "content-length-range" {
            guard let least = parts[1].integer, let most = parts[2].integer, 0 <= least, least <= most else {
                throw PostPolicy.invalid("content-length-range is malformed")
            }
            let (lower, upper) = (max(sizes.lowerBound, UInt64(least)), min(sizes.upperBound, UInt64(most)))
            guard lower <= upper else { throw PostPolicy.invalid("no size has all content-length-ranges") }
            sizes = lower...upper
            return
        }
        guard let name = parts[1].text, name.utf8.first == UInt8(ascii: "$"), let value = parts[2].text else {
            throw PostPolicy.invalid("a condition has no $name or no text")
        }
        let field = String(name.dropFirst()).asciiLowercased()
        switch kind {
        case "eq": conditions.append(.equal(name: field, value: value))
        case "starts-with": conditions.append(.startsWith(name: field, prefix: value))
        default: throw PostPolicy.invalid("a condition is unknown")
        }
    }

    /// Whether a field needs no condition.
    private static func isFree(_ name: String) -> Bool {
        name == "policy" || name == "x-amz-signature" || name == "file" || name.hasPrefix("x-ignore-")
    }

    /// Checks the expiration, that each field has a condition, and all conditions.
    /// - Parameters:
    ///   - bucket: The bucket of the request, which is compared as the field `bucket` is.
    ///   - now: Seconds since 1970.
    /// - Throws: ``Problem``: `AccessDenied`.
    func check(_ form: PostForm, bucket: String, now: Int64) throws(Problem) {
        guard now * 1000 < expiration else { throw PostPolicy.denied("Policy expired.") }
        for condition in conditions {
            let (name, isMet): (String, Bool) =
                switch condition {
                case .equal(let name, let value): (name, self.value(name, form, bucket) == value)
                case .startsWith(let name, let prefix):
                    (name, self.value(name, form, bucket).map { begins($0, with: prefix, name) } ?? prefix.isEmpty)
                }
            guard isMet else { throw PostPolicy.denied("Policy Condition failed: \(text(condition, name))") }
        }
        for field in form.fields where !PostPolicy.isFree(field.name) {
            guard isCovered(field.name) else { throw PostPolicy.denied("Extra input fields: \(field.name)") }
        }
        if let named = form["bucket"], named != bucket {
            throw PostPolicy.denied("Policy Condition failed: the field bucket is another bucket")
        }
    }

    /// A list of content types begins with a prefix if each of them does.
    private func begins(_ value: String, with prefix: String, _ name: String) -> Bool {
        guard name == "content-type" else { return value.hasPrefix(prefix) }
        return value.split(separator: ",", omittingEmptySubsequences: false).allSatisfy {
            String(decoding: ASCII.trimmed(Array($0.utf8)[...]), as: UTF8.self).hasPrefix(prefix)
        }
    }

    /// The value that a condition is about: of the key, with the file's name in it.
    private func value(_ name: String, _ form: PostForm, _ bucket: String) -> String? {
        switch name {
        case "bucket": bucket
        case "key": form.key
        default: form[name]
        }
    }

    private func isCovered(_ field: String) -> Bool {
        conditions.contains { condition in
            switch condition {
            case .equal(let name, _), .startsWith(let name, _): name == field
            }
        }
    }

    private func text(_ condition: Condition, _ name: String) -> String {
        switch condition {
        case .equal(_, let value): "[\"eq\", \"$\(name)\", \"\(value)\"]"
        case .startsWith(_, let prefix): "[\"starts-with\", \"$\(name)\", \"\(prefix)\"]"
        }
    }
}

/// The result of the authentication of a form.
struct PostAuthentication {
    /// Never ``S3Authentication/Signer/bearer``.
    var signer = S3Authentication.Signer.anonymous
    /// nil without a signature.
    var accessKeyID: String?
    /// nil without a signature.
    var policy: PostPolicy?
    /// The sizes that the file may have, in bytes.
    var sizes: ClosedRange<UInt64> = 0 ... .max
}

extension S3Verifier {
    /// The fields of a form that make it signed.
    private static let signedFields = [
        "policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature",
    ]

    /// Authenticates a form by its policy, and checks the policy. A form without a policy is anonymous.
    /// - Parameters:
    ///   - bucket: The bucket of the request.
    ///   - now: Seconds since 1970.
    /// - Throws: ``Problem`` with the dialect's error.
    func verify(_ form: PostForm, bucket: String, now: Int64) throws(Problem) -> PostAuthentication {
        if form["awsaccesskeyid"] != nil || form["signature"] != nil {
            throw .unsupportedSignature(cause: "Signature Version 2 in a form")
        }
        guard S3Verifier.signedFields.contains(where: { form[$0] != nil }) || form["x-amz-security-token"] != nil else {
            return PostAuthentication()
        }
        func field(_ name: String) throws(Problem) -> String {
            if let value = form[name] { return value }
            throw S3Error.invalidArgument(
                "Bucket POST must contain a field named '\(name)'.  "
                    + "If it is specified, please check the order of the fields.", name)
        }
        let text = Array(try field("policy").utf8)
        let algorithm = try field("x-amz-algorithm")
        guard algorithm == "AWS4-HMAC-SHA256" else {
            if algorithm.hasPrefix("AWS4-ECDSA-") {
                throw .unsupportedSignature(cause: "Signature Version 4A in a form")
            }
            throw S3Error.invalidArgument("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\"", "x-amz-algorithm")
        }
        guard let credential = S3Credential(Array(try field("x-amz-credential").utf8)) else {
            throw S3Error.invalidArgument("The Credential is mal-formed.", "x-amz-credential")
        }
        if let fault = fault(credential, .s3) {
            throw S3Error.invalidArgument("The Credential is mal-formed; \(fault.text)", "x-amz-credential")
        }
        let stamp = Array(try field("x-amz-date").utf8)
        guard S3Time.parse(stamp.span) != nil, stamp[..<8].elementsEqual(credential.day) else {
            throw S3Error.invalidArgument("X-Amz-Date must be the date of the Credential.", "x-amz-date")
        }
        let signature = Array(try field("x-amz-signature").utf8)
        let token = form["x-amz-security-token"].map { Array($0.utf8) }
        let resolved = try resolve(credential, token: token, now: now)
        guard isSigned(text, signature, resolved) else {
            let members: [(name: StaticString, value: String)] = [
                ("AWSAccessKeyId", credential.shownID),
                ("StringToSign", String(decoding: text.prefix(CanonicalS3Request.maximumShown), as: UTF8.self)),
                ("SignatureProvided", String(decoding: signature.prefix(128), as: UTF8.self)),
            ]
            throw .signatureMismatch(
                cause: "the signature of a form with the key \(credential.shownID) is another", members)
        }
        keep(resolved, credential)
        guard let json = Base64.decode(text[...]) else { throw PostPolicy.invalid("it is not base64") }
        let policy = try PostPolicy(json: json)
        try policy.check(form, bucket: bucket, now: now)
        return PostAuthentication(
            signer: resolved.key.signer, accessKeyID: credential.shownID, policy: policy, sizes: policy.sizes)
    }
}
