import ArgumentParser
import ClientCommands
import Gateway
import Wire

/// `sluice events`: webhooks, and the client's `tail`.
struct EventsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "events",
        abstract: "Follow the changes of a bucket; webhooks: what waits and what is dead, keys.",
        subcommands: [
            EventsTail.self, ListSubscriptions.self, ListEvents.self, ReplayEvents.self, ResumeEvents.self,
            DropEvents.self,
            NewWebhookKey.self,
        ])
}

/// `sluice events new-key`: makes a line for the file of keys.
private struct NewWebhookKey: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "new-key", abstract: "Print a line for the key file of a webhook, with a new key.",
        discussion: """
            The key is for Standard Webhooks: the receiver verifies 'webhook-signature' with it. Put the line at the top \
            of the file of events.NAME.keys: requests are signed with all keys of the file, so the receiver can change its \
            key at any time until the old line is removed.
            """)

    func run() { print(WebhookKeys.generate()) }
}

/// `sluice events ls`: lists subscriptions.
private struct ListSubscriptions: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "ls", abstract: "List the webhooks of a running gateway.",
        discussion: """
            STATE is delivering, failing, paused (one event at a time tests the webhook), gone (it responded with 410) or \
            asking (for permission). PENDING counts the bucket's events after the last settled one. Exit status: 0, or 1 \
            if the gateway can't be asked.

            Example:
              sluice events ls --json | jq '.subscriptions[] | select(.dead > 0)'
            """)

    @OptionGroup var listener: OperatorListener

    @Flag(help: "Print the response of the gateway, which is JSON.")
    var json = false

    func run() throws {
        let body = try listener.call("GET", "/events")
        if json { return print(String(decoding: body, as: UTF8.self), terminator: "") }
        guard let all = (try? JSONReader.parse(body))?["subscriptions"]?.elements else {
            throw OperatorListener.Failure(description: "the response is not a gateway's")
        }
        var rows = [["SUBSCRIPTION", "BUCKET", "STATE", "PENDING", "WAITING", "DEAD", "OLDEST", "CAUSE"]]
        for one in all {
            func number(_ key: String) -> String { one[key]?.integer.map { "\($0)" } ?? "-" }
            rows.append([
                one["subscription"]?.text ?? "", one["bucket"]?.text ?? "", one["state"]?.text ?? "",
                number("pending"), number("waiting"), number("dead"), number("oldestSeconds") + "s",
                one["lastCause"]?.text ?? "",
            ])
        }
        printTable(rows)
    }
}

/// The subscription that a command is for.
private struct SubscriptionArguments: ParsableArguments {
    @Argument(help: "The name of the webhook, below 'events' in the configuration.")
    var subscription: String

    @Option(help: "Only for this bucket.")
    var bucket: String?

    func validate() throws {
        if let fault = CallerGroup.fault(ofName: subscription) { throw ValidationError(fault) }
        if let bucket, BucketName(bucket) == nil { throw ValidationError("'\(bucket)' is no bucket's name.") }
    }

    var query: String { "subscription=\(subscription)" + (bucket.map { "&bucket=\($0)" } ?? "") }
}

/// `sluice events list`: lists events of a subscription.
private struct ListEvents: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "list", abstract: "List events of a webhook that are pending, waiting or dead.",
        discussion: """
            Objects' names are not shown; the ID of an event begins with the generation of its object. At most 1000 are \
            shown. Exit status: 0, or 1 if the gateway can't be asked.
            """)

    @OptionGroup var listener: OperatorListener
    @OptionGroup var target: SubscriptionArguments

    @Option(help: "pending, waiting (for another attempt) or dead (given up).")
    var state = "dead"

    @Flag(help: "Print the response of the gateway, which is JSON.")
    var json = false

    func run() throws {
        guard ["pending", "waiting", "dead"].contains(where: { BytewiseString.areEqual($0, state) }) else {
            throw ValidationError("--state expects pending, waiting or dead.")
        }
        let body = try listener.call("GET", "/events/list?\(target.query)&state=\(state)")
        if json { return print(String(decoding: body, as: UTF8.self), terminator: "") }
        guard let response = try? JSONReader.parse(body), let all = response["events"]?.elements else {
            throw OperatorListener.Failure(description: "the response is not a gateway's")
        }
        var rows = [["SEQUENCE", "BUCKET", "TYPE", "TIME", "ATTEMPTS", "CAUSE", "ID"]]
        for one in all {
            rows.append([
                one["sequence"]?.text ?? "", one["bucket"]?.text ?? "", one["type"]?.text ?? "",
                one["time"]?.text ?? "", one["attempts"]?.integer.map { "\($0)" } ?? "-", one["cause"]?.text ?? "",
                one["id"]?.text ?? "",
            ])
        }
        printTable(rows)
        if response["isComplete"] == .boolean(false) { complain("There are more: the first 1000 are shown.") }
    }
}

/// `sluice events replay`: sends events again.
private struct ReplayEvents: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "replay", abstract: "Send events of a webhook again.",
        discussion: """
            They keep their IDs, so a receiver can tell that it has had them. --from and --since reach back as far as \
            events are kept (eventOptions.retention); they set back the whole subscription, with everything after. \
            Exit status: 0, or 1 if the gateway can't be asked.

            Examples:
              sluice events replay thumbnails --dead
              sluice events replay thumbnails --since 2026-01-31T12:00:00Z
              sluice events replay thumbnails --bucket photos --from 4711
            """)

    @OptionGroup var listener: OperatorListener
    @OptionGroup var target: SubscriptionArguments

    @Flag(help: "The dead ones, at most 10000.")
    var dead = false

    @Option(help: "All from this number on, of one bucket.")
    var from: Int64?

    @Option(help: "All from this time on (RFC 3339).")
    var since: String?

    func validate() throws {
        guard [dead, from != nil, since != nil].count(where: { $0 }) == 1 else {
            throw ValidationError("Give one of --dead, --from and --since.")
        }
        if let from, from < 1 { throw ValidationError("--from expects the number of an event, above 0.") }
        if let since, HTTPDate.parse(rfc3339: since) == nil {
            throw ValidationError("--since expects a time such as 2026-01-31T12:00:00Z.")
        }
    }

    func run() throws {
        let what = from.map { "from=\($0)" } ?? since.map { "since=\(PercentEncoding.encodeSegment($0))" } ?? "dead"
        let body = try listener.call("POST", "/events/replay?\(target.query)&\(what)")
        let count = (try? JSONReader.parse(body))?["replayed"]?.integer ?? 0
        print(dead ? "replayed \(count)" : "set back by \(count) changes; those that the webhook wants are sent again")
    }
}

/// `sluice events resume`: sends to a webhook again.
private struct ResumeEvents: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "resume", abstract: "Send to a webhook again that is gone or paused.",
        discussion: "Exit status: 0, or 1 if the gateway can't be asked.")

    @OptionGroup var listener: OperatorListener
    @OptionGroup var target: SubscriptionArguments

    func run() throws {
        _ = try listener.call("POST", "/events/resume?\(target.query)")
        print("resumed \(target.subscription)")
    }
}

/// `sluice events drop`: removes dead events.
private struct DropEvents: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "drop", abstract: "Remove the dead events of a webhook.",
        discussion: "They are removed by themselves after 7 days. Exit status: 0, or 1 if the gateway can't be asked.")

    @OptionGroup var listener: OperatorListener
    @OptionGroup var target: SubscriptionArguments

    func run() throws {
        let body = try listener.call("DELETE", "/events/dead?\(target.query)")
        print("removed \((try? JSONReader.parse(body))?["removed"]?.integer ?? 0)")
    }
}
