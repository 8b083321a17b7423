import Wire
import YAML

/// One of the things that a mapping holds by names that the operator chose: buckets, issuers, tokens, groups.
protocol ConfigurationEntry: Sendable {
    /// The key of the mapping.
    static var section: String { get }
    /// Every key of an entry, below `SECTION.NAME`.
    static var settings: [Setting<Self>] { get }
    /// What such an entry looks like.
    static var example: String { get }
    /// Where the entries are, in the order of their names.
    static var all: WritableKeyPath<Configuration, [Self]> { get }
    var name: String { get }
    init(name: String)
    /// What is wrong with a name; nil where nothing is.
    static func fault(ofName name: String) -> String?
}

extension ConfigurationEntry {
    /// Names of issuers, tokens and groups: they stand in logs and metrics.
    static func fault(ofName name: String) -> String? {
        let isWord = name.utf8.allSatisfy {
            ASCII.isLetter($0) || ASCII.isDigit($0) || "-_.".utf8.contains($0)
        }
        if isWord, (1...64).contains(name.utf8.count) { return nil }
        return "'\(name)' can't be a name here: it has 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.'"
    }

    /// The path of a key of this entry.
    func path(_ key: String) -> String { "\(Self.section).\(name).\(key)" }
}

extension Configuration {
    /// The mappings of entries, in the order they are printed.
    static let sections: [any ConfigurationEntry.Type] = [
        Issuer.self, Token.self, CallerGroup.self, Bucket.self,
    ]

    /// The keys of every entry that there is.
    var entryPaths: [String] { Configuration.sections.flatMap { paths(of: $0) } }

    private func paths<Entry: ConfigurationEntry>(of type: Entry.Type) -> [String] {
        self[keyPath: Entry.all].flatMap { entry in Entry.settings.map { entry.path($0.path) } }
    }

    /// Adds an entry, keeping them in the order of their names.
    mutating func insert<Entry: ConfigurationEntry>(_ entry: Entry) {
        let entries = self[keyPath: Entry.all]
        let place = entries.firstIndex { $0.name > entry.name } ?? entries.endIndex
        self[keyPath: Entry.all].insert(entry, at: place)
    }
}

extension ConfigurationReader {
    /// Reads the mapping of a kind of entries, where the file has it.
    mutating func readEntries<Entry: ConfigurationEntry>(
        _ type: Entry.Type, _ root: [(key: Node, value: Node)]
    ) {
        let section = Entry.section
        guard let (key, value) = root.first(where: { $0.key.scalar?.string == section }) else {
            return
        }
        found(section, at: key)
        guard let mapping = value.mapping else {
            let kind = section == "buckets" ? "bucket names" : "names"
            return refuse(section, input(value).mismatch("a mapping of \(kind)"), at: value)
        }
        for (key, value) in mapping {
            let name = key.scalar?.string ?? ""
            if let fault = Entry.fault(ofName: name) {
                refuse(section, SettingError(message: fault), at: key)
                continue
            }
            let path = "\(section).\(name)"
            found(path, at: key)
            var entry = Entry(name: name)
            if let inner = value.mapping {
                read(inner, path + ".", Entry.settings, into: &entry)
            } else {
                let form = "a mapping such as \(Entry.example)"
                // What stands in place of a token's entry may be the token, and is not quoted.
                let error =
                    Entry.self == Configuration.Token.self
                    ? SettingError(message: "expected \(form)") : input(value).mismatch(form)
                refuse(path, error, at: value)
            }
            result.insert(entry)
        }
    }

    /// Adds the entry that a flag names where the file does not have it.
    mutating func addEntry<Entry: ConfigurationEntry>(
        _ type: Entry.Type, of flag: Configuration.Override
    ) {
        guard let (name, _) = Self.entrySetting(type, flag.path),
            Entry.fault(ofName: name) == nil,
            !result[keyPath: Entry.all].contains(where: { $0.name == name })
        else { return }
        result.insert(Entry(name: name))
        found("\(Entry.section).\(name)", in: flag)
    }

    /// Sets a key of an entry; false where the path is none.
    mutating func applyEntry<Entry: ConfigurationEntry>(
        _ type: Entry.Type, _ path: String, _ input: ConfigurationInput
    ) -> Bool {
        guard let (name, setting) = Self.entrySetting(type, path),
            let index = result[keyPath: Entry.all].firstIndex(where: { $0.name == name })
        else { return false }
        var copy = result[keyPath: Entry.all][index]
        set(setting, path, input, &copy)
        result[keyPath: Entry.all][index] = copy
        return true
    }

    /// The name of an entry, which may have dots, and the setting that the path ends with.
    private static func entrySetting<Entry: ConfigurationEntry>(
        _ type: Entry.Type, _ path: String
    ) -> (String, Setting<Entry>)? {
        guard path.hasPrefix(Entry.section + ".") else { return nil }
        let rest = path.dropFirst(Entry.section.count + 1)
        return Entry.settings
            .filter { rest.hasSuffix("." + $0.path) && rest.count > $0.path.count + 1 }
            .max { $0.path.count < $1.path.count }
            .map { (String(rest.dropLast($0.path.count + 1)), $0) }
    }
}
