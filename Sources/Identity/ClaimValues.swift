import SecurityRules
import Wire

/// Claims as the rules see them: whole numbers are integers, and others floats, as the hosted service reads them.
struct ClaimValues {
    /// Levels of arrays and objects within a claim.
    static let maximumDepth = 16

    private let document: JSONDocument
    private let source: SlicedValue.Source

    init(_ document: JSONDocument) {
        self.document = document
        source = SlicedValue.Source(document.bytes)
    }

    /// The whole claim set but for the claim of one name; nil where a claim is nested too deeply, or has a number beyond
    /// all floats.
    func map(without name: String) -> SlicedValue? {
        map(0, depth: 0) { document.has($0, name) }
    }

    private func map(_ index: Int, depth: Int, isLeftOut: (Int) -> Bool) -> SlicedValue? {
        let names = document.children(of: index)
        var map = SlicedValue.Map(capacity: names.count)
        for name in names where !isLeftOut(name) {
            guard let value = value(name + 1, depth: depth + 1) else { return nil }
            map.append(document.range(name), of: source, value)
        }
        return SlicedValue(map)
    }

    private func value(_ index: Int, depth: Int) -> SlicedValue? {
        guard depth <= ClaimValues.maximumDepth else { return nil }
        switch document.kind(index) {
        case .null: return SlicedValue(.null)
        case .false: return SlicedValue(.bool(false))
        case .true: return SlicedValue(.bool(true))
        case .number:
            let text = document.text(index)
            if let integer = Int64(text) { return SlicedValue(.int(integer)) }
            return ClaimValues.fraction(text).map { SlicedValue(Value(number: $0)) }
        case .string: return SlicedValue(document.range(index), of: source)
        case .array:
            let elements = document.children(of: index)
            var list = SlicedValue.List(capacity: elements.count)
            for element in elements {
                guard let value = value(element, depth: depth + 1) else { return nil }
                list.append(value)
            }
            return SlicedValue(list)
        case .object:
            return map(index, depth: depth) { _ in false }
        }
    }

    /// A finite number of JSON.
    static func number(_ text: String) -> Double? {
        // Most are whole, and those are read in a tenth of the time.
        Int64(text).map(Double.init) ?? fraction(text)
    }

    private static func fraction(_ text: String) -> Double? {
        guard let number = Double(text), number.isFinite else { return nil }
        return number
    }
}
