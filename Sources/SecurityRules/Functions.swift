import Glibc

extension Evaluator {
    /// A call of a function of the library.
    mutating func call(_ node: Int32, _ function: Function, _ operands: OperandList) -> Datum {
        let arguments = values(operands)
        if function == .debug { return arguments[0] }
        if let stop = stop(arguments) { return stop }
        guard function.entry.accepts(arguments) else {
            return unsupported(node, function.entry, arguments)
        }
        switch function {
        case .int, .float, .string, .path, .debug: return conversion(node, function, arguments[0])
        case .mathAbs, .mathCeil, .mathFloor, .mathRound, .mathSqrt, .mathPow, .mathIsNaN:
            return math(node, function, arguments)
        case .timestampDate, .timestampValue, .durationValue, .durationTime, .durationAbs:
            return time(node, function, arguments)
        case .latlngValue:
            let (latitude, longitude) = (arguments[0].number, arguments[1].number)
            guard abs(latitude) <= 90, abs(longitude) <= 180 else {
                return fail(
                    node,
                    "Latitude should be in [-90,90] range and longitude should be in [-180,180] range. "
                        + "latitude: \(latitude), longitude: \(longitude).")
            }
            return .latlng(latitude, longitude)
        case .hashingCRC32, .hashingCRC32C, .hashingMD5, .hashingSHA256:
            return hash(node, function, arguments[0])
        case .firestoreGet, .firestoreExists: return lookUp(node, function, arguments[0])
        }
    }

    // MARK: Conversions

    private mutating func conversion(_ node: Int32, _ function: Function, _ value: Datum) -> Datum {
        switch (function, value) {
        case (.int, .int), (.float, .float), (.string, .string): return value
        case (.int, .float(let value)): return .int(JavaNumber.integer(value))
        case (.float, .int(let value)): return .float(Double(value))
        case (.int, .string(let text)):
            return Int64(text.string).map(Datum.int) ?? fail(node, "Type conversion error.")
        case (.float, .string(let text)):
            if let stop = charge(node, cost(text.count)) { return stop }
            return JavaNumber.float(text.bytes).map(Datum.float)
                ?? fail(node, "Type conversion error.")
        case (.path, .string(let text)):
            return charge(node, cost(text.count)) ?? .path(PathValue(parsing: text))
        default: return text(of: value).map(Datum.string) ?? .null
        }
    }

    /// A value as `string()` writes it; nil for what has no such form.
    func text(of value: Datum) -> Text? {
        switch value {
        case .null: "null"
        case .bool(let value): value ? "true" : "false"
        case .int(let value): Text(String(value))
        case .float(let value): Text(JavaNumber.text(value))
        case .string(let text): text
        case .path, .requestPath:
            Text(context.segments(of: value).flatMap { [UInt8(ascii: "/")] + $0.text.bytes })
        default: nil
        }
    }

    // MARK: Numbers

    private mutating func math(_ node: Int32, _ function: Function, _ arguments: [Datum]) -> Datum {
        let number = arguments[0].number
        switch (function, arguments[0]) {
        // As in Java, the smallest integer, which has no opposite, stays as it is.
        case (.mathAbs, .int(let value)): return .int(value < 0 ? 0 &- value : value)
        case (.mathAbs, _): return .float(abs(number))
        case (.mathRound, .int): return arguments[0]
        case (.mathCeil, _): return .float(number.rounded(.up))
        case (.mathFloor, _): return .float(number.rounded(.down))
        case (.mathRound, _):
            // Not (x + 0.5) rounded down: the sum may itself be rounded up.
            let down = number.rounded(.down)
            return .int(JavaNumber.integer(number - down >= 0.5 ? down + 1 : down))
        case (.mathSqrt, _): return .float(number.squareRoot())
        case (.mathPow, _): return .float(pow(number, arguments[1].number))
        default: return .bool(number.isNaN)
        }
    }

    // MARK: Times

