import CExpat
import Wire

/// Reads the XML of S3 and STS: shallow documents whose leaves contain text.
package enum XMLReader {
    /// The reason why a body was not parsed.
    package struct Malformed: Error {
        /// A message without a full stop.
        package let cause: String
    }
    private static let maximumDepth = 16
    /// The maximum size of a leaf's text in bytes: an encoded key of 1,024, or a session token of some thousands.
    private static let maximumText = 16 * 1024

    /// Calls `leaf` for each element without children, with its parent's name, its own name and its text, and `end` at the
    /// end of each other element.
    /// - Throws: ``Malformed``, also if there is a document type, because entities can expand without limit.
    package static func read(
        _ bytes: [UInt8], end: @escaping (_ name: String) -> Void = { _ in },
        _ leaf: @escaping (_ parent: String, _ name: String, _ text: String) -> Void
    ) throws(Malformed) {
        guard let parser = XML_ParserCreate("UTF-8") else {
            throw Malformed(cause: "no memory for an XML parser")
        }
        defer { XML_ParserFree(parser) }
        let state = State(parser, leaf, end)
        // Safety: the state is kept alive until the end of this call, which is the only user of the pointer.
        XML_SetUserData(parser, Unmanaged.passUnretained(state).toOpaque())
        XML_SetStartDoctypeDeclHandler(parser) { user, _, _, _, _ in
            State.of(user).stop("it has a document type")
        }
        XML_SetElementHandler(
            parser, { user, name, _ in State.of(user).begin(String(cString: name!)) },
            { user, _ in State.of(user).end() })
        XML_SetCharacterDataHandler(parser) { user, text, count in
            State.of(user).add(UnsafeRawBufferPointer(start: text, count: Int(count)))
        }
        let status = withExtendedLifetime(state) {
            bytes.withUnsafeBytes {
                XML_Parse(parser, $0.baseAddress?.assumingMemoryBound(to: CChar.self), Int32($0.count), 1)
            }
        }
        if status != XML_STATUS_OK {
            throw Malformed(cause: state.failure ?? String(cString: XML_ErrorString(XML_GetErrorCode(parser))))
        }
    }

    /// The text of the first leaf with this name and parent; nil also if the document is malformed.
    package static func first(_ name: String, of owner: String, in bytes: [UInt8]) -> String? {
        var found: String?
        do throws(Malformed) {
            try read(bytes) { parent, leaf, text in
                if found == nil, leaf == name, parent == owner { found = text }
            }
        } catch {
            return nil
        }
        return found
    }

    /// The text of the first leaf with this name.
    package static func first(_ name: String, in bytes: [UInt8]) -> String? {
        var found: String?
        try? read(bytes) { _, leaf, text in if found == nil, leaf == name { found = text } }
        return found
    }

    private final class State {
        private let parser: XML_Parser
        private let leaf: (String, String, String) -> Void
        private let ended: (String) -> Void
        private var path: [String] = []
        private var text: [UInt8] = []
        private var isLeaf = false
        private(set) var failure: String?

        init(
            _ parser: XML_Parser, _ leaf: @escaping (String, String, String) -> Void,
            _ ended: @escaping (String) -> Void
        ) {
            self.parser = parser
            self.leaf = leaf
            self.ended = ended
        }

        static func of(_ pointer: UnsafeMutableRawPointer?) -> State {
            Unmanaged<State>.fromOpaque(pointer!).takeUnretainedValue()
        }

        func begin(_ name: String) {
            if path.count == XMLReader.maximumDepth { return stop("it is nested too deeply") }
            path.append(name)
            text.removeAll(keepingCapacity: true)
            isLeaf = true
        }

        func add(_ bytes: UnsafeRawBufferPointer) {
            guard isLeaf else { return }
            if text.count + bytes.count > XMLReader.maximumText {
                return stop("a text is too long")
            }
            text += bytes
        }

        func end() {
            guard let name = path.popLast() else { return }
            if isLeaf {
                leaf(path.last ?? "", name, String(decoding: text, as: UTF8.self))
            } else {
                ended(name)
            }
            isLeaf = false
        }

        func stop(_ failure: String) {
            self.failure = failure
            XML_StopParser(parser, 0)
        }
    }
}
