import BucketConformance
import OpenSSL
import TestSupport
import Wire

@testable import Buckets

/// The multipart uploads of Cloud Storage's XML API, a part of ``GCSModel``.
struct GCSModelParts: Sendable {
    struct Upload: Sendable {
        let name: String
        let resource: JSONValue
        var parts: [Int: [UInt8]] = [:]
    }
    var uploads: [String: Upload] = [:]
    var next = 0
    /// The maximum number of parts in a page of a list.
    var page = 1000
    /// Whether lists of parts ignore where they should start.
    var repeats = false
    /// The fields of the last creation.
    var fields: [String: String] = [:]

    static func has(_ request: FakeService.Request) -> Bool {
        request.path == "/b" || request.path.hasPrefix("/b/")
    }

    static func kind(_ request: FakeService.Request) -> String {
        let query = request.query
        switch request.method {
        case "POST": return query["uploads"] != nil ? "initiate" : "complete"
        case "PUT": return "part"
        case "DELETE": return "abort"
        default: return query["uploads"] != nil ? "uploads" : "parts"
        }
    }

    private static func xml(_ text: String, _ status: Int = 200, _ fields: [(String, String)] = [])
        -> FakeService.Response
    {
        FakeService.Response(
            status: status, fields: fields + [("content-type", "application/xml")],
            body: Array("<?xml version='1.0' encoding='UTF-8'?>\(text)".utf8))
    }

    private static func error(_ status: Int, _ code: String) -> FakeService.Response {
        xml("<Error><Code>\(code)</Code><Message>\(code).</Message></Error>", status)
    }

    static func respond(_ request: FakeService.Request, _ state: inout GCSModel.State) -> FakeService.Response {
        let query = request.query
        let name = String(request.path.dropFirst(3))
        let kind = kind(request)
        if kind == "initiate" { return begin(name, request, &state) }
        if kind == "uploads" { return uploads(query, state) }
        guard let id = query["uploadId"], let upload = state.parts.uploads[id], upload.name == name else {
            return error(404, "NoSuchUpload")
        }
        switch kind {
        case "part":
            guard let number = query["partNumber"].flatMap({ Int($0) }), (1...10_000).contains(number) else {
                return error(400, "InvalidArgument")
            }
            let md5 = Base64.encode(digest(.md5, request.body))
            if let declared = request.fields["content-md5"], declared != md5 { return error(400, "BadDigest") }
            state.parts.uploads[id]?.parts[number] = request.body
            return FakeService.Response(
                fields: [("etag", "\"\(tag(request.body))\""), ("x-goog-hash", "crc32c=\(crc(request.body))")])
        case "parts": return list(upload, query, state)
        case "abort":
            state.parts.uploads[id] = nil
            return FakeService.Response(status: 204)
        default: return complete(id, upload, request, &state)
        }
    }

    private static func tag(_ bytes: [UInt8]) -> String { Hexadecimal.encode(digest(.md5, bytes)) }

    private static func begin(_ name: String, _ request: FakeService.Request, _ state: inout GCSModel.State)
        -> FakeService.Response
    {
        var members: [JSONMember] = [JSONMember(key: "joined", value: .boolean(true))]
        var metadata: [JSONMember] = []
        for (field, key) in [
            ("content-type", "contentType"), ("cache-control", "cacheControl"),
            ("content-disposition", "contentDisposition"), ("content-encoding", "contentEncoding"),
            ("content-language", "contentLanguage"),
        ] { if let value = request.fields[field] { members.append(JSONMember(key: key, value: .string(value))) } }
        for (field, value) in request.fields where field.hasPrefix("x-goog-meta-") {
            metadata.append(JSONMember(key: String(field.dropFirst(12)), value: .string(value)))
        }
        members.append(JSONMember(key: "metadata", value: .object(metadata)))
        state.parts.next += 1
        state.parts.fields = request.fields
        let id = "upload-\(state.parts.next)"
        state.parts.uploads[id] = Upload(name: name, resource: .object(members))
        let result = "<Bucket>b</Bucket><Key>\(name)</Key><UploadId>\(id)</UploadId>"
        return xml("<InitiateMultipartUploadResult>\(result)</InitiateMultipartUploadResult>")
    }

    private static func uploads(_ query: [String: String], _ state: GCSModel.State) -> FakeService.Response {
        let found = state.parts.uploads.filter { $0.value.name.hasPrefix(query["prefix"] ?? "") }
        let list = found.map { "<Upload><Key>\($0.value.name)</Key><UploadId>\($0.key)</UploadId></Upload>" }
        return xml("<ListMultipartUploadsResult>\(list.joined())</ListMultipartUploadsResult>")
    }

    private static func list(_ upload: Upload, _ query: [String: String], _ state: GCSModel.State)
        -> FakeService.Response
    {
        let start = state.parts.repeats ? 0 : Int(query["part-number-marker"] ?? "") ?? 0
        let limit = min(state.parts.page, Int(query["max-parts"] ?? "") ?? 1000)
        let all = upload.parts.filter { $0.key > start }.sorted { $0.key < $1.key }
        let parts = all.prefix(limit).map { number, bytes in
            """
            <Part><PartNumber>\(number)</PartNumber><LastModified>2026-01-02T03:04:05.678Z</LastModified>\
            <ETag>"\(tag(bytes))"</ETag><Size>\(bytes.count)</Size></Part>
            """
        }
        return xml(
            """
            <ListPartsResult><Bucket>b</Bucket><Key>\(upload.name)</Key>\
            <IsTruncated>\(all.count > limit)</IsTruncated>\(parts.joined())</ListPartsResult>
            """)
    }

    private static func complete(
        _ id: String, _ upload: Upload, _ request: FakeService.Request, _ state: inout GCSModel.State
    ) -> FakeService.Response {
        var bytes: [UInt8] = []
        var last = 0
        let listed = request.text.split(separator: "<Part>").dropFirst()
        for (index, part) in listed.enumerated() {
            let words = part.split { $0 == "<" || $0 == ">" }.map(String.init)
            guard let number = Int(words[1]), number > last, let stored = upload.parts[number],
                words[4] == "\"\(tag(stored))\""
            else { return error(400, "InvalidPart") }
            if index < listed.count - 1, stored.count < 5 << 20 { return error(400, "EntityTooSmall") }
            bytes += stored
            last = number
        }
        guard last > 0 else { return error(400, "MalformedXML") }
        do throws(GCSModel.Refusal) {
            try GCSModel.commit(upload.name, [:], upload.resource, bytes, &state)
        } catch {
            return self.error(error.status, error.message)
        }
        state.parts.uploads[id] = nil
        let result = "<Bucket>b</Bucket><Key>\(upload.name)</Key><ETag>\"joined-\(listed.count)\"</ETag>"
        return xml("<CompleteMultipartUploadResult>\(result)</CompleteMultipartUploadResult>")
    }
}
