"""`sluice events` and the operator's endpoints: what waits and what is dead, and sending it again."""

import json
import time

from program import curl, sluice, status, wait_until
from test_webhook_faults import operator, state
from test_webhooks import put
from webhook_sink import Sink, subscription


def verb(server, *arguments):
    code, out, err = sluice("events", *arguments, "--operator", f"http://127.0.0.1:{server.operator}")
    assert code == 0, err
    return out


def test_events_are_replayed_from_a_number_and_a_time(launch):
    with Sink() as sink:
        server = launch(extra=subscription(sink))
        for number in range(5):
            put(server, f"o{number}")
        wait_until(lambda: len(sink.posts()) == 5)
        before = sink.events()
        assert "replayed 3" in verb(server, "replay", "thumbs", "--from", "3")
        wait_until(lambda: len(sink.posts()) == 8)
        # The same events with the same IDs.
        assert sorted(event["id"] for event in sink.events()[5:]) == sorted(event["id"] for event in before[2:])
        assert "replayed 5" in verb(server, "replay", "thumbs", "--since", before[0]["time"])
        wait_until(lambda: len(sink.posts()) == 13)
        put(server, "last")
        wait_until(lambda: len(sink.posts()) == 14)
        wait_until(lambda: state(server)[0]["pending"] == 0)


def test_what_is_too_old_is_dead_listed_and_replayed_or_dropped(launch):
    """The events become old by the clock of their commit, which a test can't wait for: the index is changed."""
    import sqlite3
    with Sink(lambda request, handler: 500) as sink:
        server = launch(extra=subscription(sink))
        for number in range(6):
            put(server, f"name{number}")
        wait_until(lambda: state(server)[0]["failed"] >= 6)
        assert server.stop() == 0
        index = sqlite3.connect(server.directory / "photos" / "index.sqlite")
        index.execute("UPDATE events SET at = at - 73 * 3600 * 1000000")
        index.commit()
        index.close()
        server.start()
        wait_until(lambda: state(server)[0]["dead"] == 6, timeout=40, what=lambda: state(server))
        wait_until(lambda: "events given up: older than maximumAge" in server.output())
        assert state(server)[0]["pending"] == 0
        wait_until(lambda: len(operator(server, "GET", "/events/list?subscription=thumbs&state=dead")["events"]) == 6)
        shown = verb(server, "list", "thumbs", "--state", "dead")
        assert shown.count("finalized") == 6 and "status 500" in shown and "name1" not in shown
        assert " 6 " in verb(server, "ls").splitlines()[1] + " "
        assert "removed 6" in verb(server, "drop", "thumbs")
        assert state(server)[0]["dead"] == 0 or wait_until(lambda: state(server)[0]["dead"] == 0)


def test_mistakes_are_said(launch):
    with Sink() as sink:
        server = launch(extra=subscription(sink))
        base = f"http://127.0.0.1:{server.operator}/events"
        assert status("-X", "POST", f"{base}/replay?subscription=nobody&dead") == 404
        assert status("-X", "POST", f"{base}/replay?subscription=thumbs") == 400
        assert status("-X", "POST", f"{base}/replay?subscription=thumbs&from=x") == 400
        assert status("-X", "POST", f"{base}/replay?subscription=thumbs&since=yesterday") == 400
        assert status(f"{base}/list?subscription=thumbs&state=odd") == 400
        assert status("-X", "POST", "-H", "origin: https://evil.example", f"{base}/resume?subscription=thumbs") == 403
        assert sluice("events", "replay", "thumbs")[0] == 64
