import HTTPServer
import Wire

/// The value of `X-Goog-Upload-Command`.
enum UploadCommand: Equatable {
    case start, query, upload, finalize, cancel
    /// `upload, finalize`.
    case uploadAndFinalize

    /// Parses a list of commands; nil if one is unknown or they conflict. Case, spaces and order do not matter.
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

    /// The command of a request; nil if it is absent or unknown.
    init?(_ fields: HeaderFields) {
        guard let text = fields.list("x-goog-upload-command") else { return nil }
        self.init(text)
    }
}
