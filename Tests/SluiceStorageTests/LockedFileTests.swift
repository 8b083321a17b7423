import Foundation
import TestSupport
import Testing

@testable import SluiceStorage

@Suite struct LockedFileTests {
    private let directory = TemporaryDirectory()

    private func code(_ name: String, creates: Bool = true) -> Int32 {
        guard let descriptor = LockedFile.open(directory.path + "/" + name, creates: creates) else {
            return errno
        }
        close(descriptor)
        return 0
    }

    @Test func whatCanNotBeLocked() async throws {
        let path = directory.path + "/a"
        #expect(code("a", creates: false) == ENOENT)
        let descriptor = try #require(LockedFile.open(path, creates: true))
        #expect(code("a") == EWOULDBLOCK)
        close(descriptor)
        // A program that another test starts has the descriptor, too, until it is executed.
        await eventually { code("a", creates: false) == 0 }
        symlink(path, directory.path + "/link")
        #expect(code("link") == ELOOP)
        link(path, directory.path + "/second")
        await eventually { code("a") == EPERM && code("second") == EPERM }
        mkfifo(directory.path + "/pipe", 0o600)
        #expect(code("pipe") == EPERM)
    }

    /// Between opening and locking, the holder of the lock removes the file.
    @Test func theFileThatThePathNames() async throws {
        let path = directory.path + "/a"
        try await withThrowingTaskGroup(of: Int.self) { group in
            for _ in 0..<4 {
                group.addTask {
                    try await onThread { LockedFileTests.take(path) }
                }
            }
            for try await others in group { #expect(others == 0) }
        }
    }

    /// Locks and removes the file many times.
    /// - Returns: How often another file than the locked one had the path.
    private static func take(_ path: String) -> Int {
        var others = 0
        for _ in 0..<2000 {
            guard let descriptor = LockedFile.open(path, creates: true) else { continue }
            var (opened, named) = (stat(), stat())
            fstat(descriptor, &opened)
            if lstat(path, &named) != 0 || named.st_ino != opened.st_ino { others += 1 }
            unlink(path)
            close(descriptor)
        }
        return others
    }
}
