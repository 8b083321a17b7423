import TestSupport
import Wire

@testable import Gateway

/// A text's bytes as the parsers take them.
func bytes(_ text: String) -> ArraySlice<UInt8> { Array(text.utf8)[...] }

extension SeededGenerator {
    /// A seed of `seeds` with some bytes changed, removed, repeated or put in.
    mutating func mutation(of seeds: [String]) -> [UInt8] {
        var bytes = Array(seeds.randomElement(using: &self)!.utf8)
        for _ in 0..<Int.random(in: 0...6, using: &self) {
            let place = Int.random(in: 0...bytes.count, using: &self)
            switch Int.random(in: 0..<5, using: &self) {
            case 0: bytes.insert(UInt8.random(in: 0...255, using: &self), at: place)
            case 1 where place < bytes.count: bytes.remove(at: place)
            case 2 where place < bytes.count:
                bytes[place] = UInt8.random(in: 0...255, using: &self)
            case 3: bytes.insert(contentsOf: bytes[place...], at: place)
            default:
                let other = seeds.randomElement(using: &self)!
                bytes.replaceSubrange(place..., with: other.utf8)
            }
        }
        return bytes
    }
}
