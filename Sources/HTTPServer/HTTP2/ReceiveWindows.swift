/// How the receive window of one stream grows: it doubles whenever the handler has consumed a whole window.
///
/// | event                                                     | result                                  |
/// |-----------------------------------------------------------|-----------------------------------------|
/// | `consumed`, less than the window since the last decision  | 0                                       |
/// | `consumed`, the window or more                            | the increment; the count starts again   |
/// | `consumed`, bytes still wait in the queue                 | 0; the count starts again               |
/// | `consumed`, the window has its maximum                    | 0; the count starts again               |
/// | `granted`                                                 | the window has grown                    |
///
/// The increment is as large as the window, up to ``ServerLimits/maximumWindow``. It takes effect by ``granted(_:)``,
/// if the loop's budget allows it.
struct StreamWindow: Equatable {
    /// Bytes granted beyond ``ServerLimits/initialWindow``.
    private(set) var grown = 0
    private var consumedSinceDecision = 0

    /// The handler consumed bytes.
    /// - Parameter isQueueEmpty: Whether no received byte waits for the handler.
    /// - Returns: By how many bytes the window should grow.
    mutating func consumed(_ count: Int, isQueueEmpty: Bool, _ limits: ServerLimits) -> Int {
        let current = size(limits)
        consumedSinceDecision += count
        guard consumedSinceDecision >= current else { return 0 }
        consumedSinceDecision = 0
        return isQueueEmpty ? max(0, min(current, limits.maximumWindow - current)) : 0
    }

    mutating func granted(_ bytes: Int) { grown += bytes }

    /// The window's size in bytes.
    func size(_ limits: ServerLimits) -> Int { limits.initialWindow + grown }
}

/// The receive window of a connection: at least the sum of the windows granted to its streams.
///
/// | event                                        | result        |
/// |----------------------------------------------|---------------|
/// | `streamGrew`, the sum is below the size      | nil           |
/// | `streamGrew`, the sum is above the size      | the new size  |
/// | `streamClosed`                               | the sum falls; the size stays |
struct ConnectionWindow: Equatable {
    /// The window's size in bytes.
    private(set) var size: Int
    private var grown = 0

    /// The initial size: that of RFC 9113, section 6.9.2, or one stream's maximum if that is larger.
    init(_ limits: ServerLimits) { size = max(65535, limits.maximumWindow) }

    /// A stream's window grew.
    /// - Returns: The connection's new size, if it has to grow too.
    mutating func streamGrew(by bytes: Int) -> Int? {
        grown += bytes
        guard grown > size else { return nil }
        size = grown
        return size
    }

    /// Takes back the bytes beyond the initial window of a stream that has closed.
    mutating func streamClosed(grown bytes: Int) { grown -= bytes }
}
