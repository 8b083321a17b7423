import Buckets
import Configuration
import Gateway
import Logging
import System
import Wire

extension Configuration {
    /// The events that a bucket records; nil for none.
    func eventFilter(of bucket: Bucket) -> EventFilter? {
        .of(bucket.name, eventFilters, isWatched: isWatched(bucket))
    }

    /// The keys of webhooks, by the names of the subscriptions.
    /// - Throws: An error with the file's name.
    func webhookKeys() throws -> [BytewiseString: WebhookKeys] {
        var keys: [BytewiseString: WebhookKeys] = [:]
        for sink in events {
            keys[sink.name] = try sink.keys.map { try TextFile.read($0, as: WebhookKeys.init(text:)) }
        }
        return keys
    }

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

    /// Delivers events, and deletes old ones from time to time.
    func startEvents(on loop: EventLoop) {
        let isTrimming = Lock(false)
        repeated(every: Service.trimInterval, on: loop) { [self] in
            let isFree = isTrimming.withLock { isTrimming in
                defer { isTrimming = true }
                return !isTrimming
            }
            guard isFree else { return }
            Task(executorPreference: loop) { [self] in
                await events.removeOthers(after: eventOptions.withLock { $0.retention })
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

    /// Puts the subscriptions of a configuration into effect.
    /// - Throws: An error if a file of keys or fields can't be used. Nothing is changed then.
    func applyEvents(_ fresh: Configuration) throws {
        let files = WatchedFiles(fresh.events.map(\.keys))
        let subscriptions = try fresh.eventSubscriptions()
        let keys = try fresh.webhookKeys()
        // Whether buckets are watched takes a restart.
        events.apply(subscriptions, keys: keys) { name in
            started.buckets.contains { BytewiseString.areEqual($0.name, name) && started.isWatched($0) }
        }
        eventKeys.withLock { $0 = (fresh, files) }
        eventFailure.withLock { $0 = nil }
    }

    func reloadWebhookKeys() {
        let (configuration, files) = eventKeys.withLock { $0 }
        guard files.haveChanged else { return }
        files.look()
        do {
            events.replace(try configuration.webhookKeys())
            eventFailure.withLock { $0 = nil }
            logger.info("keys of webhooks loaded")
        } catch {
            eventFailure.withLock { $0 = "\(error)" }
            logger.error("keys of webhooks not loaded; the last good ones stay", metadata: ["cause": "\(error)"])
        }
    }
}
