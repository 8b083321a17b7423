/// A change of an object, recorded in the transaction that made it.
public struct BucketEvent: Sendable {
    /// What has changed.
    public enum Kind: Int64, Sendable, CaseIterable {
        /// The object was created or replaced.
        case finalized = 1
        /// The object was deleted.
        case deleted = 2
        /// Properties of the object changed, its bytes did not.
        case metadataUpdated = 3
        /// The object was overwritten. Recorded before the `finalized` of its successor.
        case replaced = 4
    }

    /// Grows in the order of the commits. Some numbers are skipped.
    public var sequence: Int64
    public var kind: Kind
    /// When it was committed, in microseconds since 1970.
    public var time: Int64
    /// The object after the change; for `deleted` and `replaced` as it was before. Download tokens are not recorded.
    public var object: ObjectMetadata
    /// For `finalized` the generation that it replaced, for `replaced` the generation that replaced it.
    public var otherGeneration: Int64?

    public init(sequence: Int64, kind: Kind, time: Int64, object: ObjectMetadata, otherGeneration: Int64? = nil) {
        self.sequence = sequence
        self.kind = kind
        self.time = time
        self.object = object
        self.otherGeneration = otherGeneration
    }
}
