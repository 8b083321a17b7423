import BucketConformance
import Foundation
import HTTPClient
import OpenSSL
import System
import TestSupport
import Wire

@testable import Buckets

/// A model of Cloud Storage's JSON API for upload sessions, in the test's own process, so that a test can see and
/// disturb each request. It has resumable sessions whose preconditions are fixed when they begin, ignores bytes at
/// offsets that it has, and verifies declared digests. It also has the XML API's uploads in parts (``GCSModelParts``).
final class GCSModel: Sendable {
    struct Object: Sendable {
        var generation: Int
        var resource: JSONValue
        var bytes: [UInt8]
    }
    /// A resumable session of the service.
    struct Session: Sendable {
        let name: String
        let query: [String: String]
        let resource: JSONValue
        var bytes: [UInt8] = []
        /// The object, as JSON, after the last request.
        var made: String?
    }
    /// What happens to a request.
    enum Fault: CaseIterable, Sendable {
        /// It is not executed; the response is a 503.
        case refused
        /// It is executed, and the response is a 503.
        case failed
        /// It is executed, and the connection ends without a response.
        case cut
        /// It is not executed, and the connection ends.
        case lost
    }
    struct State: Sendable {
        var objects: [BytewiseString: Object] = [:]
        var sessions: [String: Session] = [:]
        var parts = GCSModelParts()
        var generation = 1_700_000_000_000_000
        /// The names of the objects that became visible, in order.
        var commits: [String] = []
        /// The maximum number of bytes that are kept of each chunk but the last; nil for all.
        var persists: Int?
        /// The methods and kinds of the requests, in order.
        var log: [String] = []
        /// Chooses the fate of a request.
        var fault: @Sendable (_ number: Int, _ kind: String) -> Fault? = { _, _ in nil }
        /// Called before each request is executed.
        var before: @Sendable (_ kind: String, inout State) -> Void = { _, _ in }
        /// The next chunks are not executed: the connection ends, and ``GCSModel/deliverLate()`` executes them.
        var delaysChunks = false
        var late: [FakeService.Request] = []

        /// Stores an object as another writer does.
        mutating func put(_ name: String, _ bytes: [UInt8]) {
            generation += 1
            objects[BytewiseString(name)] = Object(
                generation: generation, resource: .object([]), bytes: bytes)
        }
    }
    static let quantum = 256 * 1024

    let state = Lock(State())
    private let service: FakeService

    init() {
        let state = state
        service = FakeService { request in
            let kind = GCSModel.kind(request)
            let fate = state.withLock { state in
                state.log.append(kind)
                return state.fault(state.log.count, kind)
            }
            if fate == .refused { return FakeService.Response(status: 503) }
            if fate == .lost { return .cut }
            let response = state.withLock { state in
                state.before(kind, &state)
                if kind == "chunk", state.delaysChunks {
                    state.late.append(request)
                    return FakeService.Response.cut
                }
                return GCSModel.respond(request, &state)
            }
            switch fate {
            case .failed: return FakeService.Response(status: 503)
            case .cut: return .cut
            default: return response
            }
        }
    }

    /// A driver of the model's only bucket. Each has its own owner, as each process has.
    func bucket(attempts: Int = 4) -> GCSBucket {
        var settings = GCSBucket.Settings(
            bucket: "b", endpoint: service.origin, credentials: .anonymous, environment: [:])
        settings.upstream.retryDelay = 1_000_000
        settings.upstream.attempts = attempts
        return GCSBucket(settings, pool: sharedPool, environment: [:])
    }

    /// Executes the delayed chunks.
    func deliverLate() {
        state.withLock { state in
            for request in state.late { _ = GCSModel.respond(request, &state) }
            state.late = []
        }
    }

    /// The names of all objects that belong to upload sessions, and the sessions of the service that have bytes.
    var leftovers: [String] {
        state.withLock { state in
            state.objects.keys.map(\.text).filter { $0.hasPrefix(".sluice/") }
                + state.sessions.values.filter { $0.made == nil && !$0.bytes.isEmpty }.map(\.name)
                + state.parts.uploads.map { "\($0.key) of \($0.value.name)" }
        }
    }

