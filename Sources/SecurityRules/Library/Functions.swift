import Glibc
import Wire

extension Evaluator {
    /// Calls a library function.
    mutating func call(_ node: Int32, _ function: Function, _ operands: OperandList) -> Datum {
        let arguments = values(operands)
        if function == .debug { return arguments[0] }
        if let stop = stop(arguments) {
            if function == .firestoreGet || function == .firestoreExists { lookUpLater(stop) }
            return stop
        }
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
        case .hashingCRC32, .hashingCRC32C, .hashingMD5, .hashingSHA256: return hash(node, function, arguments[0])
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
            if let stop = charge(node, cost(text.count)) { return stop }
            return Int64(text.string).map(Datum.int) ?? notConverted(node, text, to: "int")
        case (.float, .string(let text)):
            if let stop = charge(node, cost(text.count)) { return stop }
            return JavaNumber.float(text.bytes).map(Datum.float)
                ?? notConverted(node, text, to: "float")
        case (.path, .string(let text)):
            return charge(node, cost(text.count)) ?? .path(PathValue(parsing: text))
        default:
            let text = text(of: value)
            return charge(node, cost(text?.count ?? 0)) ?? text.map(Datum.string) ?? .null
        }
    }

    private mutating func notConverted(_ node: Int32, _ text: Text, to type: String) -> Datum {
        fail(
            node,
            "Type conversion error. Argument: [\(text.string)], From type: [string], To type: [\(type)]."
        )
    }

    /// Converts a value as `string()` does; nil if the type has no such conversion.
    func text(of value: Datum) -> Text? {
        switch value {
        case .null: "null"
        case .bool(let value): value ? "true" : "false"
        case .int(let value): Text(String(value))
        case .float(let value): Text(JavaNumber.text(value))
        case .string(let text): text
        case .path, .requestPath: Text(context.segments(of: value).flatMap { [UInt8(ascii: "/")] + $0.text.bytes })
        default: nil
        }
    }

    // MARK: Numbers

    private mutating func math(_ node: Int32, _ function: Function, _ arguments: [Datum]) -> Datum {
        let number = arguments[0].number
        switch (function, arguments[0]) {
        // As in Java, the smallest integer is returned unchanged, because its negation overflows.
        case (.mathAbs, .int(let value)): return .int(value < 0 ? 0 &- value : value)
        case (.mathAbs, _): return .float(abs(number))
        case (.mathRound, .int): return arguments[0]
        case (.mathCeil, _): return .float(number.rounded(.up))
        case (.mathFloor, _): return .float(number.rounded(.down))
        case (.mathRound, _):
            // Not the floor of x + 0.5: the sum itself may be rounded up.
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
            result = Timestamp(year: numbers[0], month: numbers[1], day: numbers[2]).map(Datum.timestamp)
        case .timestampValue:
            let (seconds, rest) = (numbers[0] / 1000, numbers[0] % 1000)
            result = Timestamp(
                seconds: rest < 0 ? seconds - 1 : seconds, nanoseconds: Int32(rest < 0 ? rest + 1000 : rest) * 1_000_000
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
        let text = text(of: value) ?? ""
        guard isDocument, segments[1] == .text("(default)"), text.count <= 6144, let path = DocumentPath(segments)
        else {
            let reason =
                if !isDocument {
                    "A document's path is /databases/(default)/documents/<collection>/<document>."
                } else if DocumentPath(segments) == nil {
                    "A segment of a document's path can't be empty, '.' or '..'."
                } else {
                    "Only the database (default) can be read."
                }
            return fail(
                node,
                "Service call error. Function: [\(function.entry.fullName)], Argument: [\(text.string)]. \(reason)")
        }
        switch document(node, path) {
        case .failure(let stop): return stop.value
        case .success(.failed):
            return fail(
                node,
                "Service call error. Function: [\(function.entry.fullName)], Argument: [\(path)]."
            )
        case .success(.absent):
            if function == .firestoreExists { return .bool(false) }
            return fail(node, "Null value error. There is no document \(path).")
        case .success(.present(let fields)):
            if function == .firestoreExists { return .bool(true) }
            return .makeMap([
                MapEntry(key: "data", value: Datum(.map(fields))),
                MapEntry(key: "id", value: .string(path.id)),
                MapEntry(key: "__name__", value: .path(PathValue(segments))),
            ])
        }
    }
}

extension TimeSpan {
    /// A number of units; nil for an unknown unit, or beyond the limit.
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
    /// An int or a float as a Double; 0 for other types.
    fileprivate var number: Double {
        switch self {
        case .int(let value): Double(value)
        case .float(let value): value
        default: 0
        }
    }
}

/// Distances on a spherical Earth.
enum Sphere {
    /// The mean radius of the Earth, in metres.
    private static let radius = 6_371_010.0

    /// The distance in metres between two positions given in degrees.
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
