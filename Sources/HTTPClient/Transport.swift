/// Moves requests of one upstream on one loop.
protocol Transport: AnyObject {
    /// Begins a request. The delegate hears of it in a later call, never from within this one.
    func start(_ request: ClientRequest, _ delegate: any TransferDelegate) -> any Transfer
    /// Connections that are open, and of these those at rest.
    var connections: (open: Int, idle: Int) { get }
    /// Called whenever these numbers have changed.
    var onConnections: (() -> Void)? { get set }
    /// Closes idle connections, on the loop; no request is begun afterwards. Called before the transport is released.
    func close()
}

/// A request that was begun.
protocol Transfer: AnyObject {
    /// Gives it up at once. Where no response was delivered yet the delegate hears of `cancelled`, then of the end.
    func cancel()
}

/// Hears of a request, on the loop and not from within a library's callback: at most once of a response or a failure,
/// and then once of the end.
protocol TransferDelegate: AnyObject {
    /// The head is complete. The rest comes by the body.
    func received(_ response: ClientResponse)
    /// There will be no response.
    func failed(_ error: ClientError)
    /// Nothing of the request is left: its connection is free or closed.
    func ended()
}
