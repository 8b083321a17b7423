import Glibc

/// The machine, or the container.
public enum Host {
    /// Its name, at most 255 bytes; empty if it is unknown.
    public static let name: String = {
        var buffer = [CChar](repeating: 0, count: 256)
        guard gethostname(&buffer, buffer.count - 1) == 0 else { return "" }
        return String(decoding: buffer.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
    }()
}
