import Foundation
import Wire

/// What a client shows to the gateway. A credential is sent to the gateway's own address only.
public struct StorageCredentials: Sendable {
    /// Returns the token for the next request; nil for none.
    let token: @Sendable () async throws -> String?

    /// No credential: the caller is anonymous.
    public static let none = StorageCredentials { nil }

    /// A token that does not change.
    public static func token(_ token: String) -> StorageCredentials {
        StorageCredentials { token }
    }

    /// A closure that returns the current token. It is called for each request, so it should keep the token until
    /// shortly before its expiry.
    public static func bearer(
        _ token: @escaping @Sendable () async throws -> String
    ) -> StorageCredentials {
        StorageCredentials { try await token() }
    }

    /// A file that holds the token, such as one that Kubernetes renews. It is read for each request; white space around
    /// the token is ignored.
    public static func file(_ file: URL) -> StorageCredentials {
        StorageCredentials {
            let text = try String(contentsOf: file, encoding: .utf8)
            return text.trimmingCharacters(in: .whitespacesAndNewlines)
        }
    }

    /// The field `Authorization`; nil without a token.
    /// - Throws: ``StorageError`` with `unauthenticated` if the token can't be had or is not one.
    func authorization() async throws(StorageError) -> String? {
        let found: String?
        do {
            found = try await token()
        } catch {
            throw StorageError(
                .unauthenticated, "The credential can't be had: \(error.localizedDescription)")
        }
        guard let found else { return nil }
        // A line break would end the field.
        guard !found.isEmpty, found.utf8.allSatisfy(ASCII.isVisible) else {
            throw StorageError(.unauthenticated, "The credential is not a token.")
        }
        return "Bearer \(found)"
    }
}
