/// A value of the evaluator. Its strings are slices of one text, so a large map costs little more than that.
package struct SlicedValue: Sendable {
    /// The text that strings are slices of.
    package struct Source: Sendable {
        private let text: Text

        /// - Parameter bytes: UTF-8, less than 2 GiB.
        package init(_ bytes: [UInt8]) { text = Text(bytes) }

        fileprivate func slice(_ range: Range<Int>) -> Text { text.slice(range) }
    }

    /// The entries of a map. Keys must be unique.
    package struct Map: Sendable {
        private var entries: [MapEntry] = []

        /// An empty map with reserved capacity.
        package init(capacity: Int) { entries.reserveCapacity(capacity) }

        /// Adds an entry whose key is a range of `source`.
        package mutating func append(
            _ key: Range<Int>, of source: Source, _ value: SlicedValue
        ) {
            entries.append(MapEntry(key: source.slice(key), value: value.datum))
        }

        fileprivate consuming func inOrder() -> [MapEntry] {
            entries.putInOrder()
            return entries
        }
    }

    /// The elements of a list.
    package struct List: Sendable {
        fileprivate private(set) var elements: [Datum] = []

        /// An empty list with reserved capacity.
        package init(capacity: Int) { elements.reserveCapacity(capacity) }

        /// Adds an element.
        package mutating func append(_ value: SlicedValue) { elements.append(value.datum) }
    }

    fileprivate let datum: Datum

    /// A value that is neither text nor a container.
    package init(_ scalar: Value) { datum = Datum(scalar) }

    /// A string that is a range of `source`.
    package init(_ range: Range<Int>, of source: Source) { datum = .string(source.slice(range)) }

    package init(_ list: List) { datum = .list(list.elements) }

    package init(_ map: consuming Map) { datum = .map(map.inOrder()) }
}

extension Caller {
    /// A caller with this user ID and a map of token claims.
    package init(uid: String, token: SlicedValue) {
        self.init(
            .map([
                MapEntry(key: "token", value: token.datum),
                MapEntry(key: "uid", value: .string(Text(uid)), order: 1),
            ]))
    }

    /// Returns the caller with a claim added to `request.auth.token`, or replaced if it exists.
    package func adding(_ claim: String, _ value: Value) -> Caller {
        guard case .map(var properties) = self.value else { return self }
        let new = MapEntry(key: Text(claim), value: Datum(value))
        for index in properties.indices {
            guard properties[index].key == "token", case .map(let claims) = properties[index].value else { continue }
            var changed = claims.filter { $0.key != new.key } + [new]
            changed.putInOrder()
            properties[index].value = .map(changed)
        }
        return Caller(.map(properties))
    }
}
