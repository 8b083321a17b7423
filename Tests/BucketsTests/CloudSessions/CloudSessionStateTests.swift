import BucketConformance
import Foundation
import TestSupport
import Testing
import Wire

@testable import Buckets

/// A random state, determined by the generator.
func randomState(_ random: inout some RandomNumberGenerator) -> CloudSessionState {
    func flag() -> Bool { Bool.random(using: &random) }
    func number() -> UInt64 { UInt64.random(in: 0...UInt64(Int64.max), using: &random) }
    func text() -> String {
        let letters = ["a", "ä", "\u{10FFFF}", "", "\0", "=", "語"]
        return (0..<Int.random(in: 0..<20, using: &random)).map { _ in
            letters.randomElement(using: &random)!
        }.joined()
    }
    func bytes() -> [UInt8] { pattern(Int.random(in: 0..<300, using: &random), seed: number()) }
    func property() -> String? { flag() ? text() : nil }
    var attributes = ObjectAttributes(
        contentType: property(), cacheControl: property(), contentDisposition: property(),
        contentEncoding: property(), contentLanguage: property())
    for _ in 0..<Int.random(in: 0..<4, using: &random) {
        attributes.customMetadata[BytewiseString(text())] = text()
    }
    if flag() { attributes.system.downloadTokens = ["a", "b"] }
    var digests = SessionDigests(flag() ? [.sha256, .sha512] : [])
    digests.update(bytes().span.bytes)
    var state = CloudSessionState(
        name: text(), attributes: attributes, created: Int64(number()), context: bytes(),
        mark: number(), owner: number(), expires: Int64(number()), length: flag() ? number() : nil,
        digests: digests.saved, isInParts: flag())
    (state.stamp, state.isOpen, state.isTakenOver) = (number(), flag(), flag())
    state.tail = bytes()
    state.pieces = (0..<Int.random(in: 0..<4, using: &random)).map { _ in
        CloudSessionState.Piece(number: number(), size: UInt64.random(in: 0..<1000, using: &random))
    }
    let sent = UInt64.random(in: 0..<1_000_000, using: &random)
    func parts() -> [S3TransferState.Part] {
        (0..<Int.random(in: 0..<9, using: &random)).map { _ in
            S3TransferState.Part(number: .random(in: 1...10_000, using: &random), etag: text())
        }
    }
    switch Int.random(in: 0..<4, using: &random) {
    case 0: state.offset = state.pending
    case 2:
        state.transfer = .gcsParts(
            GCSPartsState(upload: text(), parts: parts(), sent: sent, isFixed: flag()))
        state.offset = state.pending + sent
    case 1:
        var transfer = S3TransferState(upload: property(), lostSince: flag() ? 5 : nil)
        transfer.discarded = flag() ? [text(), text()] : []
        transfer.parts = parts()
        (transfer.sent, transfer.nextNumber) = (sent, .random(in: 1...10_000, using: &random))
        state.transfer = .s3(transfer)
        state.offset = state.pending + sent
    default:
        state.transfer = .gcs(
            GCSTransferState(session: property(), sent: sent, isAhead: flag()))
        state.offset = state.pending + sent
    }
    if flag() {
        state.intent = CloudSessionState.Intent(generation: Int64(number()), etag: property())
        state.intent?.source =
            flag() ? CloudSessionState.Source(piece: flag() ? 7 : nil, generation: 5) : nil
    }
    switch Int.random(in: 0..<5, using: &random) {
    case 0:
        state.end = .committed(
            CommittedObject(
                generation: Int64(number()), created: 1, updated: 2, etag: text(),
                md5: flag() ? bytes() : nil, crc32c: flag() ? 7 : nil, replaced: flag()))
    case 1: state.end = .closed(bytes())
    case 2: state.end = .cancelled
    default: break
    }
    return state
}

@Suite("The state of an upload session in a cloud store")
struct CloudSessionStateTests {
    @Test("A part has no number of 0")
    func partNumbers() throws {
        var state = CloudSessionState(
            name: "n", attributes: ObjectAttributes(), created: 1, context: [], mark: 1, owner: 1,
            expires: 2, length: nil, digests: SessionDigests([]).saved)
        state.transfer = .s3(S3TransferState())
        #expect(try CloudSessionState(state.bytes) == state)
        var transfer = S3TransferState()
        transfer.nextNumber = 0
        state.transfer = .s3(transfer)
        #expect(throws: BucketError.self) { try CloudSessionState(state.bytes) }
    }

