import CNghttp2
import Glibc
import Testing

@testable import HTTPServer

@Suite("The memory of an nghttp2 session")
struct SessionMemoryTests {
    /// Runs `body` with the allocator while a session is created.
    private func withAllocator(_ body: (nghttp2_mem) throws -> Void) rethrows {
        let memory = SessionMemory()
        try memory.whileOpen { try body($0!.pointee) }
        memory.release()
    }

    @Test("A session that has sent its settings has written a page of its block, and read another")
    func touchedPages() throws {
        // Blocks that were given back are taken first. A hundred sessions also get new ones.
        var callbacks: OpaquePointer?
        nghttp2_session_callbacks_new(&callbacks)
        defer { nghttp2_session_callbacks_del(callbacks) }
        var open: [(session: OpaquePointer, memory: SessionMemory)] = []
        var touched: [Int] = []
        for _ in 0..<100 {
            let memory = SessionMemory()
            var session: OpaquePointer?
            var block: UnsafeMutableRawPointer?
            memory.whileOpen {
                block = $0?.pointee.mem_user_data
                _ = nghttp2_session_server_new3(&session, callbacks, nil, nil, $0)
            }
            nghttp2_submit_settings(session, UInt8(NGHTTP2_FLAG_NONE.rawValue), nil, 0)
            var sent: UnsafePointer<UInt8>?
            while nghttp2_session_mem_send(session, &sent) > 0 {}
            var pages = [UInt8](repeating: 0, count: 7)
            #expect(mincore(block, pages.count * 4096, &pages) == 0)
            touched.append(pages.count { $0 & 1 == 1 })
            open.append((try #require(session), memory))
        }
        #expect(touched.min() == 2)
        for (session, memory) in open {
            nghttp2_session_del(session)
            memory.release()
        }
    }

    @Test("A session's first memory comes from one block, whose far end is not touched")
    func oneBlock() throws {
        try withAllocator { functions in
            let user = functions.mem_user_data
            let first = try #require(functions.calloc(61, 48, user))
            let second = try #require(functions.malloc(1, user))
            let third = try #require(functions.realloc(nil, 16_394, user))
            #expect(second - first == 61 * 48)
            #expect(third - second == 16)
            functions.free(second, user)
            // Tables are at the end of the block.
            let table = try #require(functions.malloc(1024, user))
            #expect(first + 28 * 1024 - 32 - table == 1024)
            // What does not fit comes from malloc, and goes back to it.
            let other = try #require(functions.malloc(16_394, user))
            #expect(abs(other - first) > 28 * 1024)
            functions.free(other, user)
        }
    }

    @Test("A block that was used before is zeroed where that is asked for")
    func zeroed() throws {
        for _ in 0..<2 {
            try withAllocator { functions in
                let memory = try #require(functions.calloc(1000, 8, functions.mem_user_data))
                let bytes = UnsafeMutableRawBufferPointer(start: memory, count: 8000)
                #expect(bytes.allSatisfy { $0 == 0 })
                memset(memory, 1, 8000)
            }
        }
    }

    @Test("Memory of a block moves to malloc when it grows, with its content")
    func reallocated() throws {
        try withAllocator { functions in
            let user = functions.mem_user_data
            let old = try #require(functions.malloc(10, user))
            memcpy(old, "0123456789", 10)
            var moved = try #require(functions.realloc(old, 100_000, user))
            #expect(memcmp(moved, "0123456789", 10) == 0)
            moved = try #require(functions.realloc(moved, 200_000, user))
            #expect(memcmp(moved, "0123456789", 10) == 0)
            functions.free(moved, user)
            functions.free(nil, user)
        }
    }

    @Test("Sizes that overflow get nothing")
    func overflow() {
        withAllocator { functions in
            #expect(functions.calloc(.max, 2, functions.mem_user_data) == nil)
            #expect(functions.malloc(.max, functions.mem_user_data) == nil)
        }
    }

    @Test("Sessions have blocks of their own, and work while many come and go")
    func sessions() throws {
        var callbacks: OpaquePointer?
        nghttp2_session_callbacks_new(&callbacks)
        defer { nghttp2_session_callbacks_del(callbacks) }
        var random = SystemRandomNumberGenerator()
        var sessions: [(OpaquePointer, SessionMemory)] = []
        for _ in 0..<2000 {
            if sessions.count < 300, Int.random(in: 0..<5, using: &random) < 3 {
                let memory = SessionMemory()
                var session: OpaquePointer?
                memory.whileOpen {
                    _ = nghttp2_session_server_new3(&session, callbacks, nil, nil, $0)
                }
                sessions.append((try #require(session), memory))
            } else if let index = sessions.indices.randomElement(using: &random) {
                let (session, memory) = sessions.remove(at: index)
                // The preface and empty SETTINGS of the client: the acknowledgement is sent.
                let preface =
                    Array("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".utf8) + [0, 0, 0, 4, 0, 0, 0, 0, 0]
                #expect(
                    nghttp2_session_mem_recv(session, preface, preface.count) == preface.count)
                var sent: UnsafePointer<UInt8>?
                #expect(nghttp2_session_mem_send(session, &sent) == 9)
                #expect(
                    sent.map { Array(UnsafeBufferPointer(start: $0, count: 9)) } == [
                        0, 0, 0, 4, 1, 0, 0, 0, 0,
                    ])
                nghttp2_session_del(session)
                memory.release()
            }
        }
        for (session, memory) in sessions {
            nghttp2_session_del(session)
            memory.release()
        }
    }
}