    /// What a request is, for faults and for counting.
    private static func kind(_ request: FakeService.Request) -> String {
        let query = request.query
        if GCSModelParts.has(request) { return GCSModelParts.kind(request) }
        if query["upload_id"] != nil {
            if request.method == "DELETE" { return "cancel" }
            let range = request.fields["content-range"] ?? ""
            if range == "bytes */*" { return "query" }
            return range.hasSuffix("/*") ? "chunk" : "last"
        }
        if let type = query["uploadType"] {
            if case .state? = query["name"].flatMap(HiddenName.init) { return "state" }
            return type
        }
        if request.path.contains("/moveTo/") { return "move" }
        if request.path.hasSuffix("/o") { return "list" }
        if request.method == "GET" { return query["alt"] == "media" ? "read" : "stat" }
        return request.method.lowercased()
    }

    // MARK: Requests

    struct Refusal: Error {
        let status: Int
        let message: String
        init(_ status: Int, _ message: String = "") {
            (self.status, self.message) = (status, message)
        }
    }

    private static func respond(_ request: FakeService.Request, _ state: inout State)
        -> FakeService.Response
    {
        if GCSModelParts.has(request) { return GCSModelParts.respond(request, &state) }
        do throws(Refusal) {
            return try execute(request, &state)
        } catch {
            return .json(
                #"{"error": {"code": \#(error.status), "message": "\#(error.message)"}}"#,
                error.status)
        }
    }

    private static func execute(_ request: FakeService.Request, _ state: inout State)
        throws(Refusal) -> FakeService.Response
    {
        let query = request.query
        if request.path.hasPrefix("/upload/") { return try upload(request, query, &state) }
        let path = request.path.split(separator: "/").map {
            let bytes = try? PercentEncoding.decode(Array($0.utf8)[...])
            return String(decoding: bytes ?? [], as: UTF8.self)
        }
        guard path.count > 4 else { throw Refusal(404) }
        if path.count == 5 { return list(query, state) }
        let name = path[5]
        if path.count > 10 { return try rewrite(name, to: path[10], request, &state) }
        if path.count > 8 { return try move(name, to: path[8], query, &state) }
        let found = state.objects[BytewiseString(name)]
        guard let found, query["generation"].map({ $0 == "\(found.generation)" }) ?? true else {
            throw Refusal(404, "No such object")
        }
        try check(query, name, state)
        if request.method == "DELETE" {
            state.objects[BytewiseString(name)] = nil
            return FakeService.Response(status: 204)
        }
        if request.method == "PATCH" { return .json(patch(found, name, request.body, &state)) }
        guard query["alt"] == "media" else { return .json(json(found, name)) }
        return media(request, found)
    }

    /// Replaces members of the resource.
    private static func patch(_ object: Object, _ name: String, _ body: [UInt8], _ state: inout State) -> String {
        guard case .object(let fresh)? = try? JSONReader.parse(body), case .object(let old) = object.resource
        else { return "" }
        var object = object
        object.resource = .object(old.filter { old in !fresh.contains { $0.key == old.key } } + fresh)
        state.objects[BytewiseString(name)] = object
        return json(object, name)
    }

    private static func check(_ query: [String: String], _ name: String, _ state: State)
        throws(Refusal)
    {
        let found = state.objects[BytewiseString(name)]
        if let wanted = query["ifGenerationMatch"], wanted != "\(found?.generation ?? 0)" {
            throw Refusal(412, "generation")
        }
        if let wanted = query["ifMetagenerationMatch"], found == nil || wanted != "1" {
            throw Refusal(412, "metageneration")
        }
    }

    private static func media(_ request: FakeService.Request, _ object: Object)
        -> FakeService.Response
    {
        let fields = [
            ("x-goog-generation", "\(object.generation)"), ("x-goog-metageneration", "1"),
            ("x-goog-hash", "crc32c=\(crc(object.bytes))"),
        ]
        guard let range = request.fields["range"], range.hasPrefix("bytes=") else {
            return FakeService.Response(fields: fields, body: object.bytes)
        }
        let bounds = range.dropFirst(6).split(separator: "-", omittingEmptySubsequences: false)
        let (first, last) = (Int(bounds[0])!, Int(bounds[1]) ?? object.bytes.count - 1)
        let told = ("content-range", "bytes \(first)-\(last)/\(object.bytes.count)")
        return FakeService.Response(
            status: 206, fields: fields + [told], body: Array(object.bytes[first...last]))
    }

