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
            throw ClientError(
                .failure, "The sources are local and remote: copy them one after another.")
        }
        let isRecursive = recursive.recursive
        switch end {
        case .standard:
            return await transfers.print(objects)
        case .remote(let target) where files == ["-"]:
            return try await transfers.putStandardInput(try target.object(), StorageMetadata())
        case .local(let target):
            return await transfers.run { submit in
                try await transfers.downloads(
                    objects, to: target, isRecursive: isRecursive, submit)
            }
        case .remote(let target):
            return await transfers.run { submit in
                if files.isEmpty {
                    try await transfers.copies(
                        objects, to: target, isRecursive: isRecursive, isMove: false, submit)
                } else {
                    try await transfers.uploads(
                        files, to: target, StorageMetadata(), isRecursive: isRecursive, submit)
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
            try await transfers.copies(
                sources, to: target, isRecursive: recursive.recursive, isMove: true, submit)
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
        for source in sources {
            try await each(source.text, isMove ? "move" : "copy") {
                let isPattern = Glob(source.path) != nil
                let base =
                    isRecursive && sources.count > 1 && !isPattern
                    ? folder.child(source.reference.name) : folder
                // What is copied into a list that is still read would be found there.
                var objects: [RemoteObject] = []
                try await source.objects(isRecursive: isRecursive) { objects.append($0) }
                for object in objects {
                    let isNamed = object.listed == nil
                    let isFolder = target.isFolder || sources.count > 1 || isPattern
                    let path =
                        isNamed && !isFolder
                        ? folder : (isNamed ? folder : base).child(object.relative)
                    try await submit(copyJob(object, to: path, isMove: isMove))
                }
            }
        }
    }
}

extension Remove: Verb {
    func perform() async throws -> Int32 {
        let transfers = try Transfers(self.transfers, connection)
        let sources = try self.sources.map(transfers.gateways.remote)
        return await transfers.run { submit in
            for source in sources {
                try await transfers.each(source.text, "delete") {
                    try await source.objects(isRecursive: recursive.recursive) { object in
                        try await submit(
                            transfers.deleteJob(
                                object.reference, generation: object.listed?.generation))
                    }
                }
            }
        }
    }
}
