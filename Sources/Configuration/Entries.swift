import Gateway
import Wire
import YAML

/// A named entry of a mapping whose names the operator chooses: a bucket, an issuer, a token, a caller
/// group or a webhook.
protocol ConfigurationEntry: Sendable {
    /// The key of the mapping.
    static var section: String { get }
    /// The keys of an entry, below `SECTION.NAME`.
    static var settings: [Setting<Self>] { get }
    /// An example of an entry's value, for error messages.
    static var example: String { get }
    /// The property with all entries, sorted by name.
    static var all: WritableKeyPath<Configuration, [Self]> { get }
    var name: String { get }
    init(name: String)
    /// Why an entry can't have this name; nil if it can.
    static func fault(ofName name: String) -> String?
}

extension ConfigurationEntry {
    /// Issuers, tokens and caller groups are named alike.
    static func fault(ofName name: String) -> String? { CallerGroup.fault(ofName: name) }

    /// The full path of one of this entry's keys.
    func path(_ key: String) -> String { "\(Self.section).\(name).\(key)" }
}

extension Configuration {
    /// The kinds of entries, in the order in which they are printed.
    static let sections: [any ConfigurationEntry.Type] = [
        Issuer.self, Token.self, CallerGroup.self, EventSink.self, Bucket.self,
    ]

    /// The full paths of the keys of all entries.
    var entryPaths: [String] { Configuration.sections.flatMap { paths(of: $0) } }

    private func paths<Entry: ConfigurationEntry>(of type: Entry.Type) -> [String] {
        self[keyPath: Entry.all].flatMap { entry in Entry.settings.map { entry.path($0.path) } }
    }

    /// Inserts an entry in the order of names.
    mutating func insert<Entry: ConfigurationEntry>(_ entry: Entry) {
        let entries = self[keyPath: Entry.all]
        let index = entries.firstIndex { $0.name > entry.name } ?? entries.endIndex
        self[keyPath: Entry.all].insert(entry, at: index)
    }
}

extension ConfigurationReader {
    /// Reads all entries of one kind, if the file has their section.
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
            return reject(section, input(value).mismatch("a mapping of \(kind)"), at: value)
        }
        for (key, value) in mapping {
            let name = key.scalar?.string ?? ""
            if let fault = Entry.fault(ofName: name) {
                reject(section, SettingError(message: fault), at: key)
                continue
            }
            let path = "\(section).\(name)"
            found(path, at: key)
            var entry = Entry(name: name)
            if let inner = value.mapping {
                read(inner, path + ".", Entry.settings, into: &entry)
            } else {
                let form = "a mapping such as \(Entry.example)"
                // Don't quote the value of a malformed token entry: it may be the token itself.
                let error =
                    Entry.self == Configuration.Token.self
                    ? SettingError(message: "expected \(form)") : input(value).mismatch(form)
                reject(path, error, at: value)
            }
            result.insert(entry)
        }
    }

    /// Adds the entry that a flag names if the file does not have it.
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

    /// Sets a key of an entry; returns false if the path does not name one.
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

    /// Splits a path into an entry's name, which may contain dots, and the setting at its end.
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
