/// A JSON value as it stands in a text.
package enum JSONValue: Equatable, Sendable {
    case null
    case boolean(Bool)
    /// As it is written: what it is read as is for the reader to say.
    case number(String)
    case string(String)
    case array([JSONValue])
    /// In the text's order.
    case object([JSONMember])

    /// The value of an object's member; nil where this is no object or has none of that name.
    package subscript(_ key: String) -> JSONValue? {
        guard case .object(let members) = self else { return nil }
        return members.first { BytewiseString.areEqual($0.key, key) }?.value
    }

    /// A string's text; nil where this is none.
    package var text: String? {
        if case .string(let text) = self { text } else { nil }
    }

    /// The elements of an array; nil where this is none.
    package var elements: [JSONValue]? {
        if case .array(let elements) = self { elements } else { nil }
    }

    /// A whole number, also where it is written as a string, as 64-bit numbers are by convention.
    package var integer: Int64? {
        switch self {
        case .number(let text), .string(let text): Int64(text)
        default: nil
        }
    }
}

/// A name and its value within an object.
package struct JSONMember: Equatable, Sendable {
    package var key: String
    package var value: JSONValue

    package init(key: String, value: JSONValue) {
        self.key = key
        self.value = value
    }
}

extension JSONValue {
    /// A value of a document, and all that is in it.
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

/// Reads one JSON text as a ``JSONDocument`` is read, into a tree.
package enum JSONReader {
    /// Where and why a text is not JSON.
    package typealias Malformed = JSONDocument.Malformed

    /// Reads the whole text.
    package static func parse(_ text: [UInt8], maximumValues: Int = JSONDocument.usualValues)
        throws(Malformed) -> JSONValue
    {
        JSONValue(try JSONDocument(text, maximumValues: maximumValues), 0)
    }
}
