import ClientCommands
import Foundation
import SluiceStorage
import Wire

/// An object that an argument names.
struct RemoteObject: Sendable {
    let reference: StorageReference
    /// What a list says of it; nil if it was named itself.
    let listed: StorageListedObject?
    /// Its name below the folder that the argument names; its last segment if it was named itself.
    let relative: String

    /// The same object without what a list says of it.
    var named: RemoteObject {
        RemoteObject(reference: reference, listed: nil, relative: relative)
    }

    /// Whether the gateway can copy it to this target.
    func isAtGateway(of target: StorageReference) -> Bool { reference.storage.isAtGateway(of: target.storage) }

    /// Opens it for reading.
    func open() async throws -> StorageReader {
        if let listed { return try await StorageReader(listed) }
        return try await StorageReader(reference)
    }

    /// ``text(_:)`` of the object.
    var text: String { RemoteObject.text(reference) }

    /// Whether its name has an empty segment, which a target can't have: two names would become one.
    var hasEmptySegments: Bool {
        relative.utf8.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false).contains(where: \.isEmpty)
    }

    /// An object or folder as an argument: `sluice://BUCKET/PATH`, or its URL if it is at another gateway.
    static func text(_ reference: StorageReference) -> String {
        let text = "sluice://\(reference.bucket)/\(reference.fullPath)"
        let isRoot = reference.fullPath.isEmpty
        guard let gateway = Gateways.plain.withLock({ $0 }),
            let found = try? (isRoot ? reference.child("o") : reference).objectURL()
        else { return text }
        let url = found.absoluteString
        if url.hasPrefix("\(gateway)/b/") { return text }
        return isRoot ? String(url.dropLast()) : url
    }
}

/// All objects of a folder, page by page.
struct RemoteObjects {
    private let folder: StorageReference
    private let isRecursive: Bool
    private var page: [StorageListedObject] = []
    private var index = 0
    private var token: String?
    private var isAtEnd = false

    init(_ folder: StorageReference, isRecursive: Bool) {
        self.folder = folder
        self.isRecursive = isRecursive
    }

    /// In the order of their paths' bytes.
    mutating func next() async throws(StorageError) -> StorageListedObject? {
        while index == page.count {
            if isAtEnd { return nil }
            let listing = try await folder.listing(recursive: isRecursive, pageToken: token)
            (page, index) = (listing.objects, 0)
            token = listing.pageToken
            isAtEnd = token == nil
        }
        index += 1
        return page[index - 1]
    }

    /// The name of an object below a folder.
    static func relative(_ object: StorageReference, below folder: StorageReference) -> String {
        let count = folder.fullPath.isEmpty ? 0 : folder.fullPath.utf8.count + 1
        return String(decoding: object.fullPath.utf8.dropFirst(count), as: UTF8.self)
    }
}

extension RemotePath {
    /// The same path if it is no pattern.
    /// - Throws: ``ClientError`` if it names a folder or is a pattern.
    func object() throws -> StorageReference {
        guard Glob(path) == nil else {
            throw ClientError(.failure, "'\(text)': a pattern can't be used here. Name one object.")
        }
        guard !isFolder else {
            throw ClientError(.failure, "'\(text)' is a folder: name an object in it.")
        }
        return storage.reference(withPath: Glob.unescaped(path))
    }

    /// The path as a folder. It is never a pattern.
    func folder() throws -> StorageReference {
        guard Glob(path) == nil else {
            throw ClientError(.failure, "'\(text)': a pattern can't be used here. Name a folder.")
        }
        return storage.reference(withPath: Glob.unescaped(path))
    }

    /// What all objects that the path names are in, or are themselves.
    var scope: StorageReference {
        storage.reference(withPath: Glob(path)?.folder ?? Glob.unescaped(path))
    }

    /// Submits the objects that the path names.
    /// - Parameter isRecursive: Whether a folder includes everything below it.
    func objects(isRecursive: Bool, _ submit: (RemoteObject) async throws -> Void) async throws {
        if let glob = Glob(path) { return try await matches(glob, submit) }
        let reference = storage.reference(withPath: Glob.unescaped(path))
        guard isRecursive else {
            guard !isFolder else {
                throw ClientError(.failure, "'\(text)' is a folder: add -R to take everything in it.")
            }
            return try await submit(RemoteObject(reference: reference, listed: nil, relative: reference.name))
        }
        var isFound = false
        var objects = RemoteObjects(reference, isRecursive: true)
        while let object = try await objects.next() {
            isFound = true
            try await submit(
                RemoteObject(
                    reference: object.reference, listed: object,
                    relative: RemoteObjects.relative(object.reference, below: reference)))
        }
        if isFound || reference.fullPath.isEmpty { return }
        guard !isFolder else { throw notFound }
        try await submit(RemoteObject(reference: reference, listed: nil, relative: reference.name))
    }

    private func matches(_ glob: Glob, _ submit: (RemoteObject) async throws -> Void) async throws {
        let folder = storage.reference(withPath: glob.folder)
        var objects = RemoteObjects(folder, isRecursive: glob.isRecursive)
        var isFound = false
        while let object = try await objects.next() {
            guard glob.matches(object.reference.fullPath) else { continue }
            isFound = true
            try await submit(
                RemoteObject(
                    reference: object.reference, listed: object,
                    relative: RemoteObjects.relative(object.reference, below: folder)))
        }
        if !isFound { throw notFound }
    }

    var notFound: ClientError {
        ClientError(.notFound, "\(text): there is no such object. See what is there with 'sluice ls'.")
    }
}