    @Test("What was written is read")
    func roundTrip() throws {
        var random = SeededGenerator(1)
        for _ in 0..<2000 {
            let state = randomState(&random)
            #expect(try CloudSessionState(state.bytes) == state)
        }
    }

    @Test("A state that is cut off, or followed by bytes, is malformed")
    func cut() {
        var random = SeededGenerator(2)
        for _ in 0..<30 {
            let bytes = randomState(&random).bytes
            for count in 0..<bytes.count {
                #expect(throws: BucketError.self) { try CloudSessionState(Array(bytes[..<count])) }
            }
            #expect(throws: BucketError.self) { try CloudSessionState(bytes + [0]) }
        }
        #expect(throws: BucketError.self) {
            try CloudSessionState([UInt8](repeating: 1, count: CloudSessionState.maximumBytes + 1))
        }
    }

    @Test("Changed bytes are malformed, or another state that can be written")
    func mutated() {
        var random = SeededGenerator(3)
        var (malformed, others) = (0, 0)
        for _ in 0..<5000 {
            var bytes = randomState(&random).bytes
            for _ in 0..<Int.random(in: 1...3, using: &random) {
                let index = Int.random(in: 0..<bytes.count, using: &random)
                bytes[index] = [0, 1, 0x7f, 0xff, .random(in: 0...255, using: &random)]
                    .randomElement(using: &random)!
            }
            do throws(BucketError) {
                let state = try CloudSessionState(bytes)
                #expect((try? CloudSessionState(state.bytes)) == state)
                others += 1
            } catch {
                #expect(error.code == .internal)
                malformed += 1
            }
        }
        #expect(malformed > 500 && others > 500)
    }

    @Test("Sizes that contradict each other are malformed")
    func inconsistent() {
        var state = CloudSessionState(
            name: "n", attributes: ObjectAttributes(), created: 1, context: [], mark: 1, owner: 1,
            expires: 1, length: nil, digests: SessionDigests([]).saved)
        state.tail = [1, 2, 3]
        for offset in [0, 2, 4, UInt64(Int64.max)] {
            state.offset = offset
            #expect(throws: BucketError.self) { try CloudSessionState(state.bytes) }
        }
        state.offset = 3
        #expect((try? CloudSessionState(state.bytes)) == state)
        state.pieces = [CloudSessionState.Piece(number: 1, size: UInt64(Int64.max))]
        state.transfer = .s3(S3TransferState(sent: UInt64(Int64.max)))
        #expect(throws: BucketError.self) { try CloudSessionState(state.bytes) }
    }

    @Test("Only the text of a hidden name is one")
    func names() {
        let id = UploadSessionID(expires: 1_700_000_000)
        let all: [HiddenName] = [
            .state(id), .tail(id, number: 0), .tail(id, number: .max), .data(id),
            .until(id, time: 1_600_000_000), .until(id, time: 0),
            .state(UploadSessionID(expires: .max)), .until(id, time: .max),
        ]
        for name in all {
            #expect(HiddenName(name.text) == name, "\(name.text)")
            #expect(name.text.utf8.count <= 200)
            for wrong in [name.text + ".", name.text + "0", "/" + name.text, name.text + ".data"] {
                #expect(HiddenName(wrong) != name, "\(wrong)")
            }
            #expect(HiddenName(String(name.text.dropFirst())) == nil)
            #expect(HiddenName(name.text.replacing("uploads/", with: "uploads/1")) == nil)
        }
        let text = HiddenName.state(id).text
        for wrong in [
            "", ".sluice/", ".sluice/uploads/", text.uppercased(), text + ".tail.00",
            text + ".tail.-1", text + ".tail.", text + ".until.+5", text + ".until.-5",
            text + ".data.5", text + ".Data",
        ] { #expect(HiddenName(wrong) == nil, "\(wrong)") }
        let later = HiddenName.state(UploadSessionID(expires: 1_700_003_600)).text
        #expect(text < later)
    }

    @Test("The fuzzer's seeds are states")
    func seeds() throws {
        let folder = #filePath.components(separatedBy: "/Tests/")[0] + "/Fuzz/seeds/uploadstate"
        let names = try FileManager.default.contentsOfDirectory(atPath: folder)
        #expect(names.count >= 6)
        for name in names {
            let bytes = try #require(FileManager.default.contents(atPath: "\(folder)/\(name)"))
            #expect(throws: Never.self, "\(name)") { try CloudSessionState(Array(bytes)) }
        }
    }
}
