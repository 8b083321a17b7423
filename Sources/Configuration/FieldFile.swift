import System
import Wire

/// A file with a header field on each line, `name: value`.
enum FieldFile {
    /// Why the file can't be used. Quotes nothing of it.
    struct Malformed: Error, CustomStringConvertible {
        let description: String
    }

    private static let maximumBytes = 1 << 16

    /// The fields, with names in lower case.
    /// - Parameter reserved: The names, or beginnings of names with a `-` at the end, that the requests have themselves.
    static func read(_ file: String, reserved: [String] = []) throws(Malformed) -> HeaderFields {
        let contents: [UInt8]
        do throws(SystemError) {
            contents = try File.contents(of: file, limit: maximumBytes)
        } catch { throw Malformed(description: "\(file): \(error)") }
        var fields = HeaderFields()
        for (index, line) in contents.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false)
            .enumerated()
        {
            let line = ASCII.trimmed(line.filter { $0 != UInt8(ascii: "\r") }[...])
            if line.isEmpty { continue }
            guard let colon = line.firstIndex(of: UInt8(ascii: ":")), colon > line.startIndex,
                line[..<colon].allSatisfy(ASCII.isToken),
                line[colon...].allSatisfy({ ASCII.isVisible($0) || $0 == 0x20 })
            else { throw Malformed(description: "\(file):\(index + 1): expected 'name: value'") }
            let name = String(decoding: line[..<colon].map(ASCII.lowercased), as: UTF8.self)
            let isReserved = reserved.contains {
                $0.hasSuffix("-") ? name.hasPrefix($0) : BytewiseString.areEqual($0, name)
            }
            if isReserved { throw Malformed(description: "\(file):\(index + 1): '\(name)' is set by the gateway") }
            fields.append(name: name, String(decoding: ASCII.trimmed(line[(colon + 1)...]), as: UTF8.self))
        }
        return fields
    }
}
