/// A random number generator whose numbers are the same in every run (SplitMix64).
public struct SeededGenerator: RandomNumberGenerator {
    private var state: UInt64

    public init(_ seed: UInt64) { state = seed }

    public mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var value = state
        value = (value ^ value >> 30) &* 0xbf58_476d_1ce4_e5b9
        value = (value ^ value >> 27) &* 0x94d0_49bb_1331_11eb
        return value ^ value >> 31
    }

    /// One of `seeds`, with up to three changes: a piece inserted, bytes removed, repeated or replaced, or the end of
    /// another seed.
    public mutating func mutation(of seeds: [[UInt8]], with pieces: [[UInt8]]) -> [UInt8] {
        var bytes = seeds.randomElement(using: &self)!
        for _ in 0..<Int.random(in: 0...3, using: &self) {
            let start = Int.random(in: 0...bytes.count, using: &self)
            let end = min(bytes.count, start + Int.random(in: 0...6, using: &self))
            switch Int.random(in: 0..<5, using: &self) {
            case 0: bytes.insert(contentsOf: pieces.randomElement(using: &self)!, at: start)
            case 1: bytes.removeSubrange(start..<end)
            case 2: bytes.insert(contentsOf: Array(bytes[start..<end]), at: start)
            case 3:
                if start < bytes.count { bytes[start] = UInt8.random(in: 0...255, using: &self) }
            default:
                let other = seeds.randomElement(using: &self)!
                bytes[start...] = other[Int.random(in: 0...other.count, using: &self)...]
            }
        }
        return bytes
    }
}
