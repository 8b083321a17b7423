import System
import Testing

@testable import HTTPServer

@Suite("The table of an HTTP/2 connection's streams")
struct StreamTableTests {
    @Test(
        "It holds what a dictionary holds, also for identifiers that share a slot",
        arguments: [2, 64, 2048] as [Int32])
    func model(step: Int32) throws {
        let context = LoopContext(
            loop: try EventLoop(), limits: ServerLimits(), statistics: ServerStatistics())
        let owner = NoOwner()
        var table = StreamTable()
        var model: [Int32: ServerStream] = [:]
        var random = SystemRandomNumberGenerator()
        var next: Int32 = 1
        for _ in 0..<20_000 {
            if model.count < 100, Bool.random(using: &random) {
                let stream = ServerStream(
                    id: next, owner: owner, context: context, expectsContinue: false)
                table.insert(HTTP2Stream(stream))
                model[next] = stream
                next += step * Int32.random(in: 1...3, using: &random)
            } else if let id = model.keys.randomElement(using: &random) {
                #expect(table.remove(id)?.stream === model.removeValue(forKey: id))
                #expect(table.remove(id) == nil)
            }
            #expect(table.count == model.count && table.isEmpty == model.isEmpty)
        }
        for (id, stream) in model {
            #expect(table[id] === stream)
            #expect(table[id + 1] == nil)
            #expect(table.index(of: id).map { table[$0].stream === stream } == true)
        }
        #expect(Set(table.streams.map(\.id)) == Set(model.keys))
        #expect(Set(table.indices.map { table[$0].stream.id }) == Set(model.keys))
        #expect(table[0] == nil && table[next] == nil)
    }
}
