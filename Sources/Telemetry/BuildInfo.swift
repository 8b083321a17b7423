import CBuild
import Wire

/// The build of this program, for `--version`, `/version` and the metric `sluice_build_info`.
public struct BuildInfo: Sendable, Equatable, CustomStringConvertible {
    /// The version of Sluice.
    public var version: String
    /// The compiler's version, as far as conditional compilation can detect it.
    public var swift: String
    /// The commit that was built, with `-dirty` if files were changed; nil if the build did not say.
    public var commit: String?
    /// The date of the commit, `2026-01-31`; nil if the build did not say.
    public var date: String?

    /// This program. The version is written here only.
    public static let current = BuildInfo(
        version: "0.1.0", commit: String(cString: sluice_build_commit()), date: String(cString: sluice_build_date()))

    /// - Parameters:
    ///   - commit: Empty if it is not known.
    ///   - date: Empty if it is not known.
    public init(version: String, commit: String = "", date: String = "") {
        self.version = version
        self.commit = commit.isEmpty ? nil : commit
        self.date = date.isEmpty ? nil : date
        #if compiler(>=6.4)
            swift = "6.4+"
        #elseif compiler(>=6.3)
            swift = "6.3"
        #else
            swift = "6.2"
        #endif
    }

    /// The version, and commit and date if they are known: `0.1.0 (0a1b2c3d4e5f, 2026-01-31)`.
    public var description: String {
        let origin = [commit, date].compactMap(\.self)
        return origin.isEmpty ? version : "\(version) (\(origin.joined(separator: ", ")))"
    }
}
