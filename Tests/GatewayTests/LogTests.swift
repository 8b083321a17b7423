import Foundation
import Glibc
import HTTPServer
import Logging
import System
import Testing

@testable import Gateway
@testable import Telemetry

/// A pipe: what the sink wrote can be read back.
struct Pipe {
    let reading: Int32
    let writing: Int32

    init() {
        var ends: [Int32] = [0, 0]
        precondition(pipe(&ends) == 0)
        (reading, writing) = (ends[0], ends[1])
    }
}

/// Everything `body` logs, in lines.
func logged(_ format: LogFormat, _ body: (LogSink) -> Void) -> [String] {
    let file = tmpfile()!
    defer { fclose(file) }
    let sink = LogSink(descriptor: fileno(file), format: format)
    body(sink)
    #expect(sink.flush(within: 10_000_000_000))
    sink.close()
    var bytes = [UInt8](repeating: 0, count: 1 << 22)
    let count = pread(fileno(file), &bytes, bytes.count, 0)
    return String(decoding: bytes[..<count], as: UTF8.self).split(separator: "\n").map(String.init)
}

extension LogSink {
    func append(_ text: String) { Array(text.utf8).withUnsafeBufferPointer(append) }
}

func object(_ line: String) throws -> [String: Any] {
    try #require(try JSONSerialization.jsonObject(with: Data(line.utf8)) as? [String: Any])
}

func record(
    path: String = "/b/photos/o/a.png", method: String = "GET", status: Int = 200,
    cause: String? = nil
) -> RequestRecord {
    RequestRecord(
        requestId: "0123456789abc", operation: .get, bucket: "photos", method: method, path: path,
        status: status, durationNanoseconds: 12_345_678, bytesIn: 7, bytesOut: 1024,
        peer: "127.0.0.1:5000", version: .http2, isSecure: true,
        errorCode: cause == nil ? nil : "internal", cause: cause)
}

