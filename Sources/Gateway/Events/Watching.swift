import Buckets
import HTTPServer
import System
import Wire

/// A request for the changes after a number, which waits for the first.
final class WatchRequest {
    /// The client has seen everything up to this number.
    let sequence: Int64
    let prefix: String
    /// The folder that the names reveal: the prefix up to its last `/`, without the slash.
    let folder: String
    /// The longest wait, in nanoseconds.
    let wait: UInt64

    /// The longest wait that can be asked for, and the default, in seconds.
    static let (longestWait, defaultWait) = (UInt64(60), UInt64(25))

    init(after sequence: Int64, prefix: String, wait: UInt64) {
        self.sequence = sequence
        self.prefix = prefix
        self.wait = wait
        folder = ListRequest.folder(of: prefix)
    }
}

extension Authorizer {
    /// Whether the policy allows the access to a folder, as ``evaluate(_:folder:)`` decides. It is no decision on the
    /// request itself, so nothing is logged.
    func allows(folder: String) async throws(Problem) -> Bool {
        try await context.giveWay()
        while true {
            switch decision(of: folder) {
            case .allow: return true
            case .needsDocuments(let paths): guard try await lookUp(paths) else { return false }
            default: return false
            }
        }
    }
}

extension OperationHandler {
    /// The maximum size of a response in bytes, which its last event may exceed: 256 KiB.
    private static let changesBytes = 256 * 1024
    /// The maximum number of events in a response, and of those that are read at once.
    private static let maximumChanges = 1000

    /// The newest number of a watched bucket; nil for any other.
    func newestSequence() async throws(Problem) -> Int64? {
        guard case .on(let watchers) = bucket.watch else { return nil }
        return try await bounds(watchers).newest
    }

    /// Responds with the changes after a number as soon as there are any, or without any after the longest wait.
    /// - Throws: ``Problem``: `watch-expired` if changes since then are not kept, `not-implemented` if the bucket is not
    ///   watched, `overloaded` if too many requests wait.
    // What it calls is not inlined, so that a request that waits does not reserve memory for it.
    func watch(_ request: WatchRequest) async throws(Problem) -> Response {
        try authorizer.require(try await authorizer.evaluate())
        guard case .on(let watchers) = bucket.watch else {
            if case .off(let reason) = bucket.watch { throw Problem(.notImplemented, reason) }
            preconditionFailure("it is on or off")
        }
        try watchers.watches.enter()
        defer { watchers.watches.leave() }
        let deadline = EventLoop.monotonicNow() &+ longestWait(request)
        let prefix = Array(request.prefix.utf8)
        var position = request.sequence
        while true {
            let version = watchers.version
            // Mostly there is nothing to read.
            let hasNews = watchers.log.knownBounds?.newest != position
            if hasNews, let end = try await skip(to: prefix, from: &position, watchers) {
                let changes = try await changes(end, request, after: position)
                position = changes.last
                if changes.count > 0 { return changes.response() }
                continue
            }
            let now = EventLoop.monotonicNow()
            if now >= deadline || watchers.watches.hasEnded { break }
            context.exchange.endsWithInput = true
            // It may have ended before it was waited for.
            if context.exchange.isClientGone { throw RequestContext.clientGone }
            position = await watchers.wait(request.prefix, after: position, unless: version, atMost: deadline - now)
            context.exchange.endsWithInput = false
            context.record.waitedNanoseconds += EventLoop.monotonicNow() - now
            if context.exchange.isClientGone { throw RequestContext.clientGone }
            try await check(position, watchers)
        }
        try await authorizeAgain(request)
        try await check(position, watchers)
        return Changes(after: position).response()
    }

    /// The longest wait: a random sixteenth is added, so that clients that began together come back one by one. A caller
    /// whose credential expires does not wait longer.
    private func longestWait(_ request: WatchRequest) -> UInt64 {
        let wait = request.wait + (request.wait > 0 ? UInt64.random(in: 0...request.wait / 16) : 0)
        guard let expires = context.caller.principal?.expires, expires != .max else { return wait }
        // At least a second, so that a client is not asked to come back at once again and again.
        let left = min(max(expires - context.now, 1), 2 * Int64(WatchRequest.longestWait))
        return min(wait, UInt64(left) * 1_000_000_000)
    }

    private func bounds(_ watchers: Watchers) async throws(Problem) -> EventBounds {
        if let known = watchers.log.knownBounds { return known }
        return try await findBounds(watchers)
    }

    @inline(never)
    private func findBounds(_ watchers: Watchers) async throws(Problem) -> EventBounds {
        do throws(BucketError) { return try await watchers.log.eventBounds() } catch { throw Problem(error) }
    }

