import Foundation
import Wire

extension StorageReference {
    // MARK: Metadata

    /// Returns the object's metadata.
    public func getMetadata() async throws(StorageError) -> StorageMetadata {
        let request = HTTPRequest("GET", try url("?metadata"))
        return try await operation { requests throws(StorageError) in
            try await requests.call(request) { StorageMetadata(json: $0.body, of: fullPath) }
        }
    }

    /// Changes the properties that were set in `metadata`, and removes those that were set to nil.
    /// - Returns: The metadata after the change.
    @discardableResult
    public func updateMetadata(_ metadata: StorageMetadata) async throws(StorageError)
        -> StorageMetadata
    {
        try await updateMetadata(metadata.values)
    }

    func updateMetadata(_ metadata: MetadataValues) async throws(StorageError) -> StorageMetadata {
        var request = HTTPRequest("PATCH", try url())
        request.fields = [("Content-Type", "application/merge-patch+json")]
        request.body = metadata.patch
        return try await operation { [request] requests throws(StorageError) in
            try await requests.call(request) { StorageMetadata(json: $0.body, of: fullPath) }
        }
    }

    /// Deletes the object. A retry that finds no object succeeds, because an earlier attempt has deleted it.
    public func delete() async throws(StorageError) {
        let request = HTTPRequest("DELETE", try url())
        try await operation { requests throws(StorageError) in
            try await requests.call(request, [204]) { _ in () }
        }
    }

    /// Returns a URL that lets anyone download the object until it expires: a signed link of the gateway, which needs
    /// `links.keys` in its configuration. The rules must allow the caller to `get` the object.
    /// - Parameter expiresIn: Seconds, at most the gateway's `links.maximumLifetime`; 900 by default.
    public func downloadURL(expiresIn: Int = 900) async throws(StorageError) -> URL {
        var request = HTTPRequest("POST", try url("?sign"))
        request.fields = [("Content-Type", "application/json")]
        request.body = Array(#"{"method": "GET", "expiresIn": \#(expiresIn)}"#.utf8)
        return try await operation { [request] requests throws(StorageError) in
            try await requests.call(request) { response throws(StorageError) in
                guard let json = try? JSONReader.parse(response.body),
                    let path = json["path"]?.text
                else { return nil }
                return try storage.endpoint.absolute(path)
            }
        }
    }

    // MARK: Lists

    /// The first entries of the folder.
    /// - Parameter maxResults: The maximum number of folders and objects, from 1 to 1,000.
    public func list(maxResults: Int64) async throws(StorageError) -> StorageListResult {
        try await page(maxResults, nil)
    }

    /// The entries of the folder that follow a page.
    /// - Parameters:
    ///   - maxResults: The maximum number of folders and objects, from 1 to 1,000.
    ///   - pageToken: ``StorageListResult/pageToken`` of that page.
    public func list(maxResults: Int64, pageToken: String) async throws(StorageError)
        -> StorageListResult
    {
        try await page(maxResults, pageToken)
    }

    /// All folders and objects directly in this folder, in memory. Use ``list(maxResults:)`` for large folders.
    public func listAll() async throws(StorageError) -> StorageListResult {
        var (prefixes, items): ([StorageReference], [StorageReference]) = ([], [])
        var token: String?
        repeat {
            let next = try await page(1000, token)
            prefixes += next.prefixes
            items += next.items
            token = next.pageToken
        } while token != nil
        return StorageListResult(prefixes: prefixes, items: items, pageToken: nil)
    }

    private func page(_ maxResults: Int64, _ token: String?) async throws(StorageError)
        -> StorageListResult
    {
        guard (1...1000).contains(maxResults) else {
            throw StorageError(.invalidArgument, "maxResults is from 1 to 1000.")
        }
        let page = try await page("delimiter=%2F&maxResults=\(maxResults)", token)
        return StorageListResult(
            prefixes: page.prefixes, items: page.objects.map(\.reference), pageToken: page.pageToken)
    }

    // MARK: Running

    /// Runs an operation, and cancels it if its task is cancelled.
    func operation<Value: Sendable>(
        _ body: (Requests) async throws(StorageError) -> Value
    ) async throws(StorageError) -> Value {
        let control = TransferControl()
        let requests = Requests(storage: storage, control: control)
        let result = await withTaskCancellationHandler {
            do throws(StorageError) {
                return Result<Value, StorageError>.success(try await body(requests))
            } catch {
                return .failure(error)
            }
        } onCancel: {
            control.cancel()
        }
        return try result.get()
    }
}

/// A page of a folder.
public final class StorageListResult: Sendable {
    /// Folders.
    public let prefixes: [StorageReference]
    /// Objects.
    public let items: [StorageReference]
    /// Continues the list; nil if nothing follows.
    public let pageToken: String?

    init(prefixes: [StorageReference], items: [StorageReference], pageToken: String?) {
        (self.prefixes, self.items, self.pageToken) = (prefixes, items, pageToken)
    }

    /// Another object with the same properties: a ``StorageListResult``.
    public func copy() -> Any {
        StorageListResult(prefixes: prefixes, items: items, pageToken: pageToken)
    }
}
