import SecurityRules
import TestSupport
import Wire

@testable import RulesAnalysis

/// Random requests of the kind that random rules distinguish.
struct RandomRequests {
    var random: SeededGenerator

    private mutating func word() -> String {
        random.pick(RandomRules.words + ["image/jpeg", "me@x.org", "abcd", "Ab"])
    }

    private mutating func segment() -> String {
        random.pick(["users", "public", "a", "b", "alice", "bob", "x.jpg", "A", "é", "😀", "admin"])
    }

    mutating func request(_ method: Method) -> ExampleRequest {
        var request = ExampleRequest(method)
        let least = method == .list ? 0 : 1
        request.segments = (0..<least + random.below(4)).map { _ in segment() }
        if random.below(3) == 0, request.segments.count > 1 { request.segments[0] = "users" }
        request.bucket = random.pick(["b", "alice", "x"])
        if random.below(3) > 0 {
            request.uid = random.below(3) == 0 ? request.segments.last ?? "" : word()
            for claim in RandomRules.claims where random.below(2) == 0 {
                request.token[BytewiseString(claim)] = value(0)
            }
        }
        if method != .list, random.below(3) > 0 { request.existing = object(isIncoming: false) }
        if request.incoming != nil { request.incoming = object(isIncoming: true) }
        for key in RandomRules.keys where random.below(4) == 0 {
            request.parameters[BytewiseString(key)] = .string(word())
        }
        if random.below(3) == 0 {
            request.time =
                Timestamp(seconds: 1_262_304_000 + Int64(random.below(1_000_000_000)), nanoseconds: 500) ?? request.time
        }
        for word in RandomRules.words {
            guard random.below(2) == 0, let path = DocumentPath("/databases/(default)/documents/users/\(word)") else {
                continue
            }
            switch random.below(4) {
            case 0: request.documents[path] = .failed
            case 1: request.documents[path] = .absent
            default:
                var fields: [Value.Key: Value] = [:]
                for claim in RandomRules.claims { fields[BytewiseString(claim)] = value(0) }
                request.documents[path] = .present(fields)
            }
        }
        return request
    }

    private mutating func object(isIncoming: Bool) -> [ObjectField: Value] {
        var object: [ObjectField: Value] = [:]
        for field in ObjectField.allCases where field.isIncoming || !isIncoming {
            guard random.below(4) > 0 else { continue }
            switch field {
            case .name, .bucket: continue
            case .size, .generation, .metageneration: object[field] = .int(Int64(random.below(8)))
            case .timeCreated, .updated: object[field] = .timestamp(ExampleRequest.defaultTime)
            case .metadata:
                var map: [Value.Key: Value] = [:]
                for key in RandomRules.keys + ["more"] where random.below(2) == 0 {
                    map[BytewiseString(key)] = .string(word())
                }
                object[field] = .map(map)
            default: object[field] = .string(word())
            }
        }
        return object
    }

    private mutating func value(_ depth: Int) -> Value {
        switch random.below(12) {
        case 0: .null
        case 1: .bool(true)
        case 2: .bool(false)
        case 3: .int(Int64(random.below(6)))
        case 4: .float(Double(random.below(5)) + (random.below(2) == 0 ? 0.5 : 0))
        case 5 where depth < 2: .list((0..<random.below(4)).map { _ in value(depth + 1) })
        case 6 where depth < 2: .map([BytewiseString(random.pick(RandomRules.keys)): value(depth + 1)])
        case 7: .list((0..<random.below(3)).map { _ in Value.string(word()) })
        case 8: .timestamp(ExampleRequest.defaultTime)
        default: .string(word())
        }
    }
}
