import Glibc
import Testing

/// `posix_spawn_file_actions_addclosefrom_np`, which Swift's Glibc module leaves out.
private let closeFrom = unsafeBitCast(
    dlsym(nil, "posix_spawn_file_actions_addclosefrom_np"),
    to: (@convention(c) (UnsafeMutablePointer<posix_spawn_file_actions_t>, Int32) -> Int32).self)

/// Starts a program found on the path. It inherits no descriptor but its output: one that it kept open would keep
/// the readers of other tests waiting.
/// - Parameters:
///   - output: Where its standard output goes; without it, neither output goes anywhere.
///   - errors: Where its standard error goes; without it, to that of the tests.
public func spawn(_ arguments: [String], output: Int32? = nil, errors: Int32? = nil) throws
    -> pid_t
{
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    if let output {
        posix_spawn_file_actions_adddup2(&actions, output, 1)
        if let errors { posix_spawn_file_actions_adddup2(&actions, errors, 2) }
    } else {
        for descriptor: Int32 in 1...2 {
            posix_spawn_file_actions_addopen(&actions, descriptor, "/dev/null", O_WRONLY, 0)
        }
    }
    _ = closeFrom(&actions, 3)
    var list = arguments.map { strdup($0) } + [nil]
    defer { for text in list { free(text) } }
    var identifier: pid_t = -1
    let code = posix_spawnp(&identifier, arguments[0], &actions, nil, &list, environ)
    try #require(code == 0, "\(arguments[0]): \(String(cString: strerror(code)))")
    return identifier
}

/// Runs a program found on the path and waits for it.
/// - Returns: Its status as reported by waitpid(2), or -1.
@discardableResult
public func run(_ arguments: String...) -> Int32 {
    guard let identifier = try? spawn(arguments) else { return -1 }
    var status: Int32 = 0
    return waitpid(identifier, &status, 0) == identifier ? status : -1
}
