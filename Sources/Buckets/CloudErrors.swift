import HTTPClient

extension BucketError {
    /// A request to a service that had no complete response.
    init(_ error: ClientError) {
        let code: Code =
            switch error.code {
            case .timedOut: .timedOut
            case .queueFull: .overloaded
            case .unreachable, .connectionLost, .malformed, .tooLarge, .circuitOpen, .cancelled:
                .unavailable
            }
        self.init(code, "\(error)")
    }
}
