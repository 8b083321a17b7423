/// The path of a Firestore document as segments: `/databases/(default)/documents/users/alice`.
///
/// Segments are compared by bytes, without Unicode normalization. A slash inside a segment is part of that segment.
public struct DocumentPath: Sendable, Hashable {
    private let texts: [Text]

    /// Creates a path from segments; nil if there are none, or one is empty, `.`, `..` or an unbound binding.
    init?(_ segments: [PathValue.Segment]) {
        if segments.isEmpty { return nil }
        var texts: [Text] = []
        for segment in segments {
            guard case .text(let text) = segment, DocumentPath.isValid(text) else { return nil }
            texts.append(text)
        }
        self.texts = texts
    }

    /// Parses a path with slashes, such as `/databases/(default)/documents/users/alice`.
    ///
    /// A slash at either end is ignored. nil if a segment is empty, `.` or `..`.
    public init?(_ text: String) {
        self.init(PathValue(parsing: Text(text)).segments)
    }

    private static func isValid(_ text: Text) -> Bool {
        !text.isEmpty && text != "." && text != ".."
    }

    /// The bytes of each segment, in order. They are UTF-8, except where a rule has split a surrogate pair.
    public var segments: [[UInt8]] { texts.map(\.bytes) }

    /// The last segment, which is the document ID.
    var id: Text { texts[texts.count - 1] }
}

extension DocumentPath: CustomStringConvertible {
    /// The path with slashes. A slash inside a segment becomes `%2F`, and a percent sign `%25`.
    public var description: String {
        var bytes: [UInt8] = []
        for text in texts {
            bytes.append(UInt8(ascii: "/"))
            for byte in text.bytes {
                switch byte {
                case UInt8(ascii: "/"): bytes += "%2F".utf8
                case UInt8(ascii: "%"): bytes += "%25".utf8
                default: bytes.append(byte)
                }
            }
        }
        return String(decoding: bytes, as: UTF8.self)
    }
}
