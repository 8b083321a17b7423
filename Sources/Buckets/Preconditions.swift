/// The conditions of a request: those of RFC 9110, section 13, and conditions on generations.
public struct Preconditions: Sendable, Equatable {
    /// The entity tags of a condition, without quotes, or `*`.
    public enum Tags: Sendable, Equatable {
        /// `*`: any existing object matches.
        case any
        /// Any of these tags matches.
        case tags([String])

        func matches(_ etag: String) -> Bool {
            switch self {
            case .any: true
            case .tags(let tags): tags.contains(etag)
            }
        }
    }
    /// The reason why a request is not performed.
    public enum Failure: Sendable, Equatable {
        /// Respond with 412.
        case preconditionFailed
        /// Respond with 304. For reads only.
        case notModified
    }

    /// `If-Match`, by strong comparison: weak tags are dropped during parsing.
    public var ifMatch: Tags?
    /// `If-None-Match`, by weak comparison.
    public var ifNoneMatch: Tags?
    /// `If-Modified-Since`, in seconds since 1970.
    public var ifModifiedSince: Int64?
    /// `If-Unmodified-Since`, in seconds since 1970.
    public var ifUnmodifiedSince: Int64?
    /// `X-Object-Generation-Match`; 0 requires that no object exists.
    public var generation: Int64?
    /// `X-Object-Metageneration-Match`.
    public var metageneration: Int64?

    /// Whether tags are compared with ``ObjectMetadata/s3Tag`` and dates with ``ObjectMetadata/updated``, as clients of S3
    /// see them, rather than with ``ObjectMetadata/etag`` and ``ObjectMetadata/created``.
    public var comparesS3Tags = false

    /// The size that the object must have, in bytes, and the time of its last change, in seconds since 1970. Drivers do not
    /// compare them: the object is looked up, and the request pinned to it.
    public var size: UInt64?
    public var modified: Int64?

    /// The lookup behind the authorization decision, if any: ``CurrentObject/absent``, or the object with the
    /// generation and metageneration above. For services that compare something else.
    public var pin = CurrentObject.unknown

    public init() {}

    /// Whether there are no conditions.
    public var isEmpty: Bool {
        ifMatch == nil && ifNoneMatch == nil && ifModifiedSince == nil && ifUnmodifiedSince == nil
            && generation == nil && metageneration == nil && pin == .unknown && size == nil && modified == nil
    }

    /// These conditions, and that the object has not changed since the lookup.
    public func pinned(to existing: CurrentObject) -> Preconditions {
        var pinned = self
        switch existing {
        case .unknown: return self
        case .absent: pinned.generation = 0
        case .object(let object):
            pinned.generation = object.generation
            pinned.metageneration = object.metageneration
        }
        pinned.pin = existing
        return pinned
    }

    /// Whether entity tags are compared, rather than only the object's existence.
    var comparesTags: Bool {
        if case .tags? = ifMatch { return true }
        if case .tags? = ifNoneMatch { return true }
        return false
    }

    /// Evaluates the conditions in the order of RFC 9110, section 13.2.2.
    /// - Parameters:
    ///   - object: The current object; nil if there is none.
    ///   - reading: Whether the request is GET or HEAD, for which the result may be ``Failure/notModified``.
    /// - Returns: nil if the request may be performed.
    public func evaluate(_ object: ObjectMetadata?, reading: Bool) -> Failure? {
        if let generation, generation != (object?.generation ?? 0) { return .preconditionFailed }
        if let metageneration, metageneration != (object?.metageneration ?? 0) {
            return .preconditionFailed
        }
        if size != nil || modified != nil {
            guard let object, size ?? object.size == object.size,
                modified ?? self.modified(object) == self.modified(object)
            else { return .preconditionFailed }
        }
        if let ifMatch {
            guard let object, matches(ifMatch, object) else { return .preconditionFailed }
        } else if let ifUnmodifiedSince, let object, modified(object) > ifUnmodifiedSince {
            return .preconditionFailed
        }
        if let ifNoneMatch {
            if let object, matches(ifNoneMatch, object) {
                return reading ? .notModified : .preconditionFailed
            }
        } else if reading, let ifModifiedSince, let object, modified(object) <= ifModifiedSince {
            return .notModified
        }
        return nil
    }

    private func matches(_ tags: Tags, _ object: ObjectMetadata) -> Bool {
        // Computing a tag can take a digest, so not for `*`.
        if case .any = tags { return true }
        return tags.matches(comparesS3Tags ? object.s3Tag : object.etag)
    }

    /// Seconds since 1970.
    private func modified(_ object: ObjectMetadata) -> Int64 {
        (comparesS3Tags ? object.updated : object.created) / 1000
    }
}
