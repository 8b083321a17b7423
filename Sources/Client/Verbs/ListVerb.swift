import ClientCommands
import Foundation
import SluiceStorage
import Wire

extension List: Verb {
    func perform() async throws -> Int32 {
        let gateways = try Gateways(connection)
        let report = Report(json: json, quiet: true)
        var arguments = paths
        if arguments.isEmpty {
            guard let bucket = gateways.bucket else {
                throw ClientError(.failure, "Name a bucket or a folder, or set SLUICE_BUCKET.")
            }
            arguments = ["sluice://\(bucket)"]
        }
        try await report.each(arguments, "list") { argument in
            let path = try gateways.remote(argument)
            if let glob = Glob(path.path) {
                try await list(path, glob)
            } else {
                try await list(path)
            }
        }
        return report.end()
    }

    private func list(_ path: RemotePath, _ glob: Glob) async throws {
        let folder = path.storage.reference(withPath: glob.folder)
        try await path.objects(isRecursive: false) { object in
            if let listed = object.listed { show(listed, below: folder) }
        }
    }

    private func list(_ path: RemotePath) async throws {
        let folder = try path.folder()
        var token: String?
        var isEmpty = true
        repeat {
            let page = try await folder.listing(recursive: recursive, pageToken: token)
            isEmpty = isEmpty && page.prefixes.isEmpty && page.objects.isEmpty
            show(page, below: folder)
            token = page.pageToken
        } while token != nil
        guard isEmpty, !folder.fullPath.isEmpty else { return }
        guard !path.isFolder else { throw path.notFound }
        let object = StorageListedObject(folder, try await folder.getMetadata())
        show(object, below: folder.parent() ?? folder)
    }

    /// Folders and objects, in the order of their names' bytes.
    private func show(_ page: StorageListing, below folder: StorageReference) {
        var folders = page.prefixes[...]
        for object in page.objects {
            while let first = folders.first,
                first.fullPath.utf8.lexicographicallyPrecedes(object.reference.fullPath.utf8)
            {
                show(first, below: folder)
                folders = folders.dropFirst()
            }
            show(object, below: folder)
        }
        for rest in folders { show(rest, below: folder) }
    }

    private func show(_ prefix: StorageReference, below folder: StorageReference) {
        if json {
            var json = JSONWriter(reserving: 128)
            json.beginObject()
            json.member("type", "folder")
            json.member("bucket", prefix.bucket)
            json.member("path", prefix.fullPath + "/")
            json.endObject()
            return Output.write(String(decoding: json.bytes, as: UTF8.self) + "\n", STDOUT_FILENO)
        }
        let name = Output.shown(RemoteObjects.relative(prefix, below: folder)) + "/"
        Output.write(long ? columns("", "", name) : "\(name)\n", STDOUT_FILENO)
    }

    private func show(_ object: StorageListedObject, below folder: StorageReference) {
        if json { return Output.write(object.json + "\n", STDOUT_FILENO) }
        let name = Output.shown(RemoteObjects.relative(object.reference, below: folder))
        guard long else { return Output.write("\(name)\n", STDOUT_FILENO) }
        let size = object.size.map { "\($0)" } ?? "-"
        Output.write(columns(size, object.updated.map(Text.time) ?? "-", name), STDOUT_FILENO)
    }

    private func columns(_ size: String, _ time: String, _ name: String) -> String {
        let left = String(repeating: " ", count: max(0, 12 - size.utf8.count)) + size
        let right = time + String(repeating: " ", count: max(0, 12 - time.utf8.count))
        return "\(left)  \(right)  \(name)\n"
    }
}

extension StorageListedObject {
    /// As one line of JSON.
    fileprivate var json: String {
        var json = JSONWriter(reserving: 256)
        json.beginObject()
        json.member("type", "object")
        json.member("bucket", reference.bucket)
        json.member("path", reference.fullPath)
        if let size { json.member("size", size) }
        if let updated { json.member("updated", Text.rfc3339(updated)) }
        if let generation { json.member("generation", "\(generation)") }
        if let contentType { json.member("contentType", contentType) }
        if let md5Hash { json.member("md5Hash", md5Hash) }
        if let crc32c { json.member("crc32c", crc32c) }
        json.endObject()
        return String(decoding: json.bytes, as: UTF8.self)
    }
}
