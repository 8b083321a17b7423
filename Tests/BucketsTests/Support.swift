import Buckets
import EventLoop
import Glibc

/// A directory that is removed when the value goes.
final class TemporaryDirectory: Sendable {
    let path: String

    init(below parent: String = "/tmp") {
        var template = Array((parent + "/sluice-test-XXXXXX").utf8CString)
        let made = mkdtemp(&template)
        precondition(made != nil, "mkdtemp: \(String(cString: strerror(errno)))")
        path = template.withUnsafeBufferPointer { String(cString: $0.baseAddress!) }
    }

    deinit { removeTree(path) }
}

/// Removes a directory and everything in it.
func removeTree(_ path: String) {
    for name in entries(path) {
        let child = path + "/" + name
        if unlink(child) != 0 { removeTree(child) }
    }
    rmdir(path)
}

/// The names in a directory, sorted.
func entries(_ path: String) -> [String] {
    guard let stream = opendir(path) else { return [] }
    defer { closedir(stream) }
    var names: [String] = []
    while let entry = readdir(stream) {
        let name = withUnsafePointer(to: &entry.pointee.d_name) {
            $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
        }
        if name != "." && name != ".." { names.append(name) }
    }
    return names.sorted()
}

/// The blobs' ids on disk, and what is staged.
func files(of bucket: String) -> (blobs: [String], staged: [String]) {
    let shards = entries(bucket + "/blobs")
    return (
        shards.flatMap { entries(bucket + "/blobs/" + $0) }.sorted(), entries(bucket + "/staging")
    )
}

/// A pool for all tests of the process.
let sharedPool = BlockingPool(threads: 4)

func openBucket(_ path: String) throws -> DirectoryBucket {
    try DirectoryBucket(path: path, pool: sharedPool, readers: 2)
}

/// Yields until `condition` holds; the suite's time limit ends what never comes.
func eventually(_ condition: () async throws -> Bool) async rethrows {
    while try await !condition() { await Task.yield() }
}
