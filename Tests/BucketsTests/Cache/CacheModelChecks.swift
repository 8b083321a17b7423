import BucketConformance
import Synchronization
import System
import TestSupport

@testable import Buckets

extension CacheModel {
    /// What was known when a read began.
    private struct Beginning {
        var changes: Int
        var troubles: Int
        var time: UInt64
        var acknowledged: Int
        var isFailing: Bool
    }

    private func beginning(_ side: Side, _ name: String, _ read: Int) -> Beginning {
        // In this order: a change that is acknowledged is counted.
        let acknowledged = side.acknowledged.withLock { $0[name] ?? 0 }
        let time = clock.now
        var begin = service.with { state in
            Beginning(
                changes: state.changes, troubles: state.troubles, time: time, acknowledged: acknowledged,
                isFailing: state.fault != nil)
        }
        // A request that another read has sent before may fail now, for this read too.
        begin.troubles = running.withLock { running in
            let earliest = running.values.reduce(begin.troubles, min)
            running[read] = earliest
            return earliest
        }
        return begin
    }

    /// Reads an object and compares the response with the service's history.
    func checkedRead(
        _ side: Side, _ name: String, _ range: ByteRange?, _ mustAsk: Bool, _ piece: Int, _ limit: Int,
        if conditions: Preconditions = Preconditions(), isClear: Bool = false, _ pause: (@Sendable (Int) async -> Void)?
    ) async {
        let read = reads.add(1, ordering: .relaxed).newValue
        let begin = beginning(side, name, read)
        defer { running.withLock { $0[read] = nil } }
        do {
            let answer = try await side.fixture.bucket.read(
                name, range, if: conditions, mustAsk: mustAsk, piece: piece, limit: limit, isClear: isClear,
                pause: pause)
            compare(answer.metadata, answer.outcome, side, mustAsk, begin)
            if answer.outcome.isStored, answer.metadata.attributes.cacheControl == "no-store" {
                fail("\(name): its bytes are kept")
            }
            var wanted = answer
            if limit != .max {
                let count = min(answer.body.count, answer.range.count)
                if count < min(limit, answer.range.count) { fail("\(name): only \(count) bytes") }
                wanted.range = answer.range.lowerBound..<answer.range.lowerBound + UInt64(count)
            }
            if !wanted.isRight(service) {
                fail("\(name): \(answer.body.count) bytes of \(answer.range) are not those of \(answer.metadata)")
            }
        } catch let error as BucketError {
            compare(error, name, begin)
        } catch { fail("\(name): \(error)") }
    }

    /// Asks for an object's metadata.
    func check(_ side: Side, _ name: String, mustAsk: Bool) async {
        let read = reads.add(1, ordering: .relaxed).newValue
        let begin = beginning(side, name, read)
        defer { running.withLock { $0[read] = nil } }
        do throws(BucketError) {
            let (metadata, outcome) = try await side.fixture.bucket.stat(name, mustAsk: mustAsk)
            compare(metadata, outcome, side, mustAsk, begin)
        } catch {
            compare(error, name, begin)
        }
    }

    private func compare(
        _ metadata: ObjectMetadata, _ outcome: CacheOutcome, _ side: Side, _ mustAsk: Bool, _ begin: Beginning
    ) {
        let name = metadata.name
        guard let version = service.version(metadata), version.metadata == metadata else {
            return fail("\(name): there was no such version: \(metadata)")
        }
        guard let died = version.died, let diedAt = version.diedAt else { return }
        if died <= begin.acknowledged { fail("\(name): a version before the gateway's own change: \(outcome)") }
        if died > begin.changes { return }
        let options = side.fixture.options
        var age: UInt64?
        switch options.freshness {
        case .validate: break
        case .limited(let limit): age = mustAsk ? nil : limit
        case .forever: age = mustAsk ? nil : .max
        }
        if outcome.result == .stale {
            if mustAsk || options.staleIfError == 0 { fail("\(name): stale") }
            age = max(age ?? 0, (age ?? 0).addingReportingOverflow(options.staleIfError * 1_000_000_000).partialValue)
            if options.freshness == .forever { age = .max }
        }
        if let age, age > begin.time || diedAt >= begin.time - age { return }
        fail("\(name): a version that was replaced before: \(outcome), \(options.freshness), asks \(mustAsk)")
    }

    /// An absent object must have been absent during the read, and any other failure must be the service's.
    private func compare(_ error: BucketError, _ name: String, _ begin: Beginning) {
        let (changes, troubles, versions, isFailing) = service.with {
            // A fill whose bytes were wrong may end a little later, with readers that came meanwhile.
            let isWrong = error.isOfOtherBytes && $0.wrongNames.contains(name)
            return ($0.changes, $0.troubles, $0.versions[name] ?? [], $0.fault != nil || isWrong)
        }
        if error.code == .objectNotFound {
            let wasAbsent = versions.contains { $0.metadata == nil && ($0.died ?? .max) > begin.changes }
            if !versions.isEmpty, !wasAbsent { fail("\(name): not found") }
        } else if changes == begin.changes, troubles == begin.troubles, !isFailing, !begin.isFailing {
            fail("\(name): \(error) without a reason")
        }
    }
}
