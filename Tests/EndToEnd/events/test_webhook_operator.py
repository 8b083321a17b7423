"""`sluice events` and the operator's endpoints: what waits and what is dead, and sending it again."""

import hashlib
import json
import signal
import threading

from program import curl, sluice, status, wait_until
from test_webhook_faults import operator, state
from test_webhooks import put
from upstreams import free_port
from webhook_sink import Sink, closed_port, subscription


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
        assert "set back by 3 changes" in verb(server, "replay", "thumbs", "--from", "3")
        wait_until(lambda: len(sink.posts()) == 8)
        # The same events with the same IDs.
        assert sorted(event["id"] for event in sink.events()[5:]) == sorted(event["id"] for event in before[2:])
        assert "set back by 5 changes" in verb(server, "replay", "thumbs", "--since", before[0]["time"])
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


def test_changes_do_not_wait_for_a_sink_that_hangs(launch):
    """Requests under way are given up, and their events are sent again; changes at the same time follow each other."""
    ends = threading.Event()

    def answer(request, handler):
        if not ends.is_set():
            ends.wait(60)
        return 204

    with Sink(answer) as sink:
        server = launch(extra=subscription(sink, timeout="60s", concurrency=2))
        put(server, "a")
        put(server, "b")
        wait_until(lambda: sink.current == 2)
        outputs = []
        threads = [threading.Thread(target=lambda words=words: outputs.append(verb(server, *words)))
                   for words in [("replay", "thumbs", "--from", "1"), ("drop", "thumbs"), ("replay", "thumbs", "--dead")]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # While the first requests still hang.
        assert not ends.is_set() and len(outputs) == 3, outputs
        text = server.config.read_text()
        server.config.write_text(text.replace("/hook", "/other"))
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "/other" in {request.path for request in sink.requests})
        assert not ends.is_set()
        ends.set()
        wait_until(lambda: state(server)[0]["pending"] == 0, what=lambda: state(server))
        assert {"a", "b"} == {event["data"]["name"] for event in sink.events()}


def test_drop_and_replay_end_no_silence(launch):
    """What the sink has asked for counts until a reload, a restart or `resume`."""
    responses = [410]
    with Sink(lambda request, handler: responses[-1]) as sink:
        server = launch(extra=subscription(sink))
        put(server, "a")
        wait_until(lambda: state(server)[0]["state"] == "gone")
        assert "removed 0" in verb(server, "drop", "thumbs") and "replayed 0" in verb(server, "replay", "thumbs", "--dead")
        put(server, "b")
        wait_until(lambda: state(server)[0]["pending"] == 2)
        assert state(server)[0]["state"] == "gone" and len(sink.posts()) == 1
        responses.append((429, {"Retry-After": "3600"}))
        verb(server, "resume", "thumbs")
        wait_until(lambda: "429" in state(server)[0].get("lastCause", ""))
        asked = len(sink.posts())
        verb(server, "drop", "thumbs")
        verb(server, "replay", "thumbs", "--from", "1")
        # The same webhook with another setting.
        text = server.config.read_text()
        server.config.write_text(text + "    concurrency: 3\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "configuration reloaded" in server.output(), what=lambda: server.output()[-500:])
        put(server, "c")
        wait_until(lambda: state(server)[0]["pending"] == 3)
        assert len(sink.posts()) == asked
        responses.append(204)
        verb(server, "resume", "thumbs")
        wait_until(lambda: state(server)[0]["pending"] == 0, what=lambda: state(server))


def test_pending_events_are_those_that_the_webhook_wants(launch, tmp_path):
    console = free_port()
    server = launch(
        extra=subscription(f"http://127.0.0.1:{closed_port()}/hook", allowed="[images/**]")
        + f"console: {{ token: {hashlib.sha256(b'name').hexdigest()} }}\n",
        arguments=("--set", f"listen.console=127.0.0.1:{console}"))
    for number in range(40):
        put(server, f"images/{number}")
        put(server, f"other/{number}")

    def listed(state):
        return operator(server, "GET", f"/events/list?subscription=thumbs&state={state}")

    wait_until(lambda: state(server)[0]["state"] == "paused")
    wait_until(lambda: len(listed("pending")["events"] + listed("waiting")["events"]) == 40)
    assert listed("pending")["isComplete"] and listed("waiting")["isComplete"]
    assert "images" not in json.dumps(listed("pending"))

    # The names are in the console.
    def shown(query, *arguments):
        return json.loads(curl(f"http://127.0.0.1:{console}/api/events{query}", *arguments))

    token = ("-H", "x-console-token: name")
    assert shown("", *token)["subscriptions"][0]["subscription"] == "thumbs"
    names = {event["name"] for state in ("pending", "waiting")
             for event in shown(f"?subscription=thumbs&state={state}", *token)["events"]}
    assert names == {f"images/{number}" for number in range(40)}
    assert status(f"http://127.0.0.1:{console}/api/events") == 401


def test_mistakes_are_said(launch):
    with Sink() as sink:
        server = launch(extra=subscription(sink))
        base = f"http://127.0.0.1:{server.operator}/events"
        assert status("-X", "POST", f"{base}/replay?subscription=nobody&dead") == 404
        assert status("-X", "POST", f"{base}/replay?subscription=thumbs") == 400
        assert status("-X", "POST", f"{base}/replay?subscription=thumbs&from=x") == 400
        assert status("-X", "POST", f"{base}/replay?subscription=thumbs&dead&from=1") == 400
        assert status("-X", "POST", f"{base}/replay?subscription=thumbs&since=yesterday") == 400
        assert status(f"{base}/list?subscription=thumbs&state=odd") == 400
        # What is not understood does not make the operation a wider one.
        for query in ("bucket=%zz", "bucket", "bucket=", "bukcet=photos", "bucket=photos&bucket=photos"):
            assert status("-X", "DELETE", f"{base}/dead?subscription=thumbs&{query}") == 400, query
        assert status("-X", "POST", f"{base}/replay?subscription=thumbs&dead=false") == 400
        assert status(f"{base}/list?subscription=thumbs&state=%zz") == 400
        assert status("-X", "POST", "-H", "origin: https://evil.example", f"{base}/resume?subscription=thumbs") == 403
        assert sluice("events", "replay", "thumbs")[0] == 64
