import Foundation
import Wire

/// Sizes, times and names for people.
enum Text {
    private static let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]

    /// `1.2 GiB`; bytes have no decimals.
    static func size(_ bytes: Int64) -> String {
        let (value, unit) = scaled(Double(bytes), unit(bytes))
        return "\(value) \(unit)"
    }

    /// `0.3/1.2 GiB`, in the unit of the whole.
    static func part(_ done: Int64, of size: Int64) -> String {
        let unit = unit(size)
        let (value, name) = scaled(Double(size), unit)
        return "\(scaled(Double(done), unit).value)/\(value) \(name)"
    }

    /// `98.1 MiB/s`.
    static func rate(_ bytes: Double) -> String { size(Int64(max(0, bytes))) + "/s" }

    /// `0:28`, `1:02:03`.
    static func duration(_ seconds: Double) -> String {
        guard seconds.isFinite, seconds < 360_000 else { return "--:--" }
        let whole = Int(max(0, seconds).rounded())
        let (minutes, rest) = (whole / 60 % 60, whole % 60)
        let end = rest < 10 ? "0\(rest)" : "\(rest)"
        if whole < 3600 { return "\(minutes):\(end)" }
        return "\(whole / 3600):\(minutes < 10 ? "0" : "")\(minutes):\(end)"
    }

    private static func unit(_ bytes: Int64) -> Int {
        var unit = 0
        var value = Double(bytes)
        while value >= 1024, unit + 1 < units.count {
            value /= 1024
            unit += 1
        }
        return unit
    }

    private static func scaled(_ bytes: Double, _ unit: Int) -> (value: String, unit: String) {
        var value = bytes
        for _ in 0..<unit { value /= 1024 }
        if unit == 0 { return (String(Int64(value)), units[unit]) }
        let tenths = Int64((value * 10).rounded(.down))
        return ("\(tenths / 10).\(tenths % 10)", units[unit])
    }

    /// The time as `ls -l` prints it, in the local time zone: 12 columns in English.
    static func time(_ date: Date) -> String {
        var seconds = time_t(date.timeIntervalSince1970)
        var parts = tm()
        localtime_r(&seconds, &parts)
        let age = Date().timeIntervalSince(date)
        let isRecent = age < 182 * 86_400 && age > -86_400
        var buffer = [CChar](repeating: 0, count: 32)
        let count = strftime(&buffer, buffer.count, isRecent ? "%b %e %H:%M" : "%b %e  %Y", &parts)
        return String(decoding: buffer.prefix(count).map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    /// Cuts a text at its beginning to fit the columns, and marks the cut. Pads a shorter text.
    static func fit(_ text: String, _ columns: Int) -> String {
        let characters = Array(VisibleText.escaped(text))
        var used = 0
        var start = characters.count
        while start > 0 {
            let width = Text.columns(of: characters[start - 1])
            // One column is kept for the mark, unless everything fits.
            if used + width > columns - (start > 1 ? 1 : 0) { break }
            used += width
            start -= 1
        }
        var line = String(characters[start...])
        if start > 0, columns > 0 {
            line = "…" + line
            used += 1
        }
        return line + String(repeating: " ", count: max(0, columns - used))
    }

    /// East Asian characters and emoji take two columns.
    private static func columns(of character: Character) -> Int {
        let scalar = character.unicodeScalars.first!
        switch scalar.value {
        case 0x1100...0x115f, 0x2e80...0x303e, 0x3041...0xa4cf, 0xac00...0xd7a3, 0xf900...0xfaff,
            0xfe30...0xfe6f, 0xff00...0xff60, 0xffe0...0xffe6, 0x1f300...0x1f64f,
            0x1f680...0x1f6ff, 0x1f900...0x1faff, 0x20000...0x3fffd:
            return 2
        default: return scalar.properties.generalCategory == .nonspacingMark ? 0 : 1
        }
    }
}
