import Buckets
import Configuration
import Gateway
import Logging
import System
import Wire

extension Configuration {
    /// The events that a bucket records; nil for none.
    func eventFilter(of bucket: Bucket) -> EventFilter? { isWatched(bucket) ? .complete() : nil }

    /// Whether each bucket's changes can be watched, by its name.
    func watches(_ watches: Watches, _ stores: Stores) -> [BytewiseString: BucketWatch] {
        var found: [BytewiseString: BucketWatch] = [:]
        for bucket in buckets {
            if isWatched(bucket), let log = stores.drivers[bucket.name] as? any EventLog {
                found[bucket.name] = .on(Watchers(log, watches))
            } else {
                found[bucket.name] = .off(whyUnwatched(bucket))
            }
        }
        return found
    }
}

extension Service {
    /// The interval between trims, in nanoseconds: a minute.
    private static let trimInterval: UInt64 = 60_000_000_000
    /// The most events that one transaction looks at.
    private static let trimBatch = 1000

    /// Deletes old events from time to time.
    func startEvents(on loop: EventLoop) {
        let isTrimming = Lock(false)
        repeated(every: Service.trimInterval, on: loop) { [self] in
            let isFree = isTrimming.withLock { isTrimming in
                defer { isTrimming = true }
                return !isTrimming
            }
            guard isFree else { return }
            Task(executorPreference: loop) { [self] in
                await trimEvents()
                isTrimming.withLock { $0 = false }
            }
        }
    }

    /// Deletes old events of all buckets, also of those that record none any more.
    func trimEvents() async {
        let options = eventOptions.withLock { $0 }
        for (name, driver) in stores.drivers {
            guard let log = driver as? any EventLog else { continue }
            let before = SystemClock.microseconds() - Int64(options.retention / 1000)
            do throws(BucketError) {
                while case let count = try await log.trimEvents(
                    before: before, keeping: options.maximumPending, limit: Service.trimBatch),
                    count >= Service.trimBatch
                {
                    await EventLoop.giveWay()
                }
            } catch {
                logger.warning("events not trimmed", metadata: ["bucket": "\(name)", "cause": "\(error)"])
            }
        }
    }
}