@Suite struct AccessLogTests {
    @Test func aJSONLineHoldsTheRecord() throws {
        let lines = logged(.json) { AccessLog($0).finished(record(status: 503, cause: "no disk")) }
        let line = try object(#require(lines.first))
        #expect(lines.count == 1)
        #expect(line["level"] as? String == "error")
        #expect(line["request"] as? String == "0123456789abc")
        #expect(line["peer"] as? String == "127.0.0.1:5000")
        #expect(line["method"] as? String == "GET")
        #expect(line["path"] as? String == "/b/photos/o/a.png")
        #expect(line["operation"] as? String == "get")
        #expect(line["bucket"] as? String == "photos")
        #expect(line["status"] as? Int == 503)
        #expect(line["duration_ms"] as? Double == 12.345)
        #expect(line["bytes_in"] as? Int == 7)
        #expect(line["bytes_out"] as? Int == 1024)
        #expect(line["protocol"] as? String == "HTTP/2")
        #expect(line["tls"] as? Bool == true)
        #expect(line["code"] as? String == "internal")
        #expect(line["cause"] as? String == "no disk")
    }

    @Test func anAbortedResponseIsAnErrorWhateverItsStatus() throws {
        let broken = record(status: 206, cause: "the disk")
        broken.isBroken = true
        let line = try object(logged(.json) { AccessLog($0).finished(broken) }[0])
        #expect(line["level"] as? String == "error")
        #expect(line["status"] as? Int == 206)
        let text = logged(.text(colour: true)) { AccessLog($0).finished(broken) }
        #expect(text[0].contains("\u{1b}[31m206"))
    }

    @Test func aTextLineHasItsColumns() throws {
        let lines = logged(.text(colour: false)) { sink in
            AccessLog(sink).finished(record())
            AccessLog(sink).finished(record(method: "DELETE", status: 404))
        }
        #expect(lines.count == 2)
        let places = try lines.map {
            try #require($0.range(of: "/b/photos")).lowerBound.utf16Offset(in: $0)
        }
        #expect(places[0] == places[1])
        #expect(
            lines[0].contains(" 200 GET        12.345ms in        7 out     1024 127.0.0.1:5000"))
        #expect(lines[0].contains("HTTP/2+TLS"))
        #expect(!lines[0].contains("\u{1b}"))
        #expect(
            logged(.text(colour: true)) { AccessLog($0).finished(record()) }[0].contains(
                "\u{1b}[32m200"))
    }

    @Test func timesAreRFC3339() {
        let cases: [(Int, String)] = [
            (0, "1970-01-01T00:00:00.007Z"), (951_782_400, "2000-02-29T00:00:00.007Z"),
            (1_704_067_199, "2023-12-31T23:59:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
            (1_709_210_096, "2024-02-29T12:34:56.007Z"),
        ]
        for (seconds, text) in cases {
            var line = LogLine()
            line.time(timespec(tv_sec: seconds, tv_nsec: 7_999_999))
            #expect(String(decoding: line.bytes, as: UTF8.self) == text)
        }
    }

    static let attacks = [
        "/a\n{\"time\":\"x\",\"status\":200}", "/a\r\nb", "/a\" status=200 x=\"", "/\u{1b}[2J",
        "/\u{9b}31m", "/\u{202e}gpj.exe", "/\u{2028}x", "/\0", "/\u{7f}\u{8}", "/\\\"", "/é/日本/😀",
        "", " ", "/a b=c",
    ]

    @Test(arguments: attacks) func nothingInAValueLooksLikeAnotherLineOrField(_ attack: String)
        throws
    {
        let json = logged(.json) { AccessLog($0).finished(record(path: attack, cause: attack)) }
        #expect(json.count == 1)
        let line = try object(json[0])
        #expect(line["path"] as? String == attack)
        #expect(line["cause"] as? String == attack)
        #expect(line["status"] as? Int == 200)
        let text = logged(.text(colour: false)) { AccessLog($0).finished(record(path: attack)) }
        #expect(text.count == 1)
        for line in json + text {
            for scalar in line.unicodeScalars {
                let value = scalar.value
                #expect(value >= 0x20 && value != 0x7f && !(0x80..<0xa0).contains(value))
                #expect(!(0x2028...0x202e).contains(value) && !(0x2066...0x2069).contains(value))
            }
        }
    }

    @Test func aLongTextIsCutBetweenCharacters() throws {
        let lines = logged(.json) {
            AccessLog($0).finished(record(path: "/" + String(repeating: "é", count: 5000)))
        }
        let path = try #require(try object(lines[0])["path"] as? String)
        #expect(path.utf8.count <= LogLine.longestText + 3)
        #expect(path.hasSuffix("é…"))
    }
}

@Suite struct RedactionTests {
    /// As long as one of HS256.
    static let signature = String(repeating: "a", count: 37) + "S3CRET"
    static let secrets = [
        "GET /x?token=S3CRET&a=1", "Authorization: Bearer S3CRET", "authorization=S3CRET, S3CRET",
        "cookie: a=S3CRET; b=S3CRET", "Set-Cookie: id=S3CRET; Path=/",
        "https://h/o?X-Goog-Signature=S3CRET&X-Goog-Credential=S3CRET",
        "https://h/o?X-Amz-Signature=S3CRET", "X-Amz-Security-Token: S3CRET",
        "?uploadId=S3CRET", "?upload_id=S3CRET#x", "{\"access_token\":\"S3CRET\",\"b\":1}",
        "{\\\"client_secret\\\": \\\"S3CRET\\\"}", "next=https%3A%2F%2Fh%3Ftoken%3DS3CRET%26b",
        "failed with Bearer S3CRETS3CRET", "basic S3CRETS3CRET=", "token: Optional(\"S3CRET\")",
        "jwt eyJhbGciOiJSUzI1.S3CRET.S3CRET was refused", "password='S3CRET S3CRET'",
        "é token=S3CRET é", "/o/Bearer%20S3CRETS3CRET", "/o/bearer+S3CRETS3CRET",
        "Firebase S3CRETS3CRET", "/o/a?link-method=GET&link-signature=S3CRET",
        "/b/sluice_S3CRETaaaaaaaaaabbbbbbbbbbccccccccccddddddd/o/a",
        "xsluice_aaaaaaaaaabbbbbbbbbb-ccccccccccdddddddS3CRET~",
        "/o/eyJhbGciOiJSUzI1%2ES3CRET%2ES3CRET", "/o/%65yJhbGciOiJSUzI1%252ES3CRET%252ES3CRET/b",
        "/o/x%253Ftoken%253DS3CRET", "/o/to%256ben=S3CRET", "/o/Bearer%2520S3CRETS3CRET",
        "/o/%\(String(repeating: "25", count: 12))41S3CRET",
        // A header that begins with white space, and one whose first member is not a text.
        "/o/ewogImFsZyI6IlJTMjU2In0.S3CRET.\(RedactionTests.signature)",
        "/o/IHsiYWxnIjoiUlMyNTYifQ%2ES3CRET%2E\(RedactionTests.signature)",
        "/o/Bearer%09S3CRETS3CRET",
    ]

