import Wire

/// An entry of the table of functions and methods, for checker, evaluator, messages and reference.
struct LibraryEntry: Sendable {
    /// The prefix of the name.
    enum Owner: Sendable, Equatable {
        /// No prefix: `int(x)`.
        case global
        /// A namespace: `math.abs(x)`.
        case namespace(String)
        /// A value: `text.size()`.
        case type(TypeName)
    }

    var owner: Owner
    var name: String
    /// The types of each parameter, separated by `|`; empty for any type.
    var parameters: [String]
    var result: String
    var summary: String
    /// A difference from the hosted service. Using the entry causes this warning.
    var warning: String?
    /// The permitted types of each parameter.
    private let masks: [TypeName.Mask]

    init(
        owner: Owner, name: String, parameters: [String], result: String, summary: String,
        warning: String? = nil
    ) {
        self.owner = owner
        self.name = name
        self.parameters = parameters
        self.result = result
        self.summary = summary
        self.warning = warning
        masks = parameters.map(TypeName.Mask.init(types:))
    }

    /// Whether it accepts these arguments.
    func accepts(_ arguments: [Datum]) -> Bool {
        guard masks.count == arguments.count else { return false }
        for index in masks.indices {
            guard let type = arguments[index].type, masks[index].contains(type) else {
                return false
            }
        }
        return true
    }

    /// The qualified name, as used in rules and in the hosted service's messages.
    var fullName: String {
        switch owner {
        case .global: name
        case .namespace(let namespace): "\(namespace).\(name)"
        case .type(let type): "\(type.rawValue).\(name)"
        }
    }

    /// The name with one type for each parameter, as the hosted service shows functions with several signatures.
    var expected: String {
        let types = parameters.map { $0.split(separator: "|").last.map(String.init) ?? "any" }
        return "\(fullName)(\(types.joined(separator: ", ")))"
    }

    /// The name with all parameter types.
    var signature: String {
        "\(fullName)(\(parameters.map { $0.isEmpty ? "any" : $0 }.joined(separator: ", ")))"
    }
}

/// The functions, methods and namespaces that rules can use.
enum Library {
    static let namespaces = ["math", "timestamp", "duration", "latlng", "hashing", "firestore"]

    /// The functions, global and in namespaces, indexed by the raw value of ``Function``.
    fileprivate static let functions = Function.allCases.map(\.row)

    static let functionsByName = Dictionary(uniqueKeysWithValues: Function.allCases.map { ($0.entry.fullName, $0) })

    // Keys: names of our own.
    static let methodsByName: [String: [LibraryEntry]] = Dictionary(grouping: methods, by: \.name)

    /// The methods, indexed by name and type.
    private static let methodTable: [LibraryEntry?] = MethodName.allCases.flatMap { name in
        TypeName.allCases.map { type in
            methods.first { $0.name == name.name && $0.owner == .type(type) }
        }
    }

    /// The entry of a method for a type; nil if the type does not have it.
    static func method(_ name: MethodName, of type: TypeName) -> LibraryEntry? {
        methodTable[Int(name.rawValue) * TypeName.allCases.count + type.index]
    }
}

/// The library's functions.
enum Function: UInt8, Sendable, CaseIterable {
    case int, float, string, path, debug
    case mathAbs, mathCeil, mathFloor, mathRound, mathSqrt, mathPow, mathIsNaN
    case timestampDate, timestampValue
    case durationValue, durationTime, durationAbs
    case latlngValue
    case hashingCRC32, hashingCRC32C, hashingMD5, hashingSHA256
    case firestoreGet, firestoreExists

    /// The function's entry in the table.
    var entry: LibraryEntry { Library.functions[Int(rawValue)] }

    fileprivate var row: LibraryEntry {
        let (name, parameters, result, summary) = columns
        let parts = name.split(separator: ".").map(String.init)
        return LibraryEntry(
            owner: parts.count == 2 ? .namespace(parts[0]) : .global, name: parts[parts.count - 1],
            parameters: parameters, result: result, summary: summary, warning: warning)
    }