    private static func list(_ query: [String: String], _ state: State) -> FakeService.Response {
        let prefix = query["prefix"] ?? ""
        let start = query["pageToken"] ?? query["startOffset"] ?? ""
        var names = state.objects.keys.map(\.text).filter {
            $0.hasPrefix(prefix) && !$0.utf8.lexicographicallyPrecedes(start.utf8)
        }
        if let end = query["endOffset"] {
            names.removeAll { !$0.utf8.lexicographicallyPrecedes(end.utf8) }
        }
        var entries: [(name: String, isPrefix: Bool)] = []
        for name in names.sorted(by: { $0.utf8.lexicographicallyPrecedes($1.utf8) }) {
            let rest = name.dropFirst(prefix.count)
            if query["delimiter"] != nil, let slash = rest.firstIndex(of: "/") {
                let folder = String(name[...slash])
                if entries.last?.name != folder { entries.append((folder, true)) }
            } else {
                entries.append((name, false))
            }
        }
        let limit = Int(query["maxResults"] ?? "") ?? 1000
        var json = JSONWriter(reserving: 1024)
        json.beginObject()
        json.key("items")
        json.beginArray()
        for entry in entries.prefix(limit) where !entry.isPrefix {
            json.beginObject()
            json.member("name", entry.name)
            json.endObject()
        }
        json.endArray()
        json.key("prefixes")
        json.beginArray()
        for entry in entries.prefix(limit) where entry.isPrefix { json.string(entry.name) }
        json.endArray()
        if entries.count > limit { json.member("nextPageToken", entries[limit].name) }
        json.endObject()
        return .json(String(decoding: json.bytes, as: UTF8.self))
    }

    private static func move(
        _ source: String, to name: String, _ query: [String: String], _ state: inout State
    ) throws(Refusal) -> FakeService.Response {
        guard let found = state.objects[BytewiseString(source)] else { throw Refusal(404) }
        if let wanted = query["ifSourceGenerationMatch"], wanted != "\(found.generation)" {
            throw Refusal(412, "source")
        }
        let made = try commit(name, query, found.resource, found.bytes, &state)
        state.objects[BytewiseString(source)] = nil
        return .json(made)
    }

    /// A copy, which has no md5 if its source has none.
    private static func rewrite(
        _ source: String, to name: String, _ request: FakeService.Request, _ state: inout State
    ) throws(Refusal) -> FakeService.Response {
        guard let found = state.objects[BytewiseString(source)] else { throw Refusal(404) }
        if request.query["sourceGeneration"] != "\(found.generation)" { throw Refusal(404) }
        guard case .object(var members)? = try? JSONReader.parse(request.body) else { throw Refusal(400) }
        if let joined = found.resource["joined"] { members.append(JSONMember(key: "joined", value: joined)) }
        let made = try commit(name, request.query, .object(members), found.bytes, &state)
        return .json("{\"done\": true, \"resource\": \(made)}")
    }

    // MARK: Uploads

    private static func upload(
        _ request: FakeService.Request, _ query: [String: String], _ state: inout State
    ) throws(Refusal) -> FakeService.Response {
        if let id = query["upload_id"] { return try session(id, request, &state) }
        let name = query["name"] ?? ""
        switch query["uploadType"] {
        case "multipart":
            let (resource, bytes) = parts(request)
            return .json(try commit(name, query, resource, bytes, &state))
        case "resumable":
            try check(query, name, state)
            guard let resource = try? JSONReader.parse(request.body) else { throw Refusal(400) }
            let id = "session-\(UInt64.random(in: 0 ... .max))"
            state.sessions[id] = Session(name: name, query: query, resource: resource)
            let target = "/upload/storage/v1/b/b/o?uploadType=resumable&upload_id=\(id)"
            return FakeService.Response(fields: [("location", "http://elsewhere\(target)")])
        default: throw Refusal(400)
        }
    }

    /// The parts of a multipart/related body.
    private static func parts(_ request: FakeService.Request) -> (JSONValue, [UInt8]) {
        let type = request.fields["content-type"] ?? ""
        let boundary = Data("\r\n--\(type.split(separator: "=").last ?? "")".utf8)
        let body = Data("\r\n".utf8) + request.body
        var rest = body[...]
        let parts = (0..<2).map { _ in
            let begin = rest.range(of: boundary)!.upperBound + 2
            let end = body[begin...].range(of: boundary)!.lowerBound
            let blank = body[begin..<end].range(of: Data("\r\n\r\n".utf8))!.upperBound
            rest = body[end...]
            return Array(body[blank..<end])
        }
        return ((try? JSONReader.parse(parts[0])) ?? .null, parts[1])
    }

