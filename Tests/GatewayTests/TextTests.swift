import SecurityRules
import Testing
import Wire

@testable import Gateway

/// Text that looks the same and has other bytes is another text: U+212A is no "K".
@Suite struct TextTests {
    private let kelvin = "\u{212A}"

    @Test func operatorsCompareBytes() {
        let (given, plain): (String?, String?) = (kelvin, "K")
        #expect(!(kelvin == "K") && kelvin != "K" && !(given == "K") && !(given == plain))
        #expect(given != "K" && !("K" == given) && given == kelvin && given != nil)
        #expect(!["K"].contains(kelvin) && ["a", "K"].firstIndex(of: kelvin) == nil)
        #expect(kelvin > "L" && ["b", kelvin, "L"].sorted() == ["L", "b", kelvin])
        var isSame = false
        switch kelvin {
        case "K": isSame = true
        default: break
        }
        switch given {
        case "K": isSame = true
        default: break
        }
        #expect(!isSame)
    }

    @Test func searchesCutBytes() {
        #expect("a\u{301}b".hasPrefix("a") && !"\(kelvin)x".hasPrefix("K"))
        #expect("x\u{301}".hasSuffix("\u{301}") && !"x\(kelvin)".hasSuffix("K"))
        #expect("a/\u{301}b".split(separator: "/").map(String.init) == ["a", "\u{301}b"])
        #expect("a\r\nb".split(separator: "\n").count == 2 && "a\r\n".contains("\r"))
        #expect("=\u{301}".firstIndex(of: "=") != nil && "=\u{301}".lastIndex(of: "=") != nil)
        #expect("'\u{301}ab\u{302}'".replacing("\u{301}ab", with: "-") == "'-\u{302}'")
        #expect("K\(kelvin)É".asciiLowercased() == "k\(kelvin)É")
    }

    @Test func keysAreBytes() {
        let map: [BytewiseString: Int] = ["K": 1, "\u{212A}": 2]
        #expect(map.count == 2 && map["K"] == 1 && map[kelvin] == 2)
        #expect(Value.map(["K": 1]) != .map(["\u{212A}": 1]))
        #expect(QueryParameters(bytes("K=1&%E2%84%AA=2")).values["K"] == "1")
    }
}
