import Buckets
import OpenSSL

/// A token of a download URL: it authorizes reading the bytes of the object that has it, without the policy. If the
/// object does not have it, the policy decides.
struct DownloadToken: Grant {
    private let token: [UInt8]

    init(_ token: String) { self.token = Array(token.utf8) }

    var principal: String { "download-token" }

    var group: String { Callers.anonymousGroup }

    /// Compares all tokens of the object, each in constant time.
    func decide(_ existing: CurrentObject, now: Int64) -> Decision? {
        switch existing {
        case .unknown: return .needsExisting
        case .absent: return nil
        case .object(let object):
            var isFound = false
            for known in object.attributes.system.downloadTokens {
                let isEqual = areEqualInConstantTime(Array(known.utf8), token)
                isFound = isFound || isEqual
            }
            return isFound ? .allow : nil
        }
    }

    func denial(_ cause: String) -> Problem? { nil }
}

/// Authorizes only the callers who may change download tokens.
struct TokenAdministration: Grant {
    let isAdministrator: Bool
    let principal: String
    let group: String

    func decide(_ existing: CurrentObject, now: Int64) -> Decision? {
        isAdministrator ? .allow : .deny(cause: "the caller is not one of firebaseOptions.administrators")
    }

    func denial(_ cause: String) -> Problem? { TokenAdministration.denial(cause) }

    static func denial(_ cause: String) -> Problem {
        Problem(.unauthorized, "Missing admin credentials.", cause: cause)
    }
}
