import Glibc
import Wire

/// The environment of this process.
public enum Environment {
    /// All variables; the last one of a repeated name.
    public static func variables() -> [BytewiseString: String] {
        var variables: [BytewiseString: String] = [:]
        var entry = environ
        while let pointer = entry.pointee {
            let text = String(cString: pointer)
            if let equals = text.firstIndex(of: "=") {
                variables[String(text[..<equals])] = String(text[text.index(after: equals)...])
            }
            entry += 1
        }
        return variables
    }
}
