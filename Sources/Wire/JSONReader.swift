/// A JSON value.
package enum JSONValue: Equatable, Sendable {
    case null
    case boolean(Bool)
    /// The number as written; the caller converts it.
    case number(String)
    case string(String)
    case array([JSONValue])
    /// In the order of the text.
    case object([JSONMember])

    /// The value of an object's member; nil if this is not an object or has no such member.
    package subscript(_ key: String) -> JSONValue? {
        guard case .object(let members) = self else { return nil }
        return members.first { BytewiseString.areEqual($0.key, key) }?.value
    }

    /// The text of a string; nil if this is not a string.
    package var text: String? {
        if case .string(let text) = self { text } else { nil }
    }

    /// The elements of an array; nil if this is not an array.
    package var elements: [JSONValue]? {
        if case .array(let elements) = self { elements } else { nil }
    }

    /// An integer, which may be in a string, as Google APIs write 64-bit integers; nil for other values.
    package var integer: Int64? {
        switch self {
        case .number(let text), .string(let text): Int64(text)
        default: nil
        }
    }
}

/// A member of an object.
package struct JSONMember: Equatable, Sendable {
    package var key: String
    package var value: JSONValue

    package init(key: String, value: JSONValue) {
        self.key = key
        self.value = value
    }
}

extension JSONValue {
    fileprivate init(_ document: JSONDocument, _ index: Int) {
        switch document.kind(index) {
        case .null: self = .null
        case .false: self = .boolean(false)
        case .true: self = .boolean(true)
        case .number: self = .number(document.text(index))
        case .string: self = .string(document.text(index))
        case .array:
            self = .array(document.children(of: index).map { JSONValue(document, $0) })
        case .object:
            self = .object(
                document.children(of: index).map { key in
                    JSONMember(key: document.text(key), value: JSONValue(document, key + 1))
                })
        }
    }
}

/// Parses a JSON text into a tree, as strictly as ``JSONDocument``.
package enum JSONReader {
    /// Why a text is not valid JSON.
    package typealias Malformed = JSONDocument.Malformed

    /// Parses the whole text.
    package static func parse(
        _ text: [UInt8], maximumValues: Int = JSONDocument.defaultMaximumValues
    ) throws(Malformed) -> JSONValue {
        JSONValue(try JSONDocument(text, maximumValues: maximumValues), 0)
    }
}
