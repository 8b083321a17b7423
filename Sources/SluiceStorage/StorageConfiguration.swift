import Foundation
import Wire

/// How requests to the gateway are made.
///
/// ```swift
/// storage.configuration.certificateAuthorities = authorities
/// storage.configuration.headerFields = ["X-Team": "maps"]
/// ```
public struct StorageConfiguration: Sendable, Equatable, CustomStringConvertible, CustomReflectable {
    /// Fields of each request, such as those required by a proxy in front of the gateway. They are sent to the gateway's own
    /// address only. Those that the library sets itself replace them.
    /// Keys: names of fields in any case.
    public var headerFields: [String: String] = [:]
    /// A PEM file with the authorities that may certify the gateway, instead of the system's. It is read again when it has
    /// changed, as the two below. Only on Linux.
    public var certificateAuthorities: URL?
    /// A PEM file with the chain of the client's certificate, if the gateway asks for one. Only on Linux.
    public var clientCertificate: URL?
    /// A PEM file with the key of that certificate; nil if it is in the same file.
    public var clientKey: URL?

    /// The defaults: no fields, the system's authorities, no certificate.
    public init() {}

    /// The names of the fields without their values, which may be secrets, and the files.
    public var description: String {
        let paths = files.compactMap { $0?.path }
        return "fields: \(headerFields.keys.sorted()), files: \(paths)"
    }

    /// Shows no more by reflection.
    public var customMirror: Mirror {
        Mirror(self, children: ["headerFields": headerFields.keys.sorted(), "files": files])
    }

    /// The files, by which connections are shared.
    var files: [URL?] { [certificateAuthorities, clientCertificate, clientKey] }

    /// The names of fields that describe the message itself.
    private static let reserved = [
        "connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade",
    ]

    /// ``headerFields`` with names in lower case.
    /// - Throws: ``StorageError`` with `invalidArgument` for an invalid field, or a field that frames the message.
    func checkedFields() throws(StorageError) -> [(name: String, value: String)] {
        var fields: [(name: String, value: String)] = []
        for (name, value) in headerFields {
            let lower = name.asciiLowercased()
            let isField =
                !name.isEmpty && name.utf8.allSatisfy(ASCII.isToken) && !value.utf8.contains(where: ASCII.isControl)
            guard isField, !StorageConfiguration.reserved.contains(lower) else {
                throw StorageError(.invalidArgument, "The header field '\(name)' can't be set.")
            }
            fields.append((lower, value))
        }
        return fields
    }
}
