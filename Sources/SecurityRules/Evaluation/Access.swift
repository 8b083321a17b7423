extension Evaluator {
    // MARK: Properties and elements

    /// Reads a property whose name is in the program. If the property was resolved at load time, the name is not read.
    @inline(__always)
    mutating func member(_ node: Int32, _ object: Datum, name: Int32, _ code: FieldCode) -> Datum {
        switch object {
        case .record(.request):
            if let field = code.request { return context.requestValue(field) }
        case .record(.incoming):
            if let field = code.object,
                let value = context.request.incoming?.fields[Int(field.rawValue)]
            {
                return value
            }
        default: break
        }
        return member(node, object, program.names[Int(name)], code)
    }

    mutating func member(_ node: Int32, _ object: Datum, _ name: Text, _ code: FieldCode) -> Datum {
        if let value = context.entry(object, name, code) { return value }
        switch object {
        case .unknown(let unknown): return .unknown(Unknown(bits: unknown.bits, mayFail: true))
        case .failure: return object
        case .null: return fail(node, "Null value error.")
        default: return fail(node, "Property \(name.string) is undefined on object.")
        }
    }

    mutating func index(_ node: Int32, _ object: Int32, _ key: Int32) -> Datum {
        let key = evaluate(key)
        let object = evaluate(object)
        if let stop = stop([object, key]) { return stop }
        switch (object, key) {
        case (.null, _): return fail(node, "Null value error.")
        case (.map, .string(let name)), (.record, .string(let name)):
            return charge(node, cost(key: name)) ?? member(node, object, name, FieldCode(name))
        case (.list(let elements), .int(let index)):
            guard elements.indices.contains(Int(index)) else {
                return outOfBounds(node, index, elements.count)
            }
            return elements[Int(index)]
        case (.string(let text), .int(let index)):
            let count = text.utf16Count
            guard (0..<Int64(count)).contains(index) else { return outOfBounds(node, index, count) }
            return charge(node, cost(count)) ?? .string(text.utf16Slice(Int(index)..<Int(index) + 1))
        case (.path, .int(let index)), (.requestPath, .int(let index)):
            let segments = context.segments(of: object)
            guard segments.indices.contains(Int(index)) else {
                return outOfBounds(node, index, segments.count)
            }
            return .string(segments[Int(index)].text)
        case (.path(let path), .string(let name)):
            return path.bound[name] ?? fail(node, "Property \(name.string) is undefined on object.")
        case (.list, _), (.string, _):
            return fail(
                node,
                "Unsupported operation error. Received: \(object.typeName)[\(key.typeName)]. "
                    + "Expected: \(object.typeName)[int].")
        default:
            return fail(
                node,
                "Unsupported operation error. Received: \(object.typeName)[\(key.typeName)]. "
                    + "Expected: map[string].")
        }
    }

    /// The first error in source order; otherwise the combined unknown inputs; nil if there are neither.
    func stop(_ values: [Datum]) -> Datum? {
        var bits: InputBits = []
        for value in values {
            if case .failure = value { return value }
            if case .unknown(let unknown) = value { bits.formUnion(unknown.bits) }
        }
        return bits.isEmpty ? nil : .unknown(Unknown(bits: bits, mayFail: true))
    }

    private mutating func outOfBounds(_ node: Int32, _ index: Int64, _ size: Int) -> Datum {
        fail(node, "Index out of bound error. Index: [\(index)] , size: [\(size)].")
    }

    mutating func slice(_ node: Int32, _ object: Int32, _ first: Int32, _ last: Int32) -> Datum {
        let end: Datum = last < 0 ? .null : evaluate(last)
        let start: Datum = first < 0 ? .int(0) : evaluate(first)
        let object = evaluate(object)
        if let stop = stop([object, start, end]) { return stop }
        let count: Int
        switch object {
        case .list(let elements): count = elements.count
        case .string(let text): count = text.utf16Count
        case .bytes(let bytes): count = bytes.count
        case .path, .requestPath: count = context.segments(of: object).count
        case .null: return fail(node, "Null value error.")
        default:
            return fail(
                node,
                "Unsupported operation error. Received: \(object.typeName)[\(start.typeName):"
                    + "\(end.typeName)]. Expected: list[int:int].")
        }
        if let stop = charge(node, cost(count)) { return stop }
        guard case .int(let low) = start, let high = last < 0 ? Int64(count) : end.int else {
            let endType = last < 0 ? "int" : end.typeName
            return fail(
                node,
                "Unsupported operation error. Received: \(object.typeName)[\(start.typeName):"
                    + "\(endType)]. Expected: \(object.typeName)[int:int].")
        }
        // The first and the last index must both exist, even if the range is empty.
        guard low >= 0, low < count else { return outOfBounds(node, low, count) }
        guard high >= 1, high <= count else { return outOfBounds(node, high &- 1, count) }
        guard high >= low else {
            return fail(
                node, "Illegal range error. From index: [\(low)] , To index: [\(high)].")
        }
        return slice(object, Int(low)..<Int(high))
    }

    private func slice(_ object: Datum, _ range: Range<Int>) -> Datum {
        switch object {
        case .list(let elements): .list(Array(elements[range]))
        case .string(let text): .string(text.utf16Slice(range))
        case .bytes(let bytes): .bytes(Array(bytes[range]))
        default: .path(PathValue(Array(context.segments(of: object)[range])))
        }
    }

    // MARK: Composed values

    /// Evaluates all operands, the last one first.
    mutating func values(_ operands: OperandList) -> [Datum] {
        var values = [Datum](repeating: .null, count: Int(operands.count))
        for index in values.indices.reversed() {
            values[index] = evaluate(program.operands[Int(operands.start) + index])
        }
        return values
    }

    mutating func list(_ node: Int32, _ operands: OperandList) -> Datum {
        let values = values(operands)
        if let stop = stop(values) { return stop }
        let whole = values.map(context.whole)
        return stop(whole) ?? .list(whole)
    }

    mutating func map(_ node: Int32, _ operands: OperandList) -> Datum {
        let values = values(operands)
        if let stop = stop(values) { return stop }
        var entries: [MapEntry] = []
        for index in stride(from: 0, to: values.count, by: 2) {
            guard case .string(let key) = values[index] else {
                return fail(
                    node,
                    "Unsupported operation error. Received: {\(values[index].typeName): any}. "
                        + "Expected: {string: any}.")
            }
            entries.append(MapEntry(key: key, value: context.whole(values[index + 1])))
        }
        return stop(entries.map(\.value)) ?? .makeMap(entries)
    }

    /// Joins the parts of a path. A literal segment is a path of one segment, an interpolated string is one segment
    /// even if it contains slashes, and an interpolated path contributes all its segments.
    mutating func path(_ node: Int32, _ operands: OperandList) -> Datum {
        let values = values(operands)
        if let stop = stop(values) { return stop }
        var path = PathBuilder()
        for value in values {
            switch value {
            case .string(let text): path.append(.text(text))
            case .int(let number): path.append(.text(Text(String(number))))
            case .path, .requestPath: path.append(context.segments(of: value))
            case .null: return fail(node, "Null value error.")
            default:
                return fail(
                    node,
                    "Unsupported operation error. Received: /$(\(value.typeName)). Expected: /$(string)."
                )
            }
        }
        return finish(node, path)
    }

    /// Creates a path, with the size limit of a string.
    mutating func finish(_ node: Int32, _ path: PathBuilder, bound: [MapEntry] = []) -> Datum {
        guard path.size <= EvaluationLimits.size else { return tooLarge(node) }
        return charge(node, cost(path.size)) ?? .path(PathValue(path.segments, bound: bound))
    }
}

/// Collects the segments of a path. Segments beyond the size limit are dropped.
struct PathBuilder {
    private(set) var segments: [PathValue.Segment] = []
    /// The length of the path as text, in bytes.
    private(set) var size = 0

    mutating func append(_ segment: PathValue.Segment) {
        size += segment.text.count + 1
        if size <= EvaluationLimits.size { segments.append(segment) }
    }

    mutating func append(_ more: [PathValue.Segment]) {
        for segment in more where size <= EvaluationLimits.size { append(segment) }
    }
}

extension Datum {
    var int: Int64? { if case .int(let value) = self { value } else { nil } }
}
