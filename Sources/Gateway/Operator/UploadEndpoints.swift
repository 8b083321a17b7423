import Buckets
import System
import Wire

extension OperatorEndpoints {
    /// Adds the endpoints of upload sessions: `GET /uploads` lists open ones, `DELETE /uploads?id=ID` cancels one, and
    /// `POST /uploads/sweep` removes expired ones.
    ///
    /// An operator's ID of a session is a hash: neither the session's id nor its token can be derived from it.
    public mutating func addUploads(
        _ uploads: Uploads, _ buckets: [(name: String, driver: any SessionDriver)]
    ) {
        add("/uploads", "Open upload sessions; `DELETE` with `?id=ID` cancels one.") {
            (request) throws(Problem) in
            Response(200, "application/json", await uploads.list(buckets, in: value("bucket", in: request.query)))
        }
        add("/uploads", nil, method: "DELETE") { (request) throws(Problem) in
            guard let id = value("id", in: request.query) else {
                throw Problem(.invalidArgument, "The query names the session: ?id=ID.")
            }
            try await uploads.cancel(id, buckets)
            return Response(200, "application/json", Array("{\"cancelled\":\"\(id)\"}\n".utf8))
        }
        add("/uploads/sweep", "`POST` removes expired upload sessions now.", method: "POST") {
            (_) throws(Problem) in
            Response(200, "application/json", try await uploads.sweep(buckets))
        }
    }
}

/// The value of a parameter, which is an ID or a bucket's name: nothing in it is percent-encoded.
private func value(_ name: String, in query: [Substring]) -> String? {
    query.first { $0.hasPrefix("\(name)=") }.map { String($0.dropFirst(name.utf8.count + 1)) }
}

extension Uploads {
    /// The maximum number of sessions in one response.
    private static let listLimit = 1000

    /// The open sessions as JSON, sorted by expiry in each bucket. Stores that fail are listed beside them.
    /// - Parameter bucket: Only this one's; nil for all.
    package func list(
        _ buckets: [(name: String, driver: any SessionDriver)], in bucket: String?
    ) async -> [UInt8] {
        var json = JSONWriter(reserving: 4096)
        json.beginObject()
        json.key("uploads")
        json.beginArray()
        var count = 0
        var failures: [(bucket: String, cause: String)] = []
        for (name, driver) in buckets where bucket == nil || BytewiseString.areEqual(name, bucket!) {
            do throws(BucketError) {
                try await forEach(name, driver) { found in
                    guard found.state.end == nil else { return true }
                    count += 1
                    if count <= Uploads.listLimit { json.write(found) }
                    return count <= Uploads.listLimit
                }
            } catch {
                failures.append((name, Problem(error).detail))
            }
        }
        json.endArray()
        json.key("isComplete")
        json.raw(count <= Uploads.listLimit && failures.isEmpty ? "true" : "false")
        if !failures.isEmpty {
            json.key("failures")
            json.beginArray()
            for failure in failures {
                json.beginObject()
                json.key("bucket")
                json.string(failure.bucket)
                json.key("detail")
                json.string(failure.cause)
                json.endObject()
            }
            json.endArray()
        }
        json.endObject()
        return json.bytes + [0x0a]
    }

    /// Cancels a session by its operator's ID.
    /// - Throws: ``Problem`` with `upload-not-found`.
    package func cancel(
        _ id: String, _ buckets: [(name: String, driver: any SessionDriver)]
    ) async throws(Problem) {
        for (name, driver) in buckets {
            var wanted: StoredUpload?
            do throws(BucketError) {
                try await forEach(name, driver) { found in
                    if BytewiseString.areEqual(found.publicID, id) { wanted = found }
                    return wanted == nil
                }
            } catch {
                throw Problem(error)
            }
            guard let wanted else { continue }
            do throws(SessionError) {
                if wanted.context.dialect.hasParts, let driver = driver as? any PartsDriver {
                    // Without its key, which the client's URL has, because nothing is sent.
                    try await driver.openParts(wanted.id, wanted.state.name, key: []).cancel()
                } else {
                    try await driver.openSession(wanted.id).cancel()
                }
            } catch {
                throw Problem(error)
            }
            return ended(wanted.id, .cancelled)
        }
        throw Problem(uploadNotFound: "no session has this ID")
    }

    /// Removes expired sessions of all buckets.
    /// - Returns: Their number by bucket, as JSON.
    fileprivate func sweep(
        _ buckets: [(name: String, driver: any SessionDriver)]
    ) async throws(Problem) -> [UInt8] {
        var json = JSONWriter(reserving: 256)
        json.beginObject()
        json.key("removed")
        json.beginObject()
        for (name, driver) in buckets {
            do throws(BucketError) {
                let count = try await sweep(name, driver, looksUpAll: true)
                json.key(text: name)
                json.raw(String(count))
            } catch {
                throw Problem(error)
            }
        }
        json.endObject()
        json.endObject()
        return json.bytes + [0x0a]
    }
}

extension JSONWriter {
    /// Writes a session's properties for operators: neither the object's name nor access to the session.
    fileprivate mutating func write(_ upload: StoredUpload) {
        let (state, owner) = (upload.state, upload.context.owner)
        beginObject()
        member("id", upload.publicID)
        member("bucket", upload.bucket)
        member("protocol", upload.context.dialect.name)
        member("group", owner.group)
        member("source", owner.source)
        member("caller", owner.caller)
        member("offset", Int64(clamping: state.offset))
        if let length = state.length { member("length", Int64(clamping: length)) }
        member("created", HTTPDate.rfc3339(milliseconds: state.created))
        member("ageSeconds", max(0, SystemClock.seconds() - state.created / 1000))
        member("expires", HTTPDate.rfc3339(milliseconds: state.expires * 1000))
        endObject()
    }
}