    private mutating func time(_ node: Int32, _ function: Function, _ arguments: [Datum]) -> Datum {
        let numbers = arguments.map { $0.int ?? 0 }
        let result: Datum?
        switch function {
        case .timestampDate:
            result = Timestamp(year: numbers[0], month: numbers[1], day: numbers[2]).map(
                Datum.timestamp)
        case .timestampValue:
            let (seconds, rest) = (numbers[0] / 1000, numbers[0] % 1000)
            result = Timestamp(
                seconds: rest < 0 ? seconds - 1 : seconds,
                nanoseconds: Int32(rest < 0 ? rest + 1000 : rest) * 1_000_000
            ).map(Datum.timestamp)
        case .durationValue:
            guard case .string(let unit) = arguments[1] else { return .null }
            result = TimeSpan(numbers[0], unit: unit.string).map(Datum.duration)
        case .durationTime:
            let hours = numbers[0].multipliedReportingOverflow(by: 3600)
            let minutes = numbers[1].multipliedReportingOverflow(by: 60)
            let sum = hours.partialValue.addingReportingOverflow(minutes.partialValue)
            let all = sum.partialValue.addingReportingOverflow(numbers[2])
            let overflow = hours.overflow || minutes.overflow || sum.overflow || all.overflow
            result =
                overflow
                ? nil
                : TimeSpan(seconds: all.partialValue, nanoseconds: numbers[3]).map(Datum.duration)
        default:
            guard case .duration(let span) = arguments[0] else { return .null }
            let isNegative = span.seconds < 0 || span.nanoseconds < 0
            result = (isNegative ? span.negated : span).map(Datum.duration)
        }
        return result ?? fail(node, "Invalid value for \(function.entry.fullName).")
    }

    // MARK: Digests

    private mutating func hash(_ node: Int32, _ function: Function, _ value: Datum) -> Datum {
        let bytes: [UInt8]
        switch value {
        case .string(let text): bytes = text.bytes
        case .bytes(let value): bytes = value
        default: return .null
        }
        if let stop = charge(node, 1 + bytes.count >> 8) { return stop }
        switch function {
        case .hashingCRC32: return .bytes(Digests.crc32(bytes, polynomial: 0xEDB8_8320))
        case .hashingCRC32C: return .bytes(Digests.crc32(bytes, polynomial: 0x82F6_3B78))
        case .hashingMD5: return .bytes(Digests.md5(bytes))
        default: return .bytes(Digests.sha256(bytes))
        }
    }

    // MARK: Documents

    private mutating func lookUp(_ node: Int32, _ function: Function, _ value: Datum) -> Datum {
        let segments = context.segments(of: value)
        let isDocument =
            segments.count >= 5 && segments.count % 2 == 1 && segments[0] == .text("databases")
            && segments[2] == .text("documents")
            && segments.allSatisfy { if case .text(let text) = $0 { !text.isEmpty } else { false } }
        let path = text(of: value) ?? ""
        guard isDocument, segments[1] == .text("(default)"), path.count <= 6144 else {
            let reason =
                isDocument
                ? "Only the database (default) can be read."
                : "A document's path is /databases/(default)/documents/<collection>/<document>."
            return fail(
                node,
                "Service call error. Function: [\(function.entry.fullName)], Argument: [\(path.string)]. \(reason)"
            )
        }
        switch document(node, path) {
        case .failure(let stop): return stop.value
        case .success(.failed):
            return fail(
                node,
                "Service call error. Function: [\(function.entry.fullName)], Argument: [\(path.string)]."
            )
        case .success(.absent):
            if function == .firestoreExists { return .bool(false) }
            return fail(node, "Null value error. There is no document \(path.string).")
        case .success(.present(let fields)):
            if function == .firestoreExists { return .bool(true) }
            return .makeMap([
                MapEntry(key: "data", value: Datum(.map(fields))),
                MapEntry(key: "id", value: .string(segments[segments.count - 1].text)),
                MapEntry(key: "__name__", value: .path(PathValue(segments))),
            ])
        }
    }
}

extension TimeSpan {
    /// So many of a unit; nil for an unknown one, or beyond the limit.
    fileprivate init?(_ count: Int64, unit: String) {
        let scale: Int64
        switch unit {
        case "w": scale = 604_800
        case "d": scale = 86_400
        case "h": scale = 3600
        case "m": scale = 60
        case "s": scale = 1
        case "ms":
            self.init(seconds: count / 1000, nanoseconds: count % 1000 * 1_000_000)
            return
        case "ns":
            self.init(seconds: 0, nanoseconds: count)
            return
        default: return nil
        }
        let (seconds, overflow) = count.multipliedReportingOverflow(by: scale)
        guard !overflow else { return nil }
        self.init(seconds: seconds)
    }
}

extension Datum {
    /// An int or a float as a float; 0 for anything else.
    fileprivate var number: Double {
        switch self {
        case .int(let value): Double(value)
        case .float(let value): value
        default: 0
        }
    }
}

/// The Earth as a ball.
enum Sphere {
    /// The mean radius of the Earth in metres.
    private static let radius = 6_371_010.0

    /// The distance of two places given in degrees, in metres.
    static func distance(
        _ latitude: Double, _ longitude: Double, _ other: Double, _ otherLongitude: Double
    )
        -> Double
    {
        let degree = Double.pi / 180
        let a = sin((other - latitude) * degree / 2)
        let b = sin((otherLongitude - longitude) * degree / 2)
        let h = a * a + cos(latitude * degree) * cos(other * degree) * b * b
        return 2 * radius * asin(min(1, h.squareRoot()))
    }
}
