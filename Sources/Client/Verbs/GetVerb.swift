import ClientCommands
import Foundation
import SluiceStorage
import Wire

extension Get: Verb {
    var canContinue: Bool { target != "-" }

    func perform() async throws -> Int32 {
        let transfers = try Transfers(self.transfers, connection)
        let sources = try self.sources.map(transfers.gateways.remote)
        if target == "-" {
            return await transfers.print(sources)
        }
        return await transfers.run { submit in
            try await transfers.downloads(sources, to: target, isRecursive: recursive.recursive, submit)
        }
    }
}

extension Cat: Verb {
    func perform() async throws -> Int32 {
        let transfers = try Transfers(Report(json: false, quiet: true), jobs: 1, connection)
        return await transfers.print(try sources.map(transfers.gateways.remote))
    }
}

extension Transfers {
    /// Submits the downloads of objects and folders.
    func downloads(
        _ sources: [RemotePath], to target: String, isRecursive: Bool,
        _ submit: (Job) async throws -> Void
    ) async throws {
        let isDirectory =
            target.hasSuffix("/") || FileKind(target) == .directory || sources.count > 1
        for source in sources {
            try await each(source.text, "download") {
                let isOne = Glob(source.path) == nil && !isRecursive
                if isOne, sources.count == 1 { report.display?.expect(files: 1, bytes: 0) }
                // The content of one folder goes into the target itself, folders beside others under their names.
                let folder = source.reference
                let base =
                    isRecursive && sources.count > 1 && Glob(source.path) == nil
                    ? "\(folder.name.isEmpty ? folder.bucket : folder.name)/" : ""
                try await source.objects(isRecursive: isRecursive) { object in
                    let isNamed = object.listed == nil
                    let job =
                        isNamed && !isDirectory
                        ? downloadJob(object, to: target)
                        : downloadJob(object, to: (isNamed ? "" : base) + object.relative, below: target)
                    try await submit(sources.count > 1 ? targets.claim(job, of: object.reference.identity) : job)
                }
            }
        }
    }

    /// Writes objects to standard output, one after another.
    func print(_ sources: [RemotePath]) async -> Int32 {
        let one = Jobs(report: report, slots: TransferSlots(1))
        do {
            try await one.run { submit in
                for source in sources {
                    try await each(source.text, "download") {
                        try await source.objects(isRecursive: false) { object in
                            try await submit(printJob(object))
                        }
                    }
                }
            }
        } catch {
            if !(error is Stopped) {
                report.failed(ClientError(error, about: "list"), "list", "")
            }
        }
        return report.end()
    }

    private func printJob(_ object: RemoteObject) -> Job {
        Job(action: "download", source: object.text, target: "-", size: object.listed?.size) {
            progress in
            var reader = try await object.open()
            progress.setSize(reader.metadata.size)
            while let piece = try await reader.next(maximum: 4 << 20) {
                try Output.write(piece, STDOUT_FILENO)
                progress.set(reader.offset)
            }
            return reader.metadata.size
        }
    }
}
