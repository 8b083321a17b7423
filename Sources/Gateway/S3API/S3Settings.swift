import Wire

/// How S3 clients are served.
public struct S3Settings: Sendable, Equatable {
    /// The region that signatures must name; nil for any.
    public var region: String?
    /// Host names whose requests are S3's, also with `BUCKET.` before them. Lower case.
    public var domains: [String]
    /// The maximum lifetime of temporary credentials in seconds.
    public var maximumSession: Int64
    /// Whether lists have the objects that the caller may list. Otherwise only those that it may `get`.
    public var listsAll: Bool

    public init(
        region: String? = nil, domains: [String] = [], maximumSession: Int64 = 3600, listsAll: Bool = false
    ) {
        self.region = region
        self.domains = domains
        self.maximumSession = maximumSession
        self.listsAll = listsAll
    }

    /// The region in responses.
    var shownRegion: String { region ?? "us-east-1" }
}
