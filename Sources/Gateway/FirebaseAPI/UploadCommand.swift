import HTTPServer
import Wire

/// The value of `X-Goog-Upload-Command`.
enum UploadCommand: Equatable {
    case start, query, upload, finalize, cancel
    /// `upload, finalize`.
    case uploadAndFinalize

    /// Parses a list of commands, whose case, spaces and order do not matter. nil if they are unknown, or make no sense
    /// together.
    init?(_ text: String) {
        var words: Set<BytewiseString> = []
        for part in Array(text.utf8).split(separator: UInt8(ascii: ",")) {
            let word = ASCII.trimmed(part)
            if word.isEmpty { continue }
            words.insert(BytewiseString(String(decoding: word, as: UTF8.self).asciiLowercased()))
        }
        switch words {
        case ["start"]: self = .start
        case ["query"]: self = .query
        case ["upload"]: self = .upload
        case ["finalize"]: self = .finalize
        case ["upload", "finalize"]: self = .uploadAndFinalize
        case ["cancel"]: self = .cancel
        default: return nil
        }
    }

    /// The command of a request; nil if it has none, or an unknown one.
    init?(_ fields: HeaderFields) {
        guard let text = fields.list("x-goog-upload-command") else { return nil }
        self.init(text)
    }
}