    /// Checks that everything after a number is still kept.
    private func check(_ position: Int64, _ watchers: Watchers) async throws(Problem) {
        let bounds = try await bounds(watchers)
        if bounds.contains(position) { return }
        throw Problem(
            .watchExpired, "The changes since then are not kept: list again.",
            cause: "\(position) is not within \(bounds.start)...\(bounds.newest)")
    }

    /// Reads until there are events with the prefix that may be shown.
    /// - Parameter position: The number after which it reads; at the end the one before the first such event.
    /// - Returns: nil if there are none.
    @inline(never)
    private func skip(to prefix: [UInt8], from position: inout Int64, _ watchers: Watchers)
        async throws(Problem) -> [BucketEvent]?
    {
        while true {
            try await context.giveWay()
            let events: [BucketEvent]
            do throws(BucketError) {
                events = try await watchers.log.events(after: position, limit: OperationHandler.maximumChanges)
            } catch {
                throw Problem(error)
            }
            // After the read, because rows may have been trimmed before it.
            try await check(position, watchers)
            guard let last = events.last else { return nil }
            let first = events.firstIndex { event in
                event.object.name.utf8.starts(with: prefix) && event.kind != .replaced
                    && bucket.serves(event.object.name)
            }
            if let first {
                if first > 0 { position = events[first - 1].sequence }
                return Array(events[first...])
            }
            position = last.sequence
        }
    }

    /// Authorizes the request again, and all that it would reveal.
    /// - Returns: The events that the caller may see.
    @inline(never)
    private func changes(_ events: [BucketEvent], _ request: WatchRequest, after position: Int64)
        async throws(Problem) -> Changes
    {
        let authorizer = try await authorizeAgain(request)
        var folders = FolderDecisions(base: request.folder)
        var changes = Changes(after: position)
        for event in events {
            try await context.giveWay()
            let name = event.object.name
            if changes.bytes >= OperationHandler.changesBytes || folders.count >= OperationHandler.maximumFolders {
                break
            }
            if name.utf8.starts(with: request.prefix.utf8), event.kind != .replaced, bucket.serves(name),
                try await folders.allow(name, authorizer)
            {
                changes.append(event, withProperties: authorizer.isReadable(name))
            }
            changes.last = event.sequence
        }
        return changes
    }

    /// Evaluates the rules again: they, or the documents that they look up, may have changed during the wait.
    @inline(never) @discardableResult
    private func authorizeAgain(_ request: WatchRequest) async throws(Problem) -> Authorizer {
        let access = RequestedAccess(.list, bucket: bucket.name, name: request.folder)
        let authorizer = Authorizer(context, bucket, access, authorizer.grant, parameters: authorizer.parameters)
        try authorizer.require(try await authorizer.evaluate())
        return authorizer
    }
}

/// The decisions on folders of one response.
private struct FolderDecisions {
    let base: String
    private var decisions: [BytewiseString: Bool] = [:]

    init(base: String) { self.base = base }

    var count: Int { decisions.count }

    /// Whether the caller may list all folders between the base and an object.
    mutating func allow(_ name: String, _ authorizer: Authorizer) async throws(Problem) -> Bool {
        let bytes = Array(name.utf8)
        let start = base.isEmpty ? 0 : base.utf8.count + 1
        for end in bytes.indices.dropFirst(start) where bytes[end] == UInt8(ascii: "/") {
            let folder = String(decoding: bytes[..<end], as: UTF8.self)
            if decisions[BytewiseString(folder)] == nil {
                decisions[BytewiseString(folder)] = try await authorizer.allows(folder: folder)
            }
            guard decisions[BytewiseString(folder)] == true else { return false }
        }
        return true
    }
}

/// Events as a response: `{"sequence": "M", "events": […]}`.
private struct Changes {
    /// The number after which the client goes on.
    var last: Int64
    private(set) var count = 0
    private var events = JSONWriter(reserving: 1024)

    init(after sequence: Int64) {
        last = sequence
        events.beginArray()
    }

    var bytes: Int { events.bytes.count }

    mutating func append(_ event: BucketEvent, withProperties: Bool) {
        count += 1
        events.beginObject()
        events.member("type", event.kind.name)
        events.member("sequence", String(event.sequence))
        events.member("time", HTTPDate.rfc3339(milliseconds: event.time / 1000))
        events.member("name", event.object.name)
        if withProperties {
            event.object.writeProperties(to: &events)
            if let other = event.otherGeneration { events.member("overwroteGeneration", String(other)) }
        }
        events.endObject()
    }

    consuming func response() -> Response {
        events.endArray()
        var json = JSONWriter(reserving: events.bytes.count + 64)
        json.beginObject()
        json.member("sequence", String(last))
        json.member(key: "events", json: events.bytes)
        json.endObject()
        return Response(status: 200, json: json.bytes)
    }
}