    private static func session(
        _ id: String, _ request: FakeService.Request, _ state: inout State
    ) throws(Refusal) -> FakeService.Response {
        guard var session = state.sessions[id] else { throw Refusal(404, "session") }
        if let made = session.made { return .json(made) }
        if request.method == "DELETE" {
            state.sessions[id] = nil
            throw Refusal(499, "cancelled")
        }
        let words = (request.fields["content-range"] ?? "").dropFirst(6).split(separator: "/")
        let total = Int(words[1])
        if words[0] != "*" {
            let bounds = words[0].split(separator: "-").compactMap { Int($0) }
            let have = session.bytes.count
            guard bounds.count == 2, bounds[1] - bounds[0] + 1 == request.body.count else {
                throw Refusal(400, "range")
            }
            guard bounds[0] <= have else { throw Refusal(503, "a gap") }
            // Bytes at offsets that it has are ignored, whatever they are.
            var fresh = Array(request.body.dropFirst(have - bounds[0]))
            if total.map({ bounds[1] + 1 < $0 }) ?? true {
                if request.body.count % quantum != 0 { throw Refusal(400, "not a multiple") }
                if let limit = state.persists { fresh = Array(fresh.prefix(limit)) }
            }
            session.bytes += fresh
        }
        if let total, session.bytes.count > total { throw Refusal(400, "more than the total") }
        if total == session.bytes.count {
            var declared: [JSONMember] = []
            for part in request.fields["x-goog-hash"]?.split(separator: ",") ?? [] {
                let pair = part.split(separator: "=", maxSplits: 1).map(String.init)
                let key = pair[0] == "md5" ? "md5Hash" : pair[0]
                declared.append(JSONMember(key: key, value: .string(pair[1])))
            }
            guard case .object(let members) = session.resource else { throw Refusal(400) }
            do throws(Refusal) {
                session.made = try commit(
                    session.name, session.query, .object(members + declared), session.bytes,
                    &state)
            } catch {
                state.sessions[id] = nil
                throw error
            }
            session.bytes = []
            state.sessions[id] = session
            return .json(session.made!)
        }
        state.sessions[id] = session
        let kept = session.bytes.count
        return FakeService.Response(
            status: 308, fields: kept > 0 ? [("range", "bytes=0-\(kept - 1)")] : [])
    }

    // MARK: Objects

    @discardableResult
    static func commit(
        _ name: String, _ query: [String: String], _ resource: JSONValue, _ bytes: [UInt8],
        _ state: inout State
    ) throws(Refusal) -> String {
        try check(query, name, state)
        for (key, value) in [
            ("md5Hash", Base64.encode(digest(.md5, bytes))), ("crc32c", crc(bytes)),
        ] {
            if let declared = resource[key]?.text, declared != value {
                throw Refusal(400, "Provided \(key) doesn't match calculated")
            }
        }
        state.generation += 1
        let made = Object(generation: state.generation, resource: resource, bytes: bytes)
        state.objects[BytewiseString(name)] = made
        if !name.hasPrefix(".sluice/") { state.commits.append(name) }
        return json(made, name)
    }

    private static func json(_ object: Object, _ name: String) -> String {
        var json = JSONWriter(reserving: 512)
        json.beginObject()
        json.member("name", name)
        json.member("generation", "\(object.generation)")
        json.member("metageneration", "1")
        json.member("size", "\(object.bytes.count)")
        json.member("timeCreated", "2026-01-02T03:04:05.678Z")
        if object.resource["joined"] == nil {
            json.member("md5Hash", Base64.encode(digest(.md5, object.bytes)))
        }
        json.member("crc32c", crc(object.bytes))
        for key in [
            "contentType", "cacheControl", "contentDisposition", "contentEncoding",
            "contentLanguage",
        ] { if let value = object.resource[key]?.text { json.member(key: key, value) } }
        if case .object(let pairs)? = object.resource["metadata"] {
            json.key("metadata")
            json.beginObject()
            for pair in pairs { json.member(key: pair.key, pair.value.text ?? "") }
            json.endObject()
        }
        json.endObject()
        return String(decoding: json.bytes, as: UTF8.self)
    }
}
