import Buckets
import Wire

extension AttributePatch {
    /// The maximum size of a patch in bytes.
    static let maximumBytes = 64 * 1024

    /// Parses a JSON Merge Patch (RFC 7396) of the writable properties.
    /// - Throws: ``Problem`` with `invalid-argument` that names the invalid property. Nothing is changed then.
    init(mergePatch text: [UInt8]) throws(Problem) {
        self.init()
        for member in try JSONReader.members(of: text) { try take(member) }
    }

    private mutating func take(_ member: JSONMember) throws(Problem) {
        switch member.key {
        case "contentType": contentType = try AttributePatch.change(member)
        case "cacheControl": cacheControl = try AttributePatch.change(member)
        case "contentDisposition": contentDisposition = try AttributePatch.change(member)
        case "contentEncoding": contentEncoding = try AttributePatch.change(member)
        case "contentLanguage": contentLanguage = try AttributePatch.change(member)
        case "customMetadata": try takeCustom(member.value)
        case "bucket", "fullPath", "name", "generation", "metageneration", "size", "timeCreated",
            "updated", "etag", "md5Hash", "crc32c":
            throw Problem(.invalidArgument, "\(member.key) is read-only.")
        default:
            throw Problem(.invalidArgument, "'\(member.key.prefix(64))' is not a property.")
        }
    }

    /// Parses the change of one property.
    /// - Parameter unset: A value that means that the property is not set.
    static func change(_ member: JSONMember, unset: [String] = []) throws(Problem) -> Change {
        switch member.value {
        case .null: return .remove
        case .string(let value):
            if unset.contains(value) { return .remove }
            try ObjectAttributes.checkField(value, member.key)
            return .set(value)
        default:
            throw Problem(.invalidArgument, "\(member.key) is a string, or null to remove it.")
        }
    }

    private mutating func takeCustom(_ value: JSONValue) throws(Problem) {
        if value == .null {
            clearCustomMetadata = true
            return
        }
        guard case .object(let pairs) = value else {
            throw Problem(.invalidArgument, "customMetadata is an object of strings, or null.")
        }
        for pair in pairs {
            let key = BytewiseString(pair.key)
            switch pair.value {
            case .null:
                try ObjectAttributes.checkKey(pair.key)
                customMetadata[key] = .some(nil)
            case .string(let value):
                try ObjectAttributes.checkPair(pair.key, value)
                customMetadata[key] = value
            default:
                let name = "customMetadata.\(pair.key.prefix(64))"
                throw Problem(.invalidArgument, "\(name) is a string, or null to remove it.")
            }
        }
        let new = customMetadata.compactMapValues { $0 }
        try ObjectAttributes.checkSize(new)
    }

    /// Whether the existing custom metadata counts towards the limit after this patch.
    var addsCustomMetadata: Bool {
        !clearCustomMetadata && customMetadata.contains { $0.value != nil }
    }
}
