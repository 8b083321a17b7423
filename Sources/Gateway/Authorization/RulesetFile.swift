import SecurityRules

/// Why a file of rules can't be used.
public struct RulesFileError: Error, Sendable, CustomStringConvertible {
    /// For people: what is wrong, and where; several lines where several things are.
    public let description: String
}

extension Ruleset {
    /// Reads and loads a file. Blocks.
    /// - Throws: ``RulesFileError`` where it can't be read, or with every error that it has.
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
            throw RulesFileError(
                description: "\(path) does not load:\n" + findings.joined(separator: "\n"))
        }
    }
}
