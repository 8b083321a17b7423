import ClientCommands
import Foundation
import SluiceStorage
import Wire

extension Copy: Verb {
    func perform() async throws -> Int32 {
        let transfers = try Transfers(self.transfers, connection)
        let gateways = transfers.gateways
        // One target belongs to all sources, so the rule for it is applied to each pair.
        let pairs = try sources.map { try gateways.locations($0, target) }
        var files: [String] = []
        var objects: [RemotePath] = []
        for (source, _) in pairs {
            switch source {
            case .local(let path): files.append(path)
            case .remote(let path): objects.append(path)
            case .standard: files.append("-")
            }
        }
        guard files.isEmpty || objects.isEmpty, let end = pairs.first?.1 else {
            throw ClientError(.failure, "The sources are local and remote: copy them one after another.")
        }
        let isRecursive = recursive.recursive
        switch end {
        case .standard:
            guard files.isEmpty else {
                throw ClientError(.failure, "Only objects can be written to standard output.")
            }
            return await transfers.print(objects)
        case .remote(let target) where files.contains("-"):
            guard files.count == 1 else {
                throw ClientError(.failure, "Standard input can't be sent together with files.")
            }
            return try await transfers.putStandardInput(try target.object(), StorageMetadata())
        case .local(let target):
            guard files.isEmpty else {
                throw ClientError(
                    .failure,
                    "'\(target)' is local, like the source: write sluice://BUCKET/PATH for a remote one."
                )
            }
            return await transfers.run { submit in
                try await transfers.downloads(
                    objects, to: target, isRecursive: isRecursive, submit)
            }
        case .remote(let target):
            return await transfers.run { submit in
                if files.isEmpty {
                    try await transfers.copies(objects, to: target, isRecursive: isRecursive, isMove: false, submit)
                } else {
                    try await transfers.uploads(files, to: target, StorageMetadata(), isRecursive: isRecursive, submit)
                }
            }
        }
    }
}

extension Move: Verb {
    func perform() async throws -> Int32 {
        let transfers = try Transfers(self.transfers, connection)
        let sources = try self.sources.map(transfers.gateways.remote)
        let target = try transfers.gateways.remote(target)
        return await transfers.run { submit in
            try await transfers.copies(sources, to: target, isRecursive: recursive.recursive, isMove: true, submit)
        }
    }
}

extension Transfers {
    /// Submits the copies of objects and folders from bucket to bucket.
    func copies(
        _ sources: [RemotePath], to target: RemotePath, isRecursive: Bool, isMove: Bool,
        _ submit: (Job) async throws -> Void
    ) async throws {
        let folder = try target.folder()
        // What is copied into a list that is still read would be found there: all lists come first, so not all that they
        // say of each object is kept.
        var found: [(object: RemoteObject, target: StorageReference)] = []
        for source in sources {
            try await each(source.text, isMove ? "move" : "copy") {
                let isPattern = Glob(source.path) != nil
                let base =
                    isRecursive && sources.count > 1 && !isPattern
                    ? folder.child(source.reference.name) : folder
                try await source.objects(isRecursive: isRecursive) { object in
                    let isNamed = object.listed == nil
                    let isFolder = target.isFolder || sources.count > 1 || isPattern
                    let path =
                        isNamed && !isFolder
                        ? folder : (isNamed ? folder : base).child(object.relative)
                    found.append((object.named, path))
                }
            }
        }
        // The gateway itself knows whether it can move.
        let others = found.filter { !$0.object.isAtGateway(of: $0.target) }
        if isMove, await !canDelete(others.map(\.object.reference)) { return }
        let overlaps = sources.contains { $0.scope.overlaps(folder) }
        let identities = Set(overlaps ? found.map { BytewiseString($0.object.reference.identity) } : [])
        for (object, path) in found {
            var job = copyJob(object, to: path, isMove: isMove)
            if overlaps, identities.contains(BytewiseString(path.identity)) {
                job = job.performing { _ in
                    throw ClientError(
                        .failure,
                        "\(object.text): the target \(RemoteObject.text(path)) is itself a source of this command, and would be overwritten."
                    )
                }
            }
            try await submit(sources.count > 1 ? targets.claim(job, of: object.reference.identity) : job)
        }
    }

    /// Finds out whether the sources' stores can delete one version only: if not, everything would be copied, and nothing be
    /// deleted. Sends each bucket a deletion of a version of an object that does not exist.
    /// - Returns: false after a report if a store can't. If the rules do not let this be known, the first deletion shows it.
    private func canDelete(_ sources: [StorageReference]) async -> Bool {
        var known: Set<BytewiseString> = []
        for source in sources where known.insert(BytewiseString(source.bucketIdentity)).inserted {
            let absent = (source.parent() ?? source.root()).child("sluice-mv-\(UUID().uuidString)")
            do throws(StorageError) {
                try await absent.delete(ifGeneration: 1)
            } catch {
                guard error.status == 501 else { continue }
                let text = RemoteObject.text(source)
                report.failed(ObjectCopy.cannotDelete(text, "nothing was moved"), "move", text)
                return false
            }
        }
        return true
    }
}

extension Remove: Verb {
    func perform() async throws -> Int32 {
        let transfers = try Transfers(self.transfers, connection)
        let sources = try self.sources.map(transfers.gateways.remote)
        return await transfers.run { submit in
            for source in sources {
                try await transfers.each(source.text, "delete") {
                    // This is usually a mistake: an empty variable in the path.
                    guard !source.path.isEmpty || ArgumentForm(source.text) == .remote else {
                        throw ClientError(
                            .failure,
                            "'\(source.text)' is the whole bucket: write sluice://\(source.reference.bucket) to delete everything in it."
                        )
                    }
                    var batch: [StorageListedObject] = []
                    try await source.objects(isRecursive: recursive.recursive) { object in
                        guard let listed = object.listed else {
                            return try await submit(transfers.deleteJob(object.reference))
                        }
                        batch.append(listed)
                        guard batch.count == ObjectDeletion.batch else { return }
                        try await submit(transfers.deleteJob(batch))
                        batch = []
                    }
                    if !batch.isEmpty { try await submit(transfers.deleteJob(batch)) }
                }
            }
        }
    }
}
