import Buckets
import HTTPServer

/// What a request asks for, read from its head alone.
enum Action {
    case download(ObjectName)
    case metadata(ObjectName)
    case upload(ObjectName, UploadRequest)
    case patch(ObjectName)
    case delete(ObjectName)
    case list(ListRequest)
    /// A link to the object is wanted.
    case sign(ObjectName)

    /// - Throws: ``Problem``: a method that is not possible here, then a broken name, then a bad argument.
    init(_ head: RequestHead, _ route: Route, _ bucket: GatewayBucket) throws(Problem) {
        let isReading = head.method == "GET" || head.method == "HEAD"
        guard case .named(let path) = route.path else {
            guard isReading else { throw Problem.methodNotAllowed(route.methods) }
            self = .list(try ListRequest(bucket: bucket.name, folder: nil, route.query))
            return
        }
        // Whoever wants a link must not delete an object by the wrong method. A link with another parameter is none.
        if route.asksForLink, head.method != "POST", !route.isFolder,
            !SignedLink.isClaimed(route.query)
        {
            throw Problem.methodNotAllowed(route.methods)
        }
        let isMetadata = route.asksForMetadata
        switch head.method {
        case "GET", "HEAD":
            if isMetadata {
                self = .metadata(try bucket.objectName(path))
            } else if route.isFolder {
                self = .list(try ListRequest(bucket: bucket.name, folder: path, route.query))
            } else {
                self = .download(try bucket.objectName(path))
            }
        case "PATCH": self = .patch(try bucket.objectName(path))
        case "PUT" where !isMetadata:
            let name = try bucket.objectName(path)
            self = .upload(name, try UploadRequest(head, name, bucket))
        case "POST" where route.asksForLink: self = .sign(try bucket.objectName(path))
        case "DELETE" where !isMetadata: self = .delete(try bucket.objectName(path))
        default: throw Problem.methodNotAllowed(route.methods)
        }
    }

    /// The object that a link can be for; nil for a list.
    var name: ObjectName? {
        switch self {
        case .download(let name), .metadata(let name), .upload(let name, _), .patch(let name),
            .delete(let name), .sign(let name):
            name
        case .list: nil
        }
    }

    /// What a policy decides on.
    func operation(in bucket: GatewayBucket) -> Operation {
        switch self {
        case .download(let name), .metadata(let name), .sign(let name):
            Operation(.get, bucket: bucket.name, name: name.value)
        case .upload(let name, _): Operation(.create, bucket: bucket.name, name: name.value)
        case .patch(let name): Operation(.update, bucket: bucket.name, name: name.value)
        case .delete(let name): Operation(.delete, bucket: bucket.name, name: name.value)
        case .list(let request): Operation(.list, bucket: bucket.name, name: request.folder)
        }
    }
}

/// What the head of an upload says. Like a list's, it is large, and a class so that only uploads make room for it.
final class UploadRequest {
    let attributes: ObjectAttributes
    let digests: ExpectedDigests
    /// Bytes, where they are declared.
    let size: UInt64?

    /// - Throws: ``Problem``: `payload-too-large` where the declared size is, `invalid-argument` for a field that can't be.
    init(_ head: RequestHead, _ name: ObjectName, _ bucket: GatewayBucket) throws(Problem) {
        if head.fields.contains("content-range") {
            throw Problem(
                .invalidArgument, "An upload is of the whole object: Content-Range is not possible."
            )
        }
        size = head.hasBody ? head.contentLength : 0
        if let size, size > bucket.maximumObjectSize {
            throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
        }
        attributes = try ObjectAttributes(head.fields, name: name)
        digests = try ExpectedDigests(head.fields)
    }

    /// What the store is told when it begins.
    var plan: UploadPlan {
        var plan = UploadPlan(attributes, size: size, digests: Set(digests.others.keys))
        plan.md5 = digests.md5
        plan.crc32c = digests.crc32c
        return plan
    }

    /// What a policy can know before the body.
    var proposal: Proposal {
        var proposal = Proposal()
        proposal.attributes = attributes
        proposal.size = size
        proposal.md5 = digests.md5
        proposal.crc32c = digests.crc32c
        return proposal
    }
}

/// Which page of which list.
final class ListRequest {
    let query: ListQuery
    /// Where the last page ended; nil for the first.
    let after: String?
    /// The folder that is revealed: the prefix up to its last `/`, without it.
    let folder: String

    /// - Parameter folder: The encoded path of a folder with its slash, or nothing for the root; nil for a list that
    ///   the query alone describes.
    init(bucket: String, folder path: ArraySlice<UInt8>?, _ text: ArraySlice<UInt8>?)
        throws(Problem)
    {
        let query = try Query(text)
        var prefix = query.prefix ?? ""
        if let path, !path.isEmpty {
            if query.prefix != nil {
                throw Problem(.invalidArgument, "prefix is given by the path already.")
            }
            prefix = try ListRequest.decode(path)
        }
        let isDelimited = query.isDelimited ?? (path != nil)
        self.query = ListQuery(
            prefix: prefix, delimited: isDelimited, limit: query.maxResults ?? 1000)
        let slash = prefix.utf8.lastIndex(of: UInt8(ascii: "/"))
        folder = slash.map { String(prefix[..<$0]) } ?? ""
        if let token = query.pageToken {
            guard
                let after = PageToken.decode(
                    token, bucket: bucket, prefix: prefix, isDelimited: isDelimited)
            else {
                throw Problem(
                    .invalidArgument,
                    "pageToken is damaged, or of another bucket, prefix or delimiter.")
            }
            self.after = after
        } else {
            after = nil
        }
    }

    private static func decode(_ path: ArraySlice<UInt8>) throws(Problem) -> String {
        do throws(NameError) {
            let bytes = try ObjectName.decode(path)
            if bytes.count > ObjectName.maximumBytes {
                throw NameError(.tooLong, at: ObjectName.maximumBytes)
            }
            for (offset, byte) in bytes.enumerated() {
                if byte == 0 { throw NameError(.nul, at: offset) }
                if byte == 0x0a || byte == 0x0d { throw NameError(.lineBreak, at: offset) }
            }
            return try ObjectName.text(bytes)
        } catch {
            throw Problem(error)
        }
    }
}
