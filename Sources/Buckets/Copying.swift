/// A store that copies its objects itself, so that no byte passes through the gateway.
///
/// A driver has both this protocol and ``Capabilities/copies``, or neither.
public protocol CopyingDriver: BucketDriver {
    /// Creates an object with the bytes of an existing one in one step. The new object has its own generation.
    /// - Throws: ``BucketError``: `.objectNotFound` if the source is gone, `.preconditionFailed` if it has changed or the
    ///   plan's preconditions do not hold. Nothing is changed then.
    func copy(to name: String, _ plan: CopyPlan) async throws(BucketError) -> CommitResult
}

/// A copy of an object within its bucket.
public struct CopyPlan: Sendable, Equatable {
    /// The source as it was looked up. Only these bytes are copied.
    public var source: ObjectMetadata
    /// All properties of the new object.
    public var attributes: ObjectAttributes
    /// The preconditions of the new object's name, checked atomically if the store has ``Capabilities/atomicCopies``.
    public var preconditions: Preconditions
    /// The object that the copy replaces, if it has been looked up.
    public var existing: CurrentObject
    /// Whether the source is removed in the same step, which requires ``Capabilities/atomicMoves``.
    public var removesSource = false

    public init(
        _ source: ObjectMetadata, _ attributes: ObjectAttributes, preconditions: Preconditions = Preconditions(),
        existing: CurrentObject = .unknown, removesSource: Bool = false
    ) {
        self.source = source
        self.attributes = attributes
        self.preconditions = preconditions
        self.existing = existing
        self.removesSource = removesSource
    }

    /// The properties of the new object, with what is stored of the source's bytes for clients of S3. `Expires` is that
    /// of the plan.
    /// - Parameter keepsTag: Whether the new object also gets the entity tag and the parts of its source, because the
    ///   store has no entity tag of its own.
    func attributes(keepsTag: Bool) -> ObjectAttributes {
        guard let source = source.attributes.system.s3,
            var kept = keepsTag ? source : source.withoutParts
        else { return attributes }
        var attributes = attributes
        kept.expires = attributes.system.s3?.expires
        attributes.system.s3 = kept
        return attributes
    }
}
