import ClientCommands
import Foundation
import SluiceStorage
import Wire

extension Stat: Verb {
    func perform() async throws -> Int32 {
        try await MetadataOutput(connection, json: json).each(sources) { object in
            try await object.reference.getMetadata()
        }
    }
}

extension MetaSet: Verb {
    func perform() async throws -> Int32 {
        try await MetadataOutput(connection, json: json, isSilent: !json).each([source]) { object in
            let metadata = StorageMetadata()
            // Keys: names of the user.
            var custom: [String: String] = [:]
            for (key, value) in pairs where !metadata.set(key, value) {
                custom[String(key.dropFirst(Meta.custom.count))] = value
            }
            if !custom.isEmpty { metadata.customMetadata = custom }
            return try await object.reference.updateMetadata(metadata)
        }
    }
}

extension MetaUnset: Verb {
    func perform() async throws -> Int32 {
        try await MetadataOutput(connection, json: json, isSilent: !json).each([source]) { object in
            let metadata = StorageMetadata()
            for key in keys where !metadata.set(key, nil) {
                metadata.removeCustomMetadata(String(key.dropFirst(Meta.custom.count)))
            }
            return try await object.reference.updateMetadata(metadata)
        }
    }
}

extension StorageMetadata {
    /// - Returns: Whether the key names a property.
    fileprivate func set(_ key: String, _ value: String?) -> Bool {
        switch key {
        case "contentType": contentType = value
        case "cacheControl": cacheControl = value
        case "contentDisposition": contentDisposition = value
        case "contentEncoding": contentEncoding = value
        case "contentLanguage": contentLanguage = value
        default: return false
        }
        return true
    }
}

/// Prints metadata.
private struct MetadataOutput {
    private let gateways: Gateways
    private let report: Report
    private let isJSON: Bool
    private let isSilent: Bool

    init(_ connection: ConnectionOptions, json: Bool, isSilent: Bool = false) throws {
        gateways = try Gateways(connection)
        report = Report(json: json, quiet: true)
        isJSON = json
        self.isSilent = isSilent
    }

    /// Prints the metadata that `body` returns for each object.
    func each(
        _ sources: [String], _ body: (RemoteObject) async throws -> StorageMetadata
    ) async throws -> Int32 {
        var isFirst = true
        try await report.each(sources, "stat") { source in
            try await gateways.remote(source).objects(isRecursive: false) { object in
                let metadata = try await body(object)
                if isSilent { return }
                if !isFirst, !isJSON { Output.write("\n", STDOUT_FILENO) }
                isFirst = false
                Output.write(isJSON ? metadata.json + "\n" : metadata.lines, STDOUT_FILENO)
            }
        }
        return report.end()
    }
}

extension StorageMetadata {
    private var properties: [(key: String, value: String?)] {
        [
            ("bucket", bucket), ("path", path), ("size", "\(size)"),
            ("contentType", contentType), ("cacheControl", cacheControl),
            ("contentDisposition", contentDisposition), ("contentEncoding", contentEncoding),
            ("contentLanguage", contentLanguage),
            ("timeCreated", timeCreated.map(Text.rfc3339)), ("updated", updated.map(Text.rfc3339)),
            ("generation", "\(generation)"), ("metageneration", "\(metageneration)"),
            ("md5Hash", md5Hash), ("crc32c", crc32c),
        ]
    }

    /// Custom metadata in the order of its keys.
    private var pairs: [(key: String, value: String)] {
        (customMetadata ?? [:]).map { (key: $0.key, value: $0.value) }
            .sorted { BytewiseString($0.key) < BytewiseString($1.key) }
    }

    /// One property per line.
    fileprivate var lines: String {
        var text = ""
        for case (let key, let value?) in properties { text += "\(key): \(Output.shown(value))\n" }
        for pair in pairs {
            text += "\(Meta.custom)\(Output.shown(pair.key)): \(Output.shown(pair.value))\n"
        }
        return text
    }

    /// One line.
    fileprivate var json: String {
        var json = JSONWriter(reserving: 512)
        json.beginObject()
        for case (let key, let value?) in properties {
            if key == "size" { json.member("size", size) } else { json.member(key: key, value) }
        }
        if !pairs.isEmpty {
            json.key("customMetadata")
            json.beginObject()
            for pair in pairs { json.member(key: pair.key, pair.value) }
            json.endObject()
        }
        json.endObject()
        return String(decoding: json.bytes, as: UTF8.self)
    }
}

extension Text {
    /// RFC 3339 in UTC, with milliseconds.
    static func rfc3339(_ date: Date) -> String {
        HTTPDate.rfc3339(milliseconds: Int64((date.timeIntervalSince1970 * 1000).rounded()))
    }
}
