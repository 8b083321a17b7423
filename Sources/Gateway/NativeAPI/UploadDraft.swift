import Wire

/// The version of draft-ietf-httpbis-resumable-upload that a client uses, and its consequences. Existing clients
/// announce the interop versions 3, 5, 6 and 8.
struct UploadDraft: Equatable {
    /// The supported versions.
    private static let known: ClosedRange<UInt64> = 3...8

    /// The announced version; nil if it is not supported.
    let version: Int?
    /// Whether completeness is written as `Upload-Incomplete`, with the opposite value (draft -01).
    let isInverted: Bool

    init(_ fields: HeaderFields) {
        let announced = UploadDraft.integer(fields, "upload-draft-interop-version")
        version = announced.flatMap { UploadDraft.known.contains($0) ? Int($0) : nil }
        isInverted =
            version == 3
            || version == nil && !fields.contains("upload-complete") && fields.contains("upload-incomplete")
    }

    /// Whether the request declares that it completes the upload; nil if it declares neither.
    /// - Throws: ``Problem`` if the field is not one boolean, or belongs to another version: the body could be stored as
    ///   a whole object, although it is a part.
    func isLast(_ fields: HeaderFields) throws(Problem) -> Bool? {
        guard UploadDraft.isUpload(fields) else { return nil }
        let name: StaticString = isInverted ? "upload-incomplete" : "upload-complete"
        var item = UploadDraft.item(fields, name)
        guard let value = item.boolean() else {
            throw Problem(.invalidArgument, "\(fieldName) must be ?0 or ?1, and sent once.")
        }
        return value != isInverted
    }

    /// The field that declares completeness.
    var fieldName: String { isInverted ? "Upload-Incomplete" : "Upload-Complete" }

    /// Whether a request without an offset has a field about completeness.
    static func isUpload(_ fields: HeaderFields) -> Bool {
        fields.contains("upload-complete") || fields.contains("upload-incomplete")
    }

    /// Whether an append must have the type `application/partial-upload`: from version 6.
    var requiresType: Bool { version ?? 8 >= 6 }

    /// Whether an append without a declared completeness is the last one: up to version 6.
    var appendsAreLast: Bool { version ?? 8 <= 6 }

    /// The type of an append, which some clients also send with a creation. It is never the type of an object.
    static func isPartialUpload(_ type: String) -> Bool { ASCII.isMediaType(type, partialUpload) }

    static let partialUpload: StaticString = "application/partial-upload"

    /// Whether the response reports progress while the request is received. Clients know this from version 5.
    var reportsProgress: Bool { version ?? 8 >= 5 }

    // Several field lines are a list, and not an item.
    private static func item(_ fields: HeaderFields, _ name: StaticString) -> StructuredDictionary {
        StructuredDictionary(Array((fields.list(name) ?? "").utf8)[...])
    }

    /// Parses a number of at most 15 digits; nil if it is absent or malformed, because a malformed field is ignored.
    static func integer(_ fields: HeaderFields, _ name: StaticString) -> UInt64? {
        var item = item(fields, name)
        return item.integer()
    }

    // MARK: Responses

    /// Adds the fields about the upload to a response.
    func append(_ report: UploadReport, now: Int64, to fields: inout HeaderFields) {
        if isInverted {
            fields.append("upload-incomplete", report.isComplete ? "?0" : "?1")
        } else {
            fields.append("upload-complete", report.isComplete ? "?1" : "?0")
        }
        if let offset = report.offset { fields.append("upload-offset", offset) }
        appendLimit(of: report, now: now, to: &fields)
    }

    /// Adds `Upload-Limit`, once the bucket is known.
    func appendLimit(of report: UploadReport, now: Int64, to fields: inout HeaderFields) {
        guard let size = report.maximumSize else { return }
        appendLimit(size, seconds: report.expires.map { max(0, $0 - now) }, to: &fields)
    }

    /// Adds `Upload-Limit`.
    /// - Parameter seconds: How long the session lives; nil if there is none.
    func appendLimit(_ size: UInt64, seconds: Int64?, to fields: inout HeaderFields) {
        // An integer in structured fields has at most 15 digits.
        var limit = "max-size=\(min(size, 999_999_999_999_999))"
        if let seconds { limit += ", \(version == 6 ? "expires" : "max-age")=\(seconds)" }
        fields.append("upload-limit", limit)
    }

    /// Adds the version, as the client announced it.
    func appendVersion(to fields: inout HeaderFields) {
        if let version { fields.append("upload-draft-interop-version", version) }
    }
}
