import Foundation
import Wire

/// The size and the state of a file, by which a change is noticed.
struct FileState: Sendable, Codable, Equatable {
    /// Bytes.
    let size: Int64
    /// Seconds since 1970.
    let modified: Double
    /// The number of the file on its volume.
    let number: UInt64

    init(path: String) throws(StorageError) {
        do {
            let attributes = try FileManager.default.attributesOfItem(atPath: path)
            let type = (attributes[.type] as? FileAttributeType)?.rawValue ?? ""
            guard type == FileAttributeType.typeRegular.rawValue else {
                throw StorageError(.unknown, "\(path) is not a regular file.")
            }
            size = (attributes[.size] as? NSNumber)?.int64Value ?? 0
            modified = (attributes[.modificationDate] as? Date)?.timeIntervalSince1970 ?? 0
            number = (attributes[.systemFileNumber] as? NSNumber)?.uint64Value ?? 0
        } catch let error as StorageError {
            throw error
        } catch {
            throw .file("read", path, error)
        }
    }
}

/// The bytes of an upload.
enum UploadSource: Sendable {
    case data(Data)
    case file(path: String)

    /// The size in bytes, for the first report; 0 if it is not known yet.
    var knownSize: Int64 {
        switch self {
        case .data(let data): Int64(data.count)
        case .file(let path): (try? FileState(path: path).size) ?? 0
        }
    }
}

/// Reads a source in pieces. All pieces are of one version of a file.
struct UploadReader {
    let size: Int64
    /// nil for bytes in memory.
    let state: FileState?
    private let data: Data
    private let file: (handle: FileHandle, path: String)?

    init(_ source: UploadSource) throws(StorageError) {
        switch source {
        case .data(let data):
            self.data = data
            size = Int64(data.count)
            (file, state) = (nil, nil)
        case .file(let path):
            data = Data()
            do {
                let handle = try FileHandle(forReadingFrom: URL(fileURLWithPath: path))
                file = (handle, path)
            } catch {
                throw .file("read", path, error)
            }
            let found = try FileState(path: path)
            state = found
            size = found.size
        }
    }

    /// - Returns: Exactly the bytes of the range.
    /// - Throws: ``StorageError`` if the file has changed since it was opened.
    func read(_ range: Range<Int64>) throws(StorageError) -> Data {
        guard let file else {
            return data[
                data.startIndex + Int(range.lowerBound)..<data.startIndex + Int(range.upperBound)]
        }
        var read = Data()
        do {
            try file.handle.seek(toOffset: UInt64(range.lowerBound))
            while read.count < range.count,
                let more = try file.handle.read(upToCount: range.count - read.count), !more.isEmpty
            {
                read.append(more)
            }
        } catch {
            throw .file("read", file.path, error)
        }
        try check()
        guard read.count == range.count else { throw UploadReader.changed(file.path) }
        return read
    }

    /// - Throws: ``StorageError`` if the file has changed since it was opened.
    func check() throws(StorageError) {
        guard let file, let state, try FileState(path: file.path) != state else { return }
        throw UploadReader.changed(file.path)
    }

    /// The checksum of the first bytes.
    func checksum(of count: Int64) throws(StorageError) -> CRC32C {
        var sum = CRC32C()
        var offset: Int64 = 0
        while offset < count {
            let end = min(count, offset + (1 << 20))
            sum.update(try read(offset..<end))
            offset = end
        }
        return sum
    }

    func close() { try? file?.handle.close() }

    static func changed(_ path: String) -> StorageError {
        StorageError(.unknown, "\(path) has changed since its upload began.")
    }
}
