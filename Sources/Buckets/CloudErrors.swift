import HTTPClient

extension BucketError {
    /// An error for a request to a service that got no complete response.
    init(_ error: ClientError) {
        let code: Code =
            switch error.code {
            case .timedOut: .timedOut
            case .queueFull: .overloaded
            case .unreachable, .connectionLost, .malformed, .tooLarge, .circuitOpen, .cancelled: .unavailable
            }
        self.init(code, "\(error)")
        mayHaveChanged = error.mayHaveReached
    }

    /// Whether the failed change may nevertheless have been made, by this attempt or an earlier one.
    func isUnsettled(after attempts: GCSRequests.Attempts) -> Bool {
        mayHaveChanged || attempts.count > 1 && [.unavailable, .timedOut, .overloaded].contains(code)
    }
}
