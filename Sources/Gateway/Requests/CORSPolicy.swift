import HTTPServer
import Wire

/// The pages of other origins whose scripts may call the gateway from a browser (Fetch standard, section 3.3).
public struct CORSPolicy: Sendable, Equatable {
    /// Origins such as `https://app.example`, compared bytewise. `*` allows all. If empty, browsers reject foreign
    /// pages.
    public var origins: [String]
    /// How long a browser may cache a preflight's response, in seconds.
    public var maximumAge: Int
    /// The response fields that a page may read. `*` allows all.
    public var exposedHeaders: [String]

    public init(origins: [String], maximumAge: Int = 3600, exposedHeaders: [String] = ["*"]) {
        self.origins = origins
        self.maximumAge = maximumAge
        self.exposedHeaders = exposedHeaders
    }

    private var isForAll: Bool { origins.contains("*") }

    /// Adds the fields that let a page of the request's origin read the response.
    func decorate(_ fields: inout HeaderFields, for request: HeaderFields) {
        if origins.isEmpty { return }
        if !isForAll { fields.append("vary", "Origin") }
        guard let origin = request["origin"], allows(origin) else { return }
        fields.append("access-control-allow-origin", isForAll ? "*" : origin)
        var exposed = exposedHeaders
        if !exposed.contains("*") {
            // Without them a page could not continue an upload.
            let upload = ["upload-", "tus-"].flatMap { prefix in
                fields.all(withPrefix: prefix).map { prefix + $0.suffix }
            }
            if !upload.isEmpty { exposed += ["location"] + upload }
        }
        if !exposed.isEmpty {
            fields.append("access-control-expose-headers", exposed.joined(separator: ", "))
        }
    }

    /// Adds the fields of a preflight's response if the request is a preflight and its origin is allowed.
    /// - Parameter methods: As in `Allow`.
    func preflight(_ fields: inout HeaderFields, for request: HeaderFields, methods: String) {
        if origins.isEmpty { return }
        fields.append("vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
        guard let origin = request["origin"], allows(origin),
            request.contains("access-control-request-method")
        else { return }
        fields.append("access-control-allow-methods", methods)
        if let names = request.list("access-control-request-headers"),
            CORSPolicy.isTokenList(names)
        {
            fields.append("access-control-allow-headers", names)
        }
        fields.append("access-control-max-age", maximumAge)
    }

    private func allows(_ origin: String) -> Bool { isForAll || origins.contains(origin) }

    private static func isTokenList(_ names: String) -> Bool {
        !names.isEmpty && names.utf8.count <= 4096
            && names.utf8.allSatisfy { ASCII.isToken($0) || $0 == 0x2c || $0 == 0x20 }
    }
}