    private var warning: String? {
        switch self {
        case .debug: "the hosted service has no debug(); here it is its argument, shown in explanations"
        default: nil
        }
    }

    private var columns: (String, [String], String, String) {
        switch self {
        case .int:
            (
                "int", ["string|int|float"], "int",
                "The number; a float is cut toward zero and to 64 bits."
            )
        case .float: ("float", ["string|int|float"], "float", "The number as a float.")
        case .string: ("string", ["bool|int|float|null|string|path"], "string", "The value as text.")
        case .path: ("path", ["string"], "path", "The path with these segments; empty ones are left out.")
        case .debug: ("debug", [""], "any", "The argument itself, noted in the explanation.")
        case .mathAbs: ("math.abs", ["int|float"], "int|float", "The absolute value, of the same type.")
        case .mathCeil: ("math.ceil", ["int|float"], "float", "Rounded up.")
        case .mathFloor: ("math.floor", ["int|float"], "float", "Rounded down.")
        case .mathRound: ("math.round", ["int|float"], "int", "Rounded to the nearest; halves go up.")
        case .mathSqrt: ("math.sqrt", ["int|float"], "float", "The square root; NaN below zero.")
        case .mathPow:
            (
                "math.pow", ["int|float", "int|float"], "float",
                "The first to the power of the second."
            )
        case .mathIsNaN: ("math.isNaN", ["int|float"], "bool", "Whether it is not a number.")
        case .timestampDate: ("timestamp.date", ["int", "int", "int"], "timestamp", "Midnight of year, month, day.")
        case .timestampValue:
            (
                "timestamp.value", ["int"], "timestamp",
                "So many milliseconds after the beginning of 1970."
            )
        case .durationValue:
            (
                "duration.value", ["int", "string"], "duration",
                "So many `w`, `d`, `h`, `m`, `s`, `ms` or `ns`."
            )
        case .durationTime:
            (
                "duration.time", ["int", "int", "int", "int"], "duration",
                "Hours, minutes, seconds and nanoseconds together."
            )
        case .durationAbs: ("duration.abs", ["duration"], "duration", "Without its sign.")
        case .latlngValue:
            (
                "latlng.value", ["int|float", "int|float"], "latlng",
                "A place by its latitude and longitude."
            )
        case .hashingCRC32:
            (
                "hashing.crc32", ["bytes|string"], "bytes",
                "The CRC-32, least significant byte first."
            )
        case .hashingCRC32C:
            (
                "hashing.crc32c", ["bytes|string"], "bytes",
                "The CRC-32C, least significant byte first."
            )
        case .hashingMD5: ("hashing.md5", ["bytes|string"], "bytes", "The MD5 digest.")
        case .hashingSHA256: ("hashing.sha256", ["bytes|string"], "bytes", "The SHA-256 digest.")
        case .firestoreGet:
            (
                "firestore.get", ["path"], "map",
                "A document: its fields in `data`. Missing: an error."
            )
        case .firestoreExists:
            ("firestore.exists", ["path"], "bool", "Whether there is such a document.")
        }
    }
}

extension Library {
    private static func methods(
        of type: TypeName, _ rows: [(String, [String], String, String)]
    ) -> [LibraryEntry] {
        rows.map {
            LibraryEntry(
                owner: .type(type), name: $0.0, parameters: $0.1, result: $0.2, summary: $0.3)
        }
    }