    @Test(arguments: secrets) func noFormatContainsASecret(_ text: String) {
        for format in [LogFormat.json, .text(colour: false)] {
            let lines = logged(format) { sink in
                AccessLog(sink).finished(record(path: text, method: text, cause: text))
                var logger = Logger(label: text) { LogOutput(label: $0, sink: sink) }
                logger[metadataKey: "why"] = "\(text)"
                logger[metadataKey: "list"] = .array(["\(text)", .dictionary([text: "\(text)"])])
                logger.warning(
                    "\(text)", metadata: ["Authorization": "S3CRET", "password": ["S3CRET"]])
            }
            #expect(lines.count == 2)
            for line in lines {
                #expect(!line.contains("S3CRET"))
                #expect(line.contains("<redacted>"))
            }
        }
    }

    @Test(arguments: [
        "sluice.yaml:3:5: unknown key", "/b/photos/o/a=b.png", "http://127.0.0.1:8080/b",
        "status=200", "the token was refused", "time: 12:30", "eyJ", "Bearer of news", "100%3D",
        "unreachable: credentials: http://127.0.0.1:1 responds with 500",
        "sluice_issuer_key_refresh_failures_total", "/o/cats+and+dogs_2", "a%20b", "100%253D%",
        "/o/a%2525%C3%A9%zz", "main-bundle.0123456789abcdef0123456789abcdef0123456789abcdef.js",
        "my-service-name.my-name-space.svc.cluster.local:443",
    ])
    func otherTextIsNotRedacted(_ text: String) {
        let redacted = LogRedaction.redacted(text.utf8.span)
        #expect(redacted == nil)
    }

    @Test func redactingTwiceChangesNothing() throws {
        for text in RedactionTests.secrets {
            let first = LogRedaction.redacted(text.utf8.span)
            let once = try #require(first)
            let twice = LogRedaction.redacted(once.span) ?? once
            #expect(twice == once)
        }
    }
}

@Suite struct LogOutputTests {
    @Test func aMessageWithMetadataIsReadBack() throws {
        let lines = logged(.json) { sink in
            var logger = Logger(label: "sluice") {
                LogOutput(label: $0, sink: sink, level: .notice)
            }
            logger.info("not this")
            logger[metadataKey: "bucket"] = "photos"
            logger.error("disk \"full\"\n", metadata: ["n": "\(3)", "deep": ["a": ["x", "y"]]])
        }
        #expect(lines.count == 1)
        let line = try object(lines[0])
        #expect(line["level"] as? String == "error")
        #expect(line["logger"] as? String == "sluice")
        #expect(line["message"] as? String == "disk \"full\"\n")
        let metadata = try #require(line["metadata"] as? [String: Any])
        #expect(metadata["bucket"] as? String == "photos")
        #expect(metadata["n"] as? String == "3")
        #expect((metadata["deep"] as? [String: [String]]) == ["a": ["x", "y"]])
    }

