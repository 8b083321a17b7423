import Gateway
import HTTPServer
import OpenSSL
import Wire

/// A file of the page, in the program.
struct ConsoleFile: Sendable {
    private let type: String
    private let bytes: [UInt8]
    private let tag: String

    private init(_ type: String, _ bytes: [UInt8]) {
        self.type = type
        self.bytes = bytes
        let digest = Digest(.sha256)
        digest.update(bytes.span.bytes)
        tag = "\"\(Hexadecimal.encode(Array(digest.finish().prefix(12))))\""
    }

    private static let files: [BytewiseString: ConsoleFile] = {
        let scripts: [(String, [UInt8])] = [
            ("app", PackageResources.app_js), ("editor", PackageResources.editor_js),
            ("elements", PackageResources.elements_js), ("explanation", PackageResources.explanation_js),
            ("live", PackageResources.live_js), ("objects", PackageResources.objects_js),
            ("requests", PackageResources.requests_js), ("rules", PackageResources.rules_js),
            ("state", PackageResources.state_js), ("transfers", PackageResources.transfers_js),
            ("uploads", PackageResources.uploads_js),
        ]
        var files: [BytewiseString: ConsoleFile] = [
            "/": ConsoleFile("text/html; charset=utf-8", PackageResources.index_html),
            "/style.css": ConsoleFile("text/css; charset=utf-8", PackageResources.style_css),
            "/icon.svg": ConsoleFile("image/svg+xml", PackageResources.icon_svg),
        ]
        for (name, bytes) in scripts {
            files[BytewiseString("/\(name).js")] = ConsoleFile("text/javascript; charset=utf-8", bytes)
        }
        return files
    }()

    static func named(_ path: String) -> ConsoleFile? { files[path] }

    /// The fields that keep a page from running any script but its own, from being embedded, and from sending its address.
    private static let policy: [(name: StaticString, value: String)] = [
        (
            "content-security-policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
                + "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                + "require-trusted-types-for 'script'; trusted-types 'none'"
        ),
        ("cross-origin-opener-policy", "same-origin"), ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"), ("cache-control", "no-cache"),
    ]

    /// The fields of every response with an object, which may be a page: a browser saves it, and runs none of its scripts.
    static let objectFields: HeaderFields = {
        var fields = HeaderFields()
        fields.append("content-security-policy", "sandbox; default-src 'none'")
        fields.append("content-disposition", "attachment")
        fields.append("cross-origin-resource-policy", "same-origin")
        fields.append("x-content-type-options", "nosniff")
        return fields
    }()

    func response(to head: RequestHead) throws(Problem) -> ConsoleResponse {
        guard head.method == "GET" || head.method == "HEAD" else { throw Problem.methodNotAllowed("GET, HEAD") }
        let isKnown = head.fields.values("if-none-match").contains { $0.contains(tag) }
        var response = ConsoleResponse(isKnown ? 304 : 200, type, isKnown ? [] : bytes)
        for (name, value) in ConsoleFile.policy { response.fields.append(name, value) }
        response.fields.append("etag", tag)
        return response
    }
}
