import Testing

@testable import Gateway

@Suite("A table of names")
struct NameTableTests {
    @Test("Every name is found, whatever others have its place", arguments: [0, 1, 2, 7, 1000])
    func all(count: Int) {
        let table = NameTable((0..<count).map { ("name \($0)", $0) })
        for index in 0..<count { #expect(table["name \(index)"] == index) }
        for index in count..<count + 1000 { #expect(table["name \(index)"] == nil) }
    }

    @Test("The last of equal names counts, and names are equal if their bytes are")
    func equal() {
        let table = NameTable([("caf\u{e9}", 1), ("b", 2), ("caf\u{e9}", 3), ("cafe\u{301}", 4)])
        #expect(table["caf\u{e9}"] == 3)
        #expect(table["cafe\u{301}"] == 4)
        #expect(table["b"] == 2)
        #expect(table[""] == nil)
    }
}
