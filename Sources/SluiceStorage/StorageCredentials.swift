import Foundation
import Wire

/// A client's credential. It is sent to the gateway's own address only.
public struct StorageCredentials: Sendable, CustomStringConvertible, CustomReflectable {
    private enum Source {
        case fixed(String?)
        case closure(@Sendable () async throws -> String)
    }
    private let source: Source

    /// No credential: the caller is anonymous.
    public static let none = StorageCredentials(source: .fixed(nil))

    /// A token that does not change.
    public static func token(_ token: String) -> StorageCredentials {
        StorageCredentials(source: .fixed(token))
    }

    /// A closure that returns the current token. It is called for each request, so it should keep the token until
    /// shortly before its expiry. A request whose token takes longer than the request may is tried again.
    public static func bearer(
        _ token: @escaping @Sendable () async throws -> String
    ) -> StorageCredentials {
        StorageCredentials(source: .closure(token))
    }

    /// A file with the token, such as one that Kubernetes renews. Read for each request; white space is trimmed.
    public static func file(_ file: URL) -> StorageCredentials {
        StorageCredentials(
            source: .closure {
                do {
                    let text = try String(contentsOf: file, encoding: .utf8)
                        .trimmingCharacters(in: .whitespacesAndNewlines)
                    if isToken(text) { return text }
                } catch {
                    let cause =
                        access(file.path, R_OK) == 0 ? error.localizedDescription : String(cString: strerror(errno))
                    throw StorageError(
                        .unauthenticated,
                        "The file of the credential, \(file.path), can't be read: \(cause).")
                }
                throw StorageError(.unauthenticated, "The file of the credential, \(file.path), has no token.")
            })
    }

    /// Shows no token.
    public var description: String {
        switch source {
        case .fixed(nil): "no credential"
        case .fixed, .closure: "a credential"
        }
    }

    /// Shows no more by reflection.
    public var customMirror: Mirror { Mirror(self, children: []) }

    /// The field `Authorization` of a request.
    enum Authorization {
        case none
        case field(String)
        /// The token has taken too long.
        case late
    }

    /// Gets the token.
    /// - Parameter seconds: The time limit.
    /// - Throws: ``StorageError`` with `unauthenticated` if the token can't be had or is not one.
    func authorization(_ seconds: TimeInterval, _ control: TransferControl) async throws(StorageError) -> Authorization
    {
        switch source {
        case .fixed(nil): return .none
        case .fixed(let token?): return try StorageCredentials.field(token)
        case .closure(let closure):
            let found = await control.limited(seconds) { () -> Result<String, any Error> in
                do { return .success(try await closure()) } catch { return .failure(error) }
            }
            switch found {
            case .success(let token): return try StorageCredentials.field(token)
            case .failure(let error as StorageError): throw error
            case .failure(let error):
                throw StorageError(.unauthenticated, "The credential can't be had: \(error.localizedDescription)")
            case nil:
                if control.isCancelled { throw .cancelled }
                return .late
            }
        }
    }

    private static func isToken(_ text: String) -> Bool {
        !text.isEmpty && text.utf8.allSatisfy(ASCII.isVisible)
    }

    private static func field(_ token: String) throws(StorageError) -> Authorization {
        // A line break would end the field.
        guard isToken(token) else {
            throw StorageError(.unauthenticated, "The credential is not a token.")
        }
        return .field("Bearer \(token)")
    }
}
