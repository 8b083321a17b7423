import Glibc
import System

/// Where the parts of an upload are, and where the next ones go.
///
/// Part n begins at (n − 1) · step in the upload's blob, where step is the size of the largest part so far. So parts of
/// equal size are in their final places, in any order. A part whose place is taken gets a blob of its own.
struct PartLayout {
    /// No part begins beyond this offset in a blob: 8 TiB. File systems have limits.
    private static let maximumOffset: UInt64 = 8 << 40

    private(set) var rows: [Int: PartRow] = [:]
    /// The order of the change that each row is from (``DirectoryChange/Outcome/order``).
    private var orders: [Int: UInt64] = [:]
    private var step: UInt64 = 0
    /// The places of parts in progress, by their own number.
    private var reserved: [Int: Range<UInt64>] = [:]
    private var lastReservation = 0

    /// The rows by number.
    var sorted: [PartRow] { rows.values.sorted { $0.number < $1.number } }

    /// Replaces the rows but those of later changes. Reservations remain.
    mutating func load(_ rows: [PartRow], at order: UInt64) {
        for (number, other) in orders where other <= order {
            self.rows[number] = nil
            orders[number] = nil
        }
        for row in rows { keep(row, at: order) }
    }

    /// Adds a row, or replaces that of its number, unless it is from a later change.
    mutating func keep(_ row: PartRow, at order: UInt64) {
        guard order >= orders[row.number] ?? 0 else { return }
        rows[row.number] = row
        orders[row.number] = order
        step = max(step, row.size)
    }

    /// Reserves the place of a new part in the upload's blob; nil if it is taken.
    mutating func reserve(_ number: Int, size: UInt64) -> (id: Int, offset: UInt64)? {
        step = max(step, size)
        let (offset, isOverflow) = UInt64(number - 1).multipliedReportingOverflow(by: step)
        guard !isOverflow, offset <= PartLayout.maximumOffset else { return nil }
        let place = offset..<offset + max(size, 1)
        guard rows[number] == nil, !reserved.values.contains(where: { $0.overlaps(place) }),
            !rows.values.contains(where: { $0.place?.overlaps(place) ?? false })
        else { return nil }
        lastReservation += 1
        reserved[lastReservation] = place
        return (lastReservation, offset)
    }

    mutating func endReservation(_ id: Int) { reserved[id] = nil }

    /// One part to copy.
    struct Move {
        var part: PartRow
        /// The offset in the upload's blob.
        var target: UInt64
    }

    /// What must be copied before the blob has exactly the bytes of these parts, one after another. No part may be in
    /// progress.
    /// - Returns: The parts to move to their own blobs first, because others go to their places, and the moves.
    func moves(_ selected: [PartRow]) -> (evicted: [PartRow], moves: [Move]) {
        var moves: [Move] = []
        var end: UInt64 = 0
        for part in selected {
            if part.size > 0, part.blob != nil || part.offset != end { moves.append(Move(part: part, target: end)) }
            end += part.size
        }
        // Both are sorted by offset, so that many moves and parts are compared in one pass.
        let placed = rows.values.filter { $0.blob == nil && $0.size > 0 }.sorted { $0.offset < $1.offset }
        var evicted: [PartRow] = []
        var index = 0
        for part in placed {
            while index < moves.count, moves[index].target + moves[index].part.size <= part.offset { index += 1 }
            if index < moves.count, moves[index].target < part.offset + part.size { evicted.append(part) }
        }
        return (evicted, moves)
    }
}

extension DirectoryFiles {
    /// The most bytes that one call copies: 16 MiB.
    private static let copyStep: UInt64 = 16 << 20

    /// Copies bytes between two files, or disjoint ranges of one, within the kernel if it can.
    /// - Returns: The number of copied bytes: at least one, at most 16 MiB.
    static func copy(
        from source: Int32, at start: UInt64, to target: Int32, at offset: UInt64, count: UInt64, _ name: String
    ) throws(BucketError) -> UInt64 {
        let count = Int(min(count, copyStep))
        do throws(SystemError) {
            if let copied = try File.copy(source, at: start, to: target, at: offset, count: count) {
                return UInt64(copied)
            }
        } catch { throw BucketError("copy", name, error.code) }
        var buffer = [UInt8](repeating: 0, count: min(count, 64 << 10))
        let found = pread(source, &buffer, buffer.count, off_t(start))
        if found < 0 { throw BucketError("read", name) }
        if found == 0 { throw BucketError(.internal, "\(name) has fewer bytes than were acknowledged") }
        try buffer.withUnsafeBufferPointer { bytes throws(BucketError) in
            try writeAll(target, UnsafeRawBufferPointer(start: bytes.baseAddress, count: found), at: offset, name)
        }
        return UInt64(found)
    }
}
