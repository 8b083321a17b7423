import Foundation
import Wire

/// The bytes of an upload.
enum UploadSource: Sendable {
    case data(Data)
    case file(path: String)

    /// The size in bytes, for the first report; 0 if it is not known yet.
    var knownSize: Int64 {
        switch self {
        case .data(let data): Int64(data.count)
        case .file(let path): FileState(path: path)?.size ?? 0
        }
    }
}

/// Reads a source in pieces.
struct UploadReader {
    let size: Int64
    /// nil for bytes in memory.
    let file: LocalFile?
    private let data: Data

    init(_ source: UploadSource) throws(StorageError) {
        switch source {
        case .data(let data):
            (self.data, file, size) = (data, nil, Int64(data.count))
        case .file(let path):
            let file = try LocalFile(path)
            (data, self.file, size) = (Data(), file, file.state.size)
        }
    }

    /// - Returns: Exactly the bytes of the range.
    /// - Throws: ``StorageError`` if the file has changed since it was opened.
    func read(_ range: Range<Int64>) throws(StorageError) -> [UInt8] {
        if let file { return try file.read(range) }
        let start = data.startIndex
        return Array(data[start + Int(range.lowerBound)..<start + Int(range.upperBound)])
    }

    /// Adds the bytes from the end of `sum` to `offset` to it.
    /// - Parameter checkpoint: Called before each piece.
    func extend(
        _ sum: inout CRC32C, to offset: Int64,
        _ checkpoint: () async throws(StorageError) -> Void
    ) async throws(StorageError) {
        while Int64(sum.count) < offset {
            try await checkpoint()
            let begin = Int64(sum.count)
            sum.update(try read(begin..<min(offset, begin + (4 << 20))))
        }
    }
}
