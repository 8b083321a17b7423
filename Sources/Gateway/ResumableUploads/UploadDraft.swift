import Wire

/// How a client speaks draft-ietf-httpbis-resumable-upload: the interop version that it announces, and what follows from
/// it. Clients in use announce 3, 5, 6 and 8.
struct UploadDraft: Equatable {
    /// The versions that are known.
    private static let known: ClosedRange<UInt64> = 3...8

    /// The version that was announced, where it is known; nil otherwise.
    let version: Int?
    /// Whether completeness is written as `Upload-Incomplete`, with the opposite value (draft -01).
    let isInverted: Bool

    init(_ fields: HeaderFields) {
        let announced = UploadDraft.integer(fields, "upload-draft-interop-version")
        version = announced.flatMap { UploadDraft.known.contains($0) ? Int($0) : nil }
        isInverted =
            version == 3
            || version == nil && !fields.contains("upload-complete")
                && fields.contains("upload-incomplete")
    }

    /// Whether the request says that the upload is complete with it.
    enum Completeness: Equatable { case absent, malformed, complete, incomplete }

    func completeness(_ fields: HeaderFields) -> Completeness {
        let name: StaticString = isInverted ? "upload-incomplete" : "upload-complete"
        guard fields.contains(name) else { return .absent }
        var item = UploadDraft.item(fields, name)
        guard let value = item.boolean() else { return .malformed }
        return value != isInverted ? .complete : .incomplete
    }

    /// Whether a request without an offset says that it is an upload, complete or not. A malformed field is ignored.
    static func isUpload(_ fields: HeaderFields) -> Bool {
        guard fields.contains("upload-complete") || fields.contains("upload-incomplete") else {
            return false
        }
        let completeness = UploadDraft(fields).completeness(fields)
        return completeness == .complete || completeness == .incomplete
    }

    /// Whether an append must be of the type `application/partial-upload`: since version 6.
    var requiresType: Bool { version ?? 8 >= 6 }

    /// Whether an append without completeness is the last one: up to version 6.
    var appendsAreLast: Bool { version ?? 8 <= 6 }

    /// An append's type, and the label that clients give to creations. It is never an object's type.
    static func isPartialUpload(_ type: String) -> Bool {
        ASCII.isMediaType(type, "application/partial-upload")
    }

    /// A number of bytes.
    /// - Throws: ``Problem`` with `invalid-argument` where the field is malformed.
    static func bytes(_ fields: HeaderFields, _ name: StaticString) throws(Problem) -> UInt64? {
        guard fields.contains(name) else { return nil }
        guard let value = integer(fields, name) else {
            throw Problem(.invalidArgument, "\(name) is a number of bytes, of at most 15 digits.")
        }
        return value
    }

    // Several lines are a list, which no item is.
    private static func item(_ fields: HeaderFields, _ name: StaticString) -> StructuredDictionary {
        StructuredDictionary(Array((fields.list(name) ?? "").utf8)[...])
    }

    private static func integer(_ fields: HeaderFields, _ name: StaticString) -> UInt64? {
        var item = item(fields, name)
        return item.integer()
    }

    // MARK: Responses

    /// Adds what a response says of the upload.
    func append(_ report: UploadReport, now: Int64, to fields: inout HeaderFields) {
        if isInverted {
            fields.append("upload-incomplete", report.isComplete ? "?0" : "?1")
        } else {
            fields.append("upload-complete", report.isComplete ? "?1" : "?0")
        }
        if let offset = report.offset { fields.append("upload-offset", offset) }
        if let expires = report.expires {
            appendLimit(report.maximumSize, seconds: max(0, expires - now), to: &fields)
        }
    }

    /// Adds `Upload-Limit`.
    func appendLimit(_ size: UInt64, seconds: Int64, to fields: inout HeaderFields) {
        // An integer of structured fields has at most 15 digits.
        let size = min(size, 999_999_999_999_999)
        let age = version == 6 ? "expires" : "max-age"
        fields.append("upload-limit", "max-size=\(size), \(age)=\(seconds)")
    }

    /// Adds the version, as the client announced it.
    func appendVersion(to fields: inout HeaderFields) {
        if let version { fields.append("upload-draft-interop-version", version) }
    }
}
