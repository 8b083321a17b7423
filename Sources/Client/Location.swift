import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// The target of an argument.
enum Location {
    /// Standard input or output.
    case standard
    case local(String)
    case remote(RemotePath)
}

/// A path in a bucket.
struct RemotePath: Sendable {
    let storage: Storage
    /// The path without slashes at its ends, with escaped characters if it is a pattern.
    let path: String
    /// Whether the path ends in a slash, or is the bucket itself.
    let isFolder: Bool
    /// The argument.
    let text: String

    var reference: StorageReference { storage.reference(withPath: path) }
}

/// The form of an argument, before any lookup.
enum ArgumentForm: Equatable {
    case standard, local, remote, plain

    init(_ text: String) {
        if text == "-" {
            self = .standard
        } else if ["sluice://", "gs://", "http://", "https://"].contains(where: text.hasPrefix) {
            self = .remote
        } else if text == "." || text == ".." || ["/", "./", "../"].contains(where: text.hasPrefix) {
            self = .local
        } else {
            self = .plain
        }
    }
}

extension Gateways {
    /// The locations of a source and a target of `cp` and `sync`, of which either may be local. A plain argument is local if
    /// the other one is remote and such a file exists.
    func locations(_ source: String, _ target: String) throws -> (Location, Location) {
        let forms = (ArgumentForm(source), ArgumentForm(target))
        func location(_ text: String, _ form: ArgumentForm, _ local: Bool) throws -> Location {
            switch form {
            case .standard: return .standard
            case .local: return .local(text)
            case .remote: return .remote(try remote(text))
            case .plain: return local ? .local(text) : .remote(try remote(text))
            }
        }
        var isLocal = (exists(source), exists(target))
        if forms.0 == .plain, forms.1 == .plain, isLocal.0, isLocal.1 {
            throw ClientError(
                .failure,
                "Both '\(source)' and '\(target)' exist here: write './\(source)' for the local one, or sluice://… for the remote one."
            )
        }
        if forms.1 == .local || forms.1 == .standard { isLocal.0 = false }
        if forms.0 == .local || forms.0 == .standard { isLocal.1 = false }
        if forms.0 == .plain, isLocal.0 { isLocal.1 = false }
        let pair = (
            try location(source, forms.0, isLocal.0), try location(target, forms.1, isLocal.1)
        )
        if case (.local, .local) = pair {
            throw ClientError(
                .failure,
                "Both '\(source)' and '\(target)' are local: write sluice://BUCKET/PATH for a remote one."
            )
        }
        return pair
    }

    private func exists(_ path: String) -> Bool { access(path, F_OK) == 0 }

    /// The path that a remote argument names: `BUCKET/PATH`, `sluice://BUCKET/PATH`, `gs://BUCKET/PATH`, or a URL.
    func remote(_ text: String) throws -> RemotePath {
        // An empty argument is most often an empty variable: not the whole bucket.
        let shown = VisibleText.withoutSecrets(text)
        guard !text.isEmpty else {
            throw ClientError(.failure, "An argument is empty: write sluice://BUCKET for a bucket.")
        }
        guard !text.utf8.contains(where: { $0 == 0x0a || $0 == 0x0d }) else {
            throw ClientError(.failure, "'\(shown)': the name of an object can't have a line break.")
        }
        for scheme in ["sluice://", "gs://"] where text.hasPrefix(scheme) {
            return try path(url, String(text.dropFirst(scheme.count)), text)
        }
        if text.hasPrefix("http://") || text.hasPrefix("https://") { return try objectURL(text) }
        guard let bucket else { return try path(url, text, text) }
        // The name of the bucket may be repeated.
        if text == bucket || text.hasPrefix("\(bucket)/") { return try path(url, text, text) }
        return try path(url, "\(bucket)/\(text)", text)
    }

    private func path(_ url: String, _ rest: String, _ text: String) throws -> RemotePath {
        let parts = rest.utf8.split(separator: UInt8(ascii: "/"), maxSplits: 1, omittingEmptySubsequences: false)
        let name = parts.first.map { String(decoding: $0, as: UTF8.self) } ?? ""
        guard !name.isEmpty else {
            throw ClientError(.failure, "'\(text)' has no bucket: write sluice://BUCKET/PATH.")
        }
        let path = parts.count == 2 ? String(decoding: parts[1], as: UTF8.self) : ""
        guard path.isEmpty || path.utf8.contains(where: { $0 != UInt8(ascii: "/") }) else {
            throw ClientError(.failure, "'\(text)': write sluice://\(name) for the whole bucket.")
        }
        return RemotePath(
            storage: storage(url, name), path: path, isFolder: path.isEmpty || path.hasSuffix("/"), text: text)
    }

    /// `SCHEME://HOST/…/b/BUCKET/o/PATH`.
    private func objectURL(_ text: String) throws -> RemotePath {
        let shown = VisibleText.withoutSecrets(text)
        let malformed = ClientError(
            .usage, "'\(shown)' is not the URL of an object: write https://HOST/b/BUCKET/o/PATH.")
        let bytes = Array(text.utf8)
        guard !bytes.contains(UInt8(ascii: "?")), !bytes.contains(UInt8(ascii: "#")) else {
            throw ClientError(
                .usage,
                "'\(shown)': a URL with a query, such as a signed link, can't be used here; 'curl' gets it. In a name, write '?' and '#' as %3F and %23."
            )
        }
        let segments = bytes.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
        // The scheme, nothing and the host come first.
        guard
            let mark = segments.indices.first(where: {
                $0 > 2 && $0 + 1 < segments.count && segments[$0].elementsEqual("b".utf8)
                    && ($0 + 2 == segments.count || segments[$0 + 2].elementsEqual("o".utf8)
                        || segments[$0 + 2].isEmpty)
            }), !segments[mark + 1].isEmpty
        else { throw malformed }
        let base = segments[..<mark].map { String(decoding: $0, as: UTF8.self) }.joined(separator: "/")
        guard Storage.isGateway(base) else { throw malformed }
        let names = try segments[min(mark + 3, segments.count)...].map {
            try decoded($0, malformed)
        }
        let path = names.joined(separator: "/")
        return RemotePath(
            storage: storage(base, Glob.unescaped(try decoded(segments[mark + 1], malformed))),
            path: path, isFolder: path.isEmpty || path.hasSuffix("/"), text: shown)
    }

    /// Decodes a segment. Encoded characters are not part of a pattern.
    private func decoded(_ segment: ArraySlice<UInt8>, _ malformed: ClientError) throws -> String {
        var pieces: [UInt8] = []
        var index = segment.startIndex
        while index < segment.endIndex {
            if segment[index] == UInt8(ascii: "%") {
                let end = min(index + 3, segment.endIndex)
                guard let byte = Hexadecimal.decode(segment[(index + 1)..<end])?.first else {
                    throw malformed
                }
                if Glob.special.contains(byte) { pieces.append(UInt8(ascii: "\\")) }
                pieces.append(byte)
                index = end
            } else {
                pieces.append(segment[index])
                index += 1
            }
        }
        guard let text = String(validating: pieces, as: UTF8.self),
            !pieces.contains(where: { $0 == 0x0a || $0 == 0x0d })
        else { throw malformed }
        return text
    }
}
