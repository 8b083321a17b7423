/// The protocol of a connection, by its first bytes: the HTTP/2 preface begins with a method that nothing else uses.
///
/// | first bytes                                  | clear text  | TLS      |
/// |----------------------------------------------|-------------|----------|
/// | fewer than four, and the beginning of `PRI ` | `undecided` | `http1`  |
/// | `PRI ` and more                              | `http2`     | `http1`  |
/// | others                                       | `http1`     | `http1`  |
///
/// Over TLS only ALPN chooses HTTP/2 (RFC 9113, section 3.2). Without it the preface is an unsupported version.
enum ProtocolChoice: Equatable {
    case undecided, http1, http2

    init(_ first: [UInt8], isSecure: Bool) {
        let preface: StaticString = "PRI "
        let count = min(first.count, 4)
        let isPreface =
            !isSecure
            && preface.withUTF8Buffer { $0.prefix(count).elementsEqual(first.prefix(count)) }
        self = !isPreface ? .http1 : count < 4 ? .undecided : .http2
    }
}
