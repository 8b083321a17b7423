import ArgumentParser
import Buckets
import Configuration
import Gateway
import Glibc
import System
import Wire

/// A directory that `sluice serve DIR` serves as a bucket, without a configuration file.
struct ServedDirectory {
    private let path: String
    private let name: String

    /// - Parameters:
    ///   - path: The argument of the command: a directory, or a path with a slash at the end.
    ///   - name: The bucket's name; nil for the name of the directory.
    /// - Returns: nil if the argument is a file, or absent.
    /// - Throws: ``ValidationError`` if the directory's name can't be a bucket's, or it has foreign files.
    init?(_ path: String?, name: String?) throws {
        guard let path else { return nil }
        var status = stat()
        let isDirectory = stat(path, &status) == 0 && status.st_mode & S_IFMT == S_IFDIR
        guard isDirectory || path.hasSuffix("/") else { return nil }
        self.path = path
        if isDirectory, DirectoryBucket.hasForeignFiles(path) {
            throw ValidationError(
                """
                \(path) has files, but is not a bucket's directory: they would not be served. Serve an empty directory, \
                and copy them into it with 'sluice put -R'.
                """)
        }
        if let name {
            self.name = name
            return
        }
        // The name in the file system, also of `.` and of `photos/..`.
        let whole = realpath(path, nil).map { pointer in
            defer { free(pointer) }
            return String(cString: pointer)
        }
        let last = (whole ?? path).split(separator: "/").last.map { String($0) } ?? ""
        guard BucketName(last) != nil else {
            throw ValidationError("'\(last)' can't be a bucket's name: give --bucket NAME.")
        }
        self.name = last
    }

    /// The settings that serve it.
    var settings: [String] { ["buckets.\(name).directory.path=\(path)"] }

    /// Prints the served directory, and commands to try it.
    func introduce(_ configuration: Configuration) {
        guard let address = configuration.http, !address.hasSuffix(":0") else { return }
        let isPath = address.hasPrefix(SocketAddress.unixPrefix)
        let curl = isPath ? "curl --unix-socket \(address.dropFirst(5))" : "curl"
        let url = "http://\(isPath ? "localhost" : address)/b/\(name)/o/"
        let bucket = configuration.buckets.first { BytewiseString($0.name) == BytewiseString(name) }
        let rules = bucket.flatMap { configuration.rules(of: $0) }
        let isOpen = rules == Configuration.openToAll
        complain(
            """

            Bucket:  \(name), in \(path)
            URL:     \(url)
            Rules:   \(isOpen ? "none: everybody who reaches this address may do everything" : rules ?? "")
            Try:     \(curl) -T FILE \(url)
                     \(curl) \(url)
            Stop:    Ctrl-C

            """)
    }
}
