/// The conditions of RFC 9110, section 13, and those on generations, which must hold for a request to be performed.
public struct Preconditions: Sendable, Equatable {
    /// Entity tags without quotes, or any.
    public enum Tags: Sendable, Equatable {
        /// `*`: whatever there is.
        case any
        /// One of these.
        case tags([String])

        func matches(_ etag: String) -> Bool {
            switch self {
            case .any: true
            case .tags(let tags): tags.contains(etag)
            }
        }
    }
    /// Why a request is not performed.
    public enum Failure: Sendable, Equatable {
        /// 412.
        case preconditionFailed
        /// 304 for a read.
        case notModified
    }

    /// `If-Match` (strong comparison: weak tags are dropped when it is read).
    public var ifMatch: Tags?
    /// `If-None-Match` (weak comparison).
    public var ifNoneMatch: Tags?
    /// Seconds since 1970.
    public var ifModifiedSince: Int64?
    /// Seconds since 1970.
    public var ifUnmodifiedSince: Int64?
    /// `X-Object-Generation-Match`; 0 means that there must be no object.
    public var generation: Int64?
    /// `X-Object-Metageneration-Match`.
    public var metageneration: Int64?

    /// What a decision was made on, where it read that: ``Existing/absent``, or the object whose generation and
    /// metageneration are asked for above. For services that compare by other means.
    public var pin = Existing.unknown

    public init() {}

    /// Whether nothing is asked.
    public var isEmpty: Bool { self == Preconditions() }

    /// These, and that what is there is still the same.
    public func pinned(to existing: Existing) -> Preconditions {
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

    /// Evaluates in the order of RFC 9110, section 13.2.2.
    /// - Parameters:
    ///   - object: What is there now, nil for nothing.
    ///   - reading: GET or HEAD: a condition may end in ``Failure/notModified``.
    /// - Returns: nil where the request may be performed.
    public func evaluate(_ object: ObjectMetadata?, reading: Bool) -> Failure? {
        if let generation, generation != (object?.generation ?? 0) { return .preconditionFailed }
        if let metageneration, metageneration != (object?.metageneration ?? 0) {
            return .preconditionFailed
        }
        if let ifMatch {
            guard let object, ifMatch.matches(object.etag) else { return .preconditionFailed }
        } else if let ifUnmodifiedSince, let object, object.created / 1000 > ifUnmodifiedSince {
            return .preconditionFailed
        }
        if let ifNoneMatch {
            if let object, ifNoneMatch.matches(object.etag) {
                return reading ? .notModified : .preconditionFailed
            }
        } else if reading, let ifModifiedSince, let object,
            object.created / 1000 <= ifModifiedSince
        {
            return .notModified
        }
        return nil
    }
}
