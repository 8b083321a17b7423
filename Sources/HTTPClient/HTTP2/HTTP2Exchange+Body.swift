import Glibc
import System

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
        if let count = receive(into: buffer) { return .bytes(count) }
        if hasEnd {
            finish()
            return .end
        }
        readClock.start(transport.loop.now)
        session?.note(self)
        return .wait
    }

    /// Lets the session receive bytes into the reader's buffer; returns nil if there are none now.
    private func receive(into buffer: UnsafeMutableRawBufferPointer) -> Int? {
        guard !hasEnd, let session else { return nil }
        (target, targetCount) = (buffer, 0)
        session.receive(for: self)
        let count = targetCount
        (target, targetCount) = (.init(start: nil, count: 0), 0)
        guard count > 0 else { return nil }
        if !hasEnd {
            session.consumed(self, count)
        } else if bytes.isEmpty {
            finish()
        }
        return count
    }

    /// Passes bytes to the current read; returns their number.
    func passToReader(_ part: UnsafeRawBufferPointer) -> Int {
        let count = min(part.count, target.count - targetCount)
        guard count > 0 else { return 0 }
        UnsafeMutableRawBufferPointer(rebasing: target[targetCount...])
            .copyMemory(from: .init(rebasing: part[..<count]))
        targetCount += count
        return count
    }

    /// Buffers bytes until they are read.
    func keep(_ part: UnsafeRawBufferPointer) {
        if part.isEmpty { return }
        if bytesRead > 0, bytes.count + part.count > bytes.capacity {
            bytes.removeSubrange(..<bytesRead)
            bytesRead = 0
        }
        bytes.append(contentsOf: part)
    }

    func dropBytes() {
        bytes = []
        bytesRead = 0
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        transport.loop.assertCurrent()
        waiter = resume
        // If bytes are available already, `resume` is called at the end of the batch.
        guard phase == .body, !hasEnd, bytesRead == bytes.count,
            session?.canReceive(for: self) != true
        else {
            return transport.afterwards { [self] in wake() }
        }
    }

    func close() {
        transport.loop.assertCurrent()
        guard phase == .body else { return }
        waiter = nil
        // The end may arrive in a separate frame.
        if !hasEnd, total == head?.contentLength { session?.receive(for: self) }
        closedByReader()
    }
}
