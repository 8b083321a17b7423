import Foundation
import Testing

@testable import SecurityRules

/// The language reference agrees with the table of functions.
@Suite struct ReferenceTests {
    @Test func agreesWithTheTable() throws {
        let file = URL(filePath: #filePath).deletingLastPathComponent().appending(
            path: "../../Sources/SecurityRules/SecurityRules.docc/LanguageReference.md")
        let text = try String(contentsOf: file, encoding: .utf8)
        let start = try #require(text.firstRange(of: "### Functions"))
        #expect(text[start.lowerBound...] == Library.reference[...], "\(Library.reference)")
    }

    @Test func namesEveryTypeAndProperty() throws {
        let file = URL(filePath: #filePath).deletingLastPathComponent().appending(
            path: "../../Sources/SecurityRules/SecurityRules.docc/LanguageReference.md")
        let text = try String(contentsOf: file, encoding: .utf8)
        for type in TypeName.allCases { #expect(text.contains(type.rawValue), "\(type)") }
        for field in ObjectField.allCases { #expect(text.contains("`\(field.key)`"), "\(field)") }
        for key in RequestField.keys { #expect(text.contains("`\(key.string)`"), "\(key.string)") }
    }
}
