import Glibc
import System

/// Reading a response's body.
extension HTTP2Exchange {
    var arrivedRest: Int? { phase == .body && hasEnd ? bytes.count - bytesRead : nil }

    func read(into buffer: UnsafeMutableRawBufferPointer) throws(ClientError) -> SourceRead {
        transport.loop.assertCurrent()
        if let failure { throw failure }
        guard phase == .body else { return .end }
        let count = min(buffer.count, bytes.count - bytesRead)
        if count > 0 {
            bytes.withUnsafeBytes {
                buffer.copyMemory(from: .init(rebasing: $0[bytesRead..<bytesRead + count]))
            }
            bytesRead += count
            if bytesRead == bytes.count {
                bytes.removeAll(keepingCapacity: !hasEnd)
                bytesRead = 0
                if hasEnd { finish() }
            }
            if !hasEnd { session?.consumed(self, count) }
            return .bytes(count)
        }
        if buffer.count == 0 { return .wait }
        if hasEnd {
            finish()
            return .end
        }
        readClock.start(transport.loop.now)
        session?.note(self)
        return .wait
    }

    func dropBytes() {
        var dropped: [UInt8] = []
        swap(&dropped, &bytes)
        bytesRead = 0
        transport.giveBack(dropped)
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        transport.loop.assertCurrent()
        waiter = resume
        // If bytes are available already, `resume` is called at the end of the batch.
        guard phase == .body, !hasEnd, bytesRead == bytes.count else {
            return transport.afterwards { [self] in wake() }
        }
    }

    func close() {
        transport.loop.assertCurrent()
        guard phase == .body else { return }
        waiter = nil
        closedByReader()
    }
}
