import Buckets
import Wire

/// A change of the tokens of an object's download URLs.
enum TokenChange: Equatable {
    /// Adds a new token.
    case create
    /// Removes this token, if the object has it. The last one is replaced by a new one.
    case delete(String)

    /// The most tokens of an object.
    static let maximumTokens = 16

    /// The tokens after the change; nil if it changes nothing.
    /// - Throws: ``Problem`` with `invalid-argument` if there would be too many.
    func applied(to tokens: [String]) throws(Problem) -> [String]? {
        switch self {
        case .create:
            guard tokens.count < TokenChange.maximumTokens else {
                throw Problem(
                    .invalidArgument, "The object has \(tokens.count) download tokens already; delete one first.")
            }
            return tokens + [TokenChange.newToken()]
        case .delete(let token):
            let rest = tokens.filter { $0 != token }
            if rest.count == tokens.count { return nil }
            return rest.isEmpty ? [TokenChange.newToken()] : rest
        }
    }

    /// A random UUID (RFC 9562, section 5.4), of 122 bits from the system's generator.
    static func newToken() -> String {
        var bytes = (0..<16).map { _ in UInt8.random(in: 0 ... .max) }
        bytes[6] = bytes[6] & 0x0f | 0x40
        bytes[8] = bytes[8] & 0x3f | 0x80
        let groups = [0..<4, 4..<6, 6..<8, 8..<10, 10..<16]
        return groups.map { Hexadecimal.encode(Array(bytes[$0])) }.joined(separator: "-")
    }
}

extension OperationHandler {
    /// The object's metadata. If it has no download token, one is made first, the same one for all concurrent requests.
    /// It stays without one if the store can't make one now, or the object disappears meanwhile.
    func statWithToken(_ name: ObjectName, _ conditions: Conditions) async throws(Problem)
        -> OperationResult
    {
        let result = try await stat(name, conditions)
        guard case .metadata(let object) = result, object.attributes.system.downloadTokens.isEmpty
        else { return result }
        do throws(Problem) {
            return .metadata(
                try await changeTokens(of: name) { $0.isEmpty ? [TokenChange.newToken()] : nil })
        } catch {
            return result
        }
    }

    /// Creates or deletes a download token.
    func changeTokens(_ name: ObjectName, _ change: TokenChange) async throws(Problem)
        -> OperationResult
    {
        var existing = CurrentObject.unknown
        try await authorizer.authorize(&existing, name)
        return .patched(
            try await changeTokens(of: name) { (tokens) throws(Problem) in
                try change.applied(to: tokens)
            })
    }

    /// Changes the tokens in one patch that is pinned to the object that was read, and repeats it if the object changed
    /// meanwhile. The changes of this process take turns, for stores that can't pin a patch to the properties.
    /// - Parameter change: Returns the new tokens; nil to change nothing.
    private func changeTokens(
        of name: ObjectName, _ change: ([String]) throws(Problem) -> [String]?
    ) async throws(Problem) -> ObjectMetadata {
        await bucket.turns.take(name.value)
        defer { bucket.turns.end(name.value) }
        for _ in 0..<OperationHandler.attempts {
            if context.exchange.isClientGone { throw RequestContext.clientGone }
            let object = try await bucket.stat(name)
            guard let tokens = try change(object.attributes.system.downloadTokens) else {
                return object
            }
            var patch = AttributePatch()
            patch.downloadTokens = tokens
            let pins = try await bucket.pinned(
                Preconditions(), to: .object(object), \.pinnedPatches)
            do throws(Problem) {
                return try await bucket.patch(name, patch, pins)
            } catch {
                guard error.code == .preconditionFailed else { throw error }
            }
        }
        throw OperationHandler.overtaken
    }
}
