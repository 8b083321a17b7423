/// Sends the requests of one upstream on one loop, and counts its connections in ``UpstreamStatistics``.
protocol Transport: AnyObject {
    /// Begins a request. The delegate is called later, never within this call.
    func start(_ request: ClientRequest, _ delegate: any TransferDelegate) -> any Transfer
    /// Closes idle connections, on the loop. Must be called before the release; no request may follow.
    func close()
}

/// A request in progress.
protocol Transfer: AnyObject {
    /// Cancels the request immediately. Without a response yet, the delegate gets `cancelled` and then the end.
    func cancel()
}

/// Receives a request's events on the loop, outside callbacks: at most one response or failure, then one end.
protocol TransferDelegate: AnyObject {
    /// The head is complete; the body is read separately.
    func received(_ response: consuming ClientResponse)
    /// There will be no response.
    func failed(_ error: ClientError)
    /// The request is over, and its connection is idle or closed. `failure`: why the response is missing or incomplete.
    func ended(_ failure: ClientError?)
}
