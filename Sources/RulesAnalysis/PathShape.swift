/// The form of the paths that a question is about: a number of segments after `/b/<bucket>/o`.
struct PathShape: Hashable {
    /// The number of segments; with `isLong`, those before and behind a middle of at least one segment.
    var count: Int
    var isLong = false
    /// The number of segments behind the middle.
    var backCount = 0
}
