import Configuration

/// The token for changes at the operator's listener: the only line of a file.
enum OperatorToken {
    /// The fewest characters of a token.
    private static let shortest = 16

    struct Malformed: Error, CustomStringConvertible {
        let description =
            "error: expected a token of at least \(OperatorToken.shortest) letters, digits and signs in one line"
    }

    /// - Throws: An error with the file's name.
    static func read(_ path: String) throws(TextFile.Failure) -> String {
        try TextFile.read(path) { (text) throws(Malformed) in
            let line = text.utf8.last == UInt8(ascii: "\n") ? text.dropLast() : text[...]
            guard line.utf8.count >= shortest, line.utf8.allSatisfy({ (0x21...0x7e).contains($0) })
            else { throw Malformed() }
            return String(line)
        }
    }
}

extension Configuration {
    /// The token for changes at the operator's listener; nil if none is configured.
    func operatorTokenText() throws(TextFile.Failure) -> String? {
        guard let operatorToken else { return nil }
        return try OperatorToken.read(operatorToken)
    }
}
