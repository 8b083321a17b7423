/// A request on an HTTP/2 connection, with the state that only HTTP/2 has.
struct HTTP2Stream {
    let stream: ServerStream
    var window: StreamWindow
    var unwantedBody = UnwantedBody()

    init(_ stream: ServerStream) {
        self.stream = stream
        window = StreamWindow(stream.progressMark.time)
    }

    func deadline(_ limits: ServerLimits) -> UInt64 {
        min(
            stream.progressMark.time + limits.progressInterval,
            unwantedBody.deadline(limits))
    }
}
