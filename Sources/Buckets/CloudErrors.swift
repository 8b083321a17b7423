import HTTPClient

extension BucketError {
    /// The error of a request without a complete response.
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

    /// Whether the failed change may have been made by this or an earlier attempt.
    func isUnsettled(after attempts: GCSRequests.Attempts) -> Bool {
        mayHaveChanged || attempts.count > 1 && [.unavailable, .timedOut, .overloaded].contains(code)
    }
}
