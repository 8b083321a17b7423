import HTTPServer
import Wire

/// Which pages of other origins a browser lets call the gateway (the Fetch standard, section 3.3).
public struct CORSPolicy: Sendable, Equatable {
    /// Origins such as `https://app.example`, compared byte by byte; `*` is any.
    public var origins: [String]
    /// How long a browser keeps a preflight's response, seconds.
    public var maximumAge: Int
    /// Fields of a response that a page may read; `*` is all.
    public var exposedHeaders: [String]

    public init(origins: [String], maximumAge: Int = 3600, exposedHeaders: [String] = ["*"]) {
        self.origins = origins
        self.maximumAge = maximumAge
        self.exposedHeaders = exposedHeaders
    }

    private var isForAll: Bool { origins.contains("*") }

    /// Adds what lets a page of the request's origin read the response.
    func decorate(_ fields: inout HeaderFields, for request: HeaderFields) {
        if !isForAll { fields.append("vary", "Origin") }
        guard let origin = request["origin"], allows(origin) else { return }
        fields.append("access-control-allow-origin", isForAll ? "*" : origin)
        if !exposedHeaders.isEmpty {
            fields.append(
                "access-control-expose-headers", exposedHeaders.joined(separator: ", "))
        }
    }

    /// Adds a preflight's fields where the request is one and its origin is allowed.
    /// - Parameter methods: As in `Allow`.
    func preflight(_ fields: inout HeaderFields, for request: HeaderFields, methods: String) {
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
