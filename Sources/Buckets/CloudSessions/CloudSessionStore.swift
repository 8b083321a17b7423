import Wire

/// The hidden objects in which upload sessions keep their states and tails.
protocol CloudSessionStore: Sendable {
    /// Reads an object and its version; nil if there is none. Never older than the last successful write.
    func readHidden(_ name: String) async throws(BucketError) -> HiddenObject?

    /// Writes an object if its version is `version`; nil requires that none exists. Requests may be repeated: a
    /// successful write may be reported as one whose condition did not hold.
    /// - Returns: The new version; nil if the condition did not hold.
    func writeHidden(_ name: String, _ bytes: [UInt8], replacing version: String?) async throws(BucketError) -> String?

    /// The object need not exist.
    func deleteHidden(_ name: String) async throws(BucketError)

    /// At most 1,000 names with `prefix` after `name`, in byte order; empty only at the end.
    func listHidden(_ prefix: String, after name: String?) async throws(BucketError) -> [String]
}

struct HiddenObject: Sendable, Equatable {
    var bytes: [UInt8]
    /// An entity tag or a generation, for ``CloudSessionStore/writeHidden(_:_:replacing:)``.
    var version: String
}

/// Names of hidden objects, sorted by the hour of expiry, so that a sweep lists only what has expired.
///
///     .sluice/uploads/HOUR/ID               the state of a session
///     .sluice/uploads/HOUR/ID.tail.NUMBER   a piece of its tail
///     .sluice/uploads/HOUR/ID.data          all bytes before they become the object, if the service needs that
///     .sluice/uploads/HOUR/ID.until.TIME    a session that has ended and is kept until TIME, in HOUR of TIME
enum HiddenName: Equatable {
    case state(UploadSessionID)
    case tail(UploadSessionID, number: UInt64)
    case data(UploadSessionID)
    case until(UploadSessionID, time: Int64)

    /// The prefix of the gateway's own names, which lists hide.
    static let reserved = ".sluice/"
    static let prefix = ".sluice/uploads/"
    private static let hourDigits = 16

    var id: UploadSessionID {
        switch self {
        case .state(let id), .tail(let id, _), .data(let id), .until(let id, _): id
        }
    }

    /// When the object can be removed, in seconds since 1970.
    var expires: Int64 { if case .until(_, let time) = self { time } else { id.expires } }

    var text: String {
        let hour = String(expires / 3600)
        let padding = String(repeating: "0", count: HiddenName.hourDigits - hour.utf8.count)
        let name = "\(HiddenName.prefix)\(padding)\(hour)/\(id.text)"
        switch self {
        case .state: return name
        case .tail(_, let number): return "\(name).tail.\(number)"
        case .data: return "\(name).data"
        case .until(_, let time): return "\(name).until.\(time)"
        }
    }

    init?(_ text: String) {
        guard text.utf8.starts(with: HiddenName.prefix.utf8) else { return nil }
        let rest = text.utf8.dropFirst(HiddenName.prefix.utf8.count + HiddenName.hourDigits + 1)
        let words = rest.split(separator: UInt8(ascii: "."), omittingEmptySubsequences: false)
            .map { String(Substring($0)) }
        guard let first = words.first, let id = UploadSessionID(text: first) else { return nil }
        switch (words.count, words.dropFirst().first?.utf8.elementsEqual("tail".utf8)) {
        case (1, _): self = .state(id)
        case (3, true):
            guard let number = UInt64(words[2]) else { return nil }
            self = .tail(id, number: number)
        case (3, _):
            guard let time = Int64(words[2]), time >= 0 else { return nil }
            self = .until(id, time: time)
        default: self = .data(id)
        }
        // Rejects other spellings of the hour, the words and the numbers.
        guard self.text.utf8.elementsEqual(text.utf8) else { return nil }
    }
}