    @Test func aTextLineIsOneLine() {
        let lines = logged(.text(colour: false)) { sink in
            let logger = Logger(label: "sluice") { LogOutput(label: $0, sink: sink) }
            logger.warning("two\nlines", metadata: ["a b": "c d"])
        }
        #expect(lines.count == 1)
        #expect(lines[0].hasSuffix(#"warning  "two\nlines" logger=sluice "a b"="c d""#))
    }

    @Test func aFindingHasLinesOfItsOwnInText() {
        let finding = "rules:3:5: error: \"a\\b\"\n  3 | \u{1b}[2J\u{2028}x\u{85}\n      ^\n"
        let lines = logged(.text(colour: false)) { sink in
            let logger = Logger(label: "sluice") { LogOutput(label: $0, sink: sink) }
            logger.warning("rules", metadata: ["finding": "\(finding)", "path": "p"])
        }
        #expect(lines[0].hasSuffix("warning  \"rules\" logger=sluice path=p"))
        #expect(
            lines.dropFirst() == [
                "  finding:", #"    rules:3:5: error: "a\b""#,
                #"      3 | \u001b[2J\u2028x\u0085"#, "          ^",
            ])
    }

    /// A line feed in a value, and what a log line begins with.
    @Test func aFindingCannotLookLikeALogLine() {
        let lines = logged(.text(colour: false)) { sink in
            let logger = Logger(label: "sluice") { LogOutput(label: $0, sink: sink) }
            logger.warning(
                "rules", metadata: ["finding": "a\n2026-01-01T00:00:00.000Z error \"x\""])
        }
        #expect(lines.count == 4)
        #expect(lines.dropFirst().allSatisfy { $0.hasPrefix("  ") })
    }
}

@Suite struct LogSinkTests {
    @Test func aStalledReaderLosesLinesWithoutDelay() {
        let pipe = Pipe()
        let sink = LogSink(descriptor: pipe.writing, format: .json, capacity: 4096)
        let line = String(repeating: "x", count: 99)
        // Nobody reads: the pipe fills, then the buffer.
        var count = 0
        while sink.droppedLines == 0 || sink.flush(within: 1_000_000) {
            for _ in 0..<1000 { sink.append(line) }
            count += 1000
        }
        let reader = Reader(pipe.reading)
        #expect(sink.flush(within: 10_000_000_000))
        sink.close()
        close(pipe.writing)
        #expect(reader.total() == (count - sink.droppedLines) * 100)
        close(pipe.reading)
    }

    @Test func aClosedReaderOnlyLosesLines() {
        signal(SIGPIPE, SIG_IGN)
        let pipe = Pipe()
        close(pipe.reading)
        let sink = LogSink(descriptor: pipe.writing, format: .json)
        for _ in 0..<10 { sink.append("line") }
        #expect(sink.flush(within: 10_000_000_000))
        #expect(sink.droppedLines == 10)
        sink.close()
        sink.append("late")
        #expect(sink.droppedLines == 11)
        close(pipe.writing)
    }

    @Test func linesOfManyThreadsStayWhole() throws {
        let lines = logged(.json) { sink in
            DispatchQueue.concurrentPerform(iterations: 4) { _ in
                for _ in 0..<500 { AccessLog(sink).finished(record()) }
            }
        }
        #expect(lines.count == 2000)
        for line in lines { #expect(try object(line)["status"] as? Int == 200) }
    }
}

/// Reads a pipe to its end on a thread of its own.
///
/// Safety: `count` is read only after the thread has ended.
private final class Reader: @unchecked Sendable {
    private var count = 0
    private var thread = pthread_t()

    init(_ descriptor: Int32) {
        thread = startThread { [unowned self] in
            var buffer = [UInt8](repeating: 0, count: 65536)
            while true {
                let got = read(descriptor, &buffer, buffer.count)
                guard got > 0 else { return }
                count += got
            }
        }
    }

    func total() -> Int {
        pthread_join(thread, nil)
        return count
    }
}
