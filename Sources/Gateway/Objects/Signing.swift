import Buckets
import HTTPServer
import Identity

extension OperationHandler {
    /// Makes a link if the caller may do now what the link allows, and until its end. The link is bound to the version
    /// of the object that the decision has read.
    func sign(_ name: ObjectName, _ request: SignRequest) async throws(Problem) -> OperationResult {
        guard let keys = request.keys else {
            throw Problem(.notImplemented, "No keys that sign links are configured.")
        }
        let text = try await context.collect(limit: LinkRequest.maximumBytes)
        let wanted = try request.decode(text, request.maximumLifetime)
        if let size = wanted.size, size > bucket.maximumObjectSize {
            throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
        }
        authorizer.proposal.size = wanted.size
        authorizer.proposal.contentType = wanted.contentType
        authorizer.become(wanted.method.kind)
        let issued = context.now
        let expires = min(issued + wanted.lifetime, credentialExpires)
        guard issued < expires else {
            throw Problem(CredentialError(.expired, "a link would end with it"))
        }
        var link = SignedLink(
            wanted.method, bucket: bucket.name, name: name.value, issued: issued,
            expires: expires, size: wanted.size, contentType: wanted.contentType)
        try await decide(&link, name)
        return .link(link, keys)
    }

    /// The expiry of the caller's identity in seconds since 1970, which a link does not outlive; `Int64.max` for none.
    private var credentialExpires: Int64 {
        let certificate = (context.exchange.identity as? ClientIdentity)?.notAfter ?? .max
        return min(context.caller.principal?.expires ?? .max, certificate)
    }

    /// Authorizes a link, and binds it to the version that the decision has read.
    /// - Throws: ``Problem``: `unauthorized` if the rules deny the access now or may deny it before the link expires;
    ///   `not-implemented` if the bucket's store can't pin the change to the version that was read.
    private func decide(_ link: inout SignedLink, _ name: ObjectName) async throws(Problem) {
        var existing = CurrentObject.unknown
        authorizer.until = .max
        var missing = try await authorizer.evaluate(&existing, name)
        if missing == .time {
            link.isDeadline = true
            authorizer.until = link.expires
            missing = try await authorizer.evaluate(&existing, name)
        }
        switch missing {
        case .nothing: break
        case .time:
            throw Problem(
                .unauthorized,
                "The rules read request.time and may not allow this until the link expires; ask for a shorter expiresIn.",
                cause: "the decision is not known to be the same until the link expires")
        case .existing, .body:
            throw Problem(
                .unauthorized, "The rules read more than the link says: bind its size and type.",
                cause: "the decision depends on facts of a body that is not there yet")
        }
        link.pin = SignedLink.Pin(existing)
        switch link.method {
        case .get: break
        case .put: _ = try await bucket.pinned(Preconditions(), to: existing, \.atomicUploads)
        case .delete:
            _ = try await bucket.pinned(Preconditions(), to: existing, \.atomicDeletions)
        }
    }
}

extension SignedLink.Method {
    /// The access that the link's method needs.
    fileprivate var kind: RequestedAccess.Kind {
        switch self {
        case .get: .get
        case .put: .create
        case .delete: .delete
        }
    }
}
