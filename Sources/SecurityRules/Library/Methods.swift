extension Evaluator {
    /// Calls a method. The receiver and the name are checked first, then the arguments.
    mutating func method(_ node: Int32, _ name: Int32, _ operands: OperandList) -> Datum {
        if operands.count == 1 {
            return method(node, name, evaluate(program.operands[Int(operands.start)]), [], -1)
        }
        let first = program.operands[Int(operands.start) + 1]
        if operands.count == 2,
            case .pattern(let index, let constant, let cost) = program.operations[Int(first)],
            program.methods[Int(name)] == .matches
        {
            if let stop = charge(first, Int(cost)) { return stop }
            let receiver = evaluate(program.operands[Int(operands.start)])
            if case .string(let text) = receiver {
                return matches(node, text, program.patterns[Int(index)])
            }
            return method(node, name, receiver, [program.constants[Int(constant)]], first)
        }
        let values = values(operands)
        return method(node, name, values[0], Array(values.dropFirst()), first)
    }

    private mutating func method(
        _ node: Int32, _ name: Int32, _ receiver: Datum, _ arguments: [Datum], _ first: Int32
    ) -> Datum {
        let method = program.methods[Int(name)]
        switch receiver {
        case .failure: return receiver
        case .null: return fail(atStartOf: node, "Null value error.")
        case .unknown(let unknown):
            for argument in arguments { if case .failure = argument { return argument } }
            return .unknown(Unknown(bits: unknown.bits, mayFail: true))
        default: break
        }
        let key = program.names[Int(name)]
        guard let type = receiver.type,
            let entry = method == .unknown ? nil : Library.method(method, of: type)
        else { return fail(atStartOf: node, "Function not found error: Name: [\(key.string)].") }
        guard entry.parameters.count == arguments.count else {
            return miscounted(node, arguments.count, entry.expected)
        }
        // `get` on a record may read a known property while others are unknown.
        if method == .get, let stop = stop([arguments[0]]) { return stop }
        if method != .get, let stop = stop(arguments) { return stop }
        guard entry.accepts(arguments) else { return unsupported(node, entry, arguments) }
        switch receiver {
        case .string(let text): return string(node, method, text, arguments, first)
        case .list(let elements): return list(node, method, elements, arguments)
        case .set(let elements): return set(node, method, elements, arguments)
        case .map, .record: return map(node, method, receiver, arguments)
        case .mapDiff(let diff): return mapDiff(method, diff)
        case .bytes(let bytes): return self.bytes(node, method, bytes)
        case .path, .requestPath: return bind(node, context.segments(of: receiver), arguments[0])
        case .timestamp(let moment): return timestamp(method, moment)
        case .duration(let span): return .int(method == .seconds ? span.seconds : Int64(span.nanoseconds))
        case .latlng(let latitude, let longitude): return latlng(method, latitude, longitude, arguments)
        default: return fail(atStartOf: node, "Function not found error: Name: [\(key.string)].")
        }
    }

    // MARK: Types of arguments

    mutating func miscounted(_ node: Int32, _ received: Int, _ expected: String) -> Datum {
        fail(
            node, "Incorrect number of arguments. Received: \(received). Expected: \(expected).")
    }

    mutating func unsupported(_ node: Int32, _ entry: LibraryEntry, _ arguments: [Datum]) -> Datum {
        if arguments.contains(where: { $0.type == .null }) {
            return fail(node, "Null value error.")
        }
        return fail(
            node,
            "Unsupported operation error. Received: \(entry.fullName)("
                + arguments.map(\.typeName).joined(separator: ", ") + "). Expected: \(entry.signature).")
    }

    // MARK: Small types

    private mutating func bytes(_ node: Int32, _ method: MethodName, _ bytes: [UInt8]) -> Datum {
        if let stop = charge(node, cost(bytes.count)) { return stop }
        if method == .size { return .int(Int64(bytes.count)) }
        guard bytes.count <= EvaluationLimits.size / 2 else { return tooLarge(node) }
        switch method {
        case .toBase64: return .string(Text(ByteText.base64URL(bytes)))
        default: return .string(Text(ByteText.hexadecimal(bytes)))
        }
    }

    private mutating func bind(_ node: Int32, _ segments: [PathValue.Segment], _ map: Datum)
        -> Datum
    {
        guard case .map(let entries) = context.whole(map) else { return context.whole(map) }
        var result = PathBuilder()
        for segment in segments {
            guard case .binding(let name) = segment, let value = entries[name] else {
                result.append(segment)
                continue
            }
            switch value {
            case .string(let text): result.append(.text(text))
            case .path, .requestPath: result.append(context.segments(of: value))
            default:
                return fail(
                    node,
                    "Unsupported operation error. Received: path.bind(map of \(value.typeName)). Expected: path.bind(map of string)."
                )
            }
        }
        return finish(node, result, bound: entries)
    }

    private func timestamp(_ method: MethodName, _ moment: Timestamp) -> Datum {
        switch method {
        case .date: .timestamp(moment.midnight)
        case .time:
            TimeSpan(seconds: moment.secondOfDay, nanoseconds: Int64(moment.nanoseconds)).map(Datum.duration) ?? .null
        case .year: .int(Int64(moment.civil.year))
        case .month: .int(Int64(moment.civil.month))
        case .day: .int(Int64(moment.civil.day))
        case .dayOfWeek: .int(moment.dayOfWeek)
        case .dayOfYear: .int(moment.dayOfYear)
        case .hours: .int(moment.secondOfDay / 3600)
        case .minutes: .int(moment.secondOfDay / 60 % 60)
        case .seconds: .int(moment.secondOfDay % 60)
        case .nanos: .int(Int64(moment.nanoseconds))
        default: .int(moment.seconds * 1000 + Int64(moment.nanoseconds) / 1_000_000)
        }
    }

    private func latlng(_ method: MethodName, _ latitude: Double, _ longitude: Double, _ arguments: [Datum]) -> Datum {
        switch method {
        case .latitude: return .float(latitude)
        case .longitude: return .float(longitude)
        default:
            guard case .latlng(let otherLatitude, let otherLongitude)? = arguments.first else {
                return .null
            }
            return .float(
                Sphere.distance(latitude, longitude, otherLatitude, otherLongitude))
        }
    }
}
