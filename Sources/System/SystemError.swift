import CLinux
import Glibc
import Wire

/// A failed system call.
public struct SystemError: Error, Equatable, CustomStringConvertible {
    /// The name of the call.
    public let call: String
    /// Its `errno`.
    public let code: Int32

    public init(_ call: String, _ code: Int32 = errno) {
        self.call = call
        self.code = code
    }

    public var description: String { "\(call): \(String(cString: strerror(code)))" }

    /// Retries a call while it is interrupted (EINTR); throws if it returns a negative number.
    @discardableResult
    public static func check<Result: SignedInteger>(_ call: String, _ body: () -> Result)
        throws(SystemError) -> Result
    {
        while true {
            let result = body()
            if result >= 0 { return result }
            if errno != EINTR { throw SystemError(call, errno) }
        }
    }
}