    /// All methods of all types.
    static let methods: [LibraryEntry] =
        methods(
            of: .string,
            [
                ("lower", [], "string", "With its ASCII letters in lower case."),
                ("upper", [], "string", "With its ASCII letters in upper case."),
                ("trim", [], "string", "Without white space at both ends."),
                ("size", [], "int", "The length in UTF-16 code units."),
                (
                    "matches", ["string"], "bool",
                    "Whether a regular expression (RE2) matches all of it."
                ),
                (
                    "split", ["string"], "list",
                    "What stands between the matches of a regular expression."
                ),
                (
                    "replace", ["string", "string"], "string",
                    "With each match of a regular expression replaced."
                ),
                ("toUtf8", [], "bytes", "Its UTF-8."),
            ])
        + methods(
            of: .list,
            [
                ("size", [], "int", "The number of elements."),
                ("concat", ["list"], "list", "The elements of both, in order."),
                ("hasAll", ["list"], "bool", "Whether every element of the other is in it."),
                ("hasAny", ["list"], "bool", "Whether some element of the other is in it."),
                ("hasOnly", ["list"], "bool", "Whether each of its elements is in the other."),
                ("join", ["string"], "string", "The elements as text, with a separator between."),
                ("removeAll", ["list"], "list", "Without the elements of the other."),
                ("toSet", [], "set", "The elements without repeats."),
            ])
        + methods(
            of: .map,
            [
                ("size", [], "int", "The number of entries."),
                ("keys", [], "list", "The keys, sorted by code point."),
                ("values", [], "list", "The values as they were written."),
                (
                    "get", ["string|list", ""], "any",
                    "The value of a key, or of nested keys, or else a default."
                ),
                ("diff", ["map"], "map_diff", "How it differs from the other, which is the older."),
            ])
        + methods(
            of: .mapDiff,
            [
                ("addedKeys", [], "set", "The keys that only the newer map has."),
                ("removedKeys", [], "set", "The keys that only the older map has."),
                ("changedKeys", [], "set", "The keys of both whose values differ."),
                ("affectedKeys", [], "set", "All keys that were added, removed or changed."),
                ("unchangedKeys", [], "set", "The keys of both whose values are equal."),
            ])
        + methods(
            of: .set,
            [
                ("size", [], "int", "The number of elements."),
                ("hasAll", ["list|set"], "bool", "Whether every element of the other is in it."),
                ("hasAny", ["list|set"], "bool", "Whether some element of the other is in it."),
                ("hasOnly", ["list|set"], "bool", "Whether each of its elements is in the other."),
                ("difference", ["set"], "set", "Its elements that the other has not."),
                ("intersection", ["set"], "set", "The elements of both."),
                ("union", ["set"], "set", "The elements of either."),
            ])
        + methods(
            of: .bytes,
            [
                ("size", [], "int", "The number of bytes."),
                ("toBase64", [], "string", "As base64url with padding."),
                ("toHexString", [], "string", "As upper-case hexadecimal digits."),
            ])
        + methods(
            of: .path,
            [
                ("bind", ["map"], "path", "With each `{name}` replaced by the map's value.")
            ])
        + methods(
            of: .timestamp,
            [
                ("date", [], "timestamp", "Midnight of its day."),
                ("time", [], "duration", "The time since midnight."),
                ("year", [], "int", "The year."),
                ("month", [], "int", "The month, from 1."),
                ("day", [], "int", "The day of the month, from 1."),
                ("dayOfWeek", [], "int", "The day of the week, Monday being 1."),
                ("dayOfYear", [], "int", "The day of the year, from 1."),
                ("hours", [], "int", "The hour, 0 to 23."),
                ("minutes", [], "int", "The minute, 0 to 59."),
                ("seconds", [], "int", "The second, 0 to 59."),
                ("nanos", [], "int", "The nanoseconds of its second."),
                ("toMillis", [], "int", "The milliseconds since the beginning of 1970."),
            ])
        + methods(
            of: .duration,
            [
                ("seconds", [], "int", "The whole seconds."),
                ("nanos", [], "int", "The nanoseconds beside the whole seconds."),
            ])
        + methods(
            of: .latlng,
            [
                ("latitude", [], "float", "The latitude in degrees."),
                ("longitude", [], "float", "The longitude in degrees."),
                ("distance", ["latlng"], "float", "The distance on a sphere, in metres."),
            ])
}
