import Wire

/// The key of an object in a request.
enum S3Key {
    case name(ObjectName)
    /// A key that no object has here. A client may read or delete it: there is none.
    case refused(Problem)
    /// A key that no caller may use.
    case denied(Problem)

    /// Parses a key of a path, percent-encoded.
    /// - Throws: ``Problem`` with `InvalidURI` or `KeyTooLongError`.
    init(percentEncoded path: ArraySlice<UInt8>, in bucket: Bucket) throws(Problem) {
        guard let bytes = try? PercentEncoding.decode(path) else { throw S3Key.invalid }
        try self.init(bytes: bytes, in: bucket)
    }

    /// Checks a decoded key.
    /// - Throws: ``Problem`` with `InvalidURI` or `KeyTooLongError`.
    init(bytes: ArraySlice<UInt8>, in bucket: Bucket) throws(Problem) {
        guard let text = String(validating: bytes, as: UTF8.self) else { throw S3Key.invalid }
        try self.init(text, in: bucket)
    }

    private static let invalid = S3Error.bad("InvalidURI", "Couldn't parse the specified URI.")

    /// Checks a decoded key.
    /// - Throws: ``Problem`` with `KeyTooLongError`.
    init(_ text: String, in bucket: Bucket) throws(Problem) {
        do throws(NameError) {
            let name = text.utf8.last == UInt8(ascii: "/") ? try ObjectName(marker: text) : try ObjectName(text)
            try bucket.pathRules.check(name)
            self = .name(name)
        } catch {
            switch error.limit {
            case .tooLong:
                throw Problem(
                    .invalidName, "Your key is too long",
                    dialect: DialectError(
                        status: 400, code: "KeyTooLongError",
                        members: [("Size", "\(text.utf8.count)"), ("MaxSizeAllowed", "\(ObjectName.maximumBytes)")]))
            case .reserved, .discouraged, .tooDeep, .notAllowed, .denied:
                self = .denied(S3Error.accessDenied(error.description))
            default: self = .refused(S3Error.bad("InvalidArgument", error.description))
            }
        }
    }

    /// The name of an object to read; a refused key has no object.
    func readable() throws(Problem) -> ObjectName {
        switch self {
        case .name(let name): return name
        case .refused: throw S3Error.noSuchKey
        case .denied(let problem): throw problem
        }
    }

    /// The name of an object to write.
    func writable() throws(Problem) -> ObjectName {
        switch self {
        case .name(let name): return name
        case .refused(let problem), .denied(let problem): throw problem
        }
    }
}
