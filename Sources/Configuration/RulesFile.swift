import SecurityRules

/// Why a rules file can't be used.
public struct RulesFileError: Error, Sendable, CustomStringConvertible {
    /// The errors with their locations, for people. There can be several lines.
    public let description: String
}

extension Ruleset {
    /// Reads and compiles a file. Blocks.
    /// - Throws: ``RulesFileError`` if the file can't be read, or with all errors in it.
    public static func load(file path: String) throws(RulesFileError) -> Ruleset {
        let source: String
        do throws(SettingError) {
            source = try ConfigurationReader.contents(of: path)
        } catch {
            throw RulesFileError(description: "\(path) \(error.message)")
        }
        do throws(RulesetError) {
            return try load(source: source, fileName: path)
        } catch {
            let findings = error.diagnostics.rendered(source: source)
            throw RulesFileError(description: "\(path) does not load:\n" + findings.joined(separator: "\n"))
        }
    }
}
