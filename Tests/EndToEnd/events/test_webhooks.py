"""Events that webhooks get: their three forms, signatures, filters and order. The CloudEvents are read by the public library,
and signatures are verified by that of Standard Webhooks."""

import base64
import json
import os
import signal
import threading
import time
import urllib.parse

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.v1.http import from_http, from_json

from program import curl, sluice, wait_until
from secret_words import secret
from webhook_sink import Sink, subscription

NAMES = ["a.txt", "images/grüße \"100%\".jpg", "日本/語.bin", "sp ace/~!*'();:@&=+$,.txt"]


def put(server, name, body="hello", *fields):
    arguments = [part for field in fields for part in ("-H", field)]
    return json.loads(curl("-X", "PUT", *arguments, "--data-binary", body,
                           server.url(f"/b/photos/o/{urllib.parse.quote(name)}")))


def delete(server, name):
    curl("-X", "DELETE", "-f", server.url(f"/b/photos/o/{urllib.parse.quote(name)}"))


def key_file(directory, *keys):
    path = directory / "webhook-keys"
    path.write_text("".join(f"{key}\n" for key in keys))
    path.chmod(0o600)
    return path


def new_key():
    status, out, err = sluice("events", "new-key")
    assert status == 0, err
    secret(out.strip().removeprefix("whsec_"))
    return out.strip()


def test_a_change_arrives_signed_as_a_cloud_event(launch, tmp_path):
    key = new_key()
    with Sink(key=key) as sink:
        server = launch(extra=subscription(sink.url("/hook?token=geheim-und-lang-genug"), keys=key_file(tmp_path, key)))
        secret("geheim-und-lang-genug")
        made = put(server, "images/a.txt", "hello", "content-type: text/plain", "x-object-meta-who: me")
        wait_until(lambda: len(sink.posts()) == 1)
        curl("-f", "-X", "PATCH", "-H", "content-type: application/json", "-d", '{"cacheControl":"no-store"}',
             server.url("/b/photos/o/images/a.txt"))
        replaced = put(server, "images/a.txt", "other")
        delete(server, "images/a.txt")
        events = wait_until(lambda: len(sink.events()) == 4 and sink.events())
    for request in sink.posts():
        assert request.fields["content-type"] == "application/cloudevents+json; charset=utf-8"
        assert request.path == "/hook?token=geheim-und-lang-genug"
        assert request.fields["webhook-id"] == request.json["id"]
        assert request.fields["traceparent"].startswith("00-")
        parsed = from_http(request.fields, request.body)
        assert parsed["specversion"] == "1.0" and parsed["subject"] == "objects/images/a.txt"
    kinds = [event["type"].removeprefix("google.cloud.storage.object.v1.") for event in events]
    assert kinds == ["finalized", "metadataUpdated", "finalized", "deleted"]
    first, patched, second, last = events
    data = first["data"]
    assert first["source"] == "//storage.googleapis.com/projects/_/buckets/photos" and first["bucket"] == "photos"
    assert data["generation"] == made["generation"] and data["size"] == "5" and data["md5Hash"] == made["md5Hash"]
    assert data["crc32c"] == made["crc32c"] and data["metadata"] == {"who": "me"} and data["timeCreated"] == made["timeCreated"]
    assert data["id"] == f"photos/images/a.txt/{made['generation']}" and data["kind"] == "storage#object"
    assert patched["data"]["metageneration"] == "2" and patched["data"]["cacheControl"] == "no-store"
    assert second["overwrotegeneration"] == made["generation"] and "overwrotegeneration" not in first
    assert last["data"]["generation"] == replaced["generation"] and last["data"]["timeDeleted"] == last["time"]
    assert len({event["id"] for event in events}) == 4
    sequences = [event["sequence"] for event in events]
    assert sequences == sorted(sequences) and {len(text) for text in sequences} == {20}
    # Neither the query of the URL nor the key is in the log, nor in the effective configuration.
    assert "geheim" not in server.output() and "?<redacted>" in sluice("check", server.config)[1]


@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_names_of_all_kinds_arrive_exactly(launch, mode):
    with Sink() as sink:
        server = launch(extra=subscription(sink, mode=mode, source="urn:test"))
        for name in NAMES:
            put(server, name)
        wait_until(lambda: len(sink.posts()) == len(NAMES))
    found = set()
    for request in sink.posts():
        event = from_http_event(HTTPMessage(headers=request.fields, body=request.body))
        assert event.get_type() == "google.cloud.storage.object.v1.finalized" and event.get_source() == "urn:test"
        attributes = event.get_attributes()
        data = event.get_data()
        assert event.get_subject() == f"objects/{data['name']}" and attributes["partitionkey"] == data["name"]
        found.add(data["name"])
    assert found == set(NAMES)


def test_batches_hold_many_events_in_order(launch, tmp_path):
    key = new_key()
    hold = threading.Event()
    with Sink(lambda request, handler: (hold.wait(10), 204)[1], key=key) as sink:
        server = launch(extra=subscription(sink, keys=key_file(tmp_path, key), batch=50, concurrency=1))
        put(server, "first")
        wait_until(lambda: sink.posts())
        for number in range(120):
            put(server, f"o{number % 7}", str(number))
        hold.set()
        wait_until(lambda: len(sink.events()) == 121)
    for request in sink.posts():
        assert request.fields["content-type"] == "application/cloudevents-batch+json; charset=utf-8"
        assert isinstance(request.json, list) and len(request.json) <= 50
        for event in request.json:
            from_json(json.dumps(event))
        first, last = request.json[0]["id"], request.json[-1]["id"]
        assert request.fields["webhook-id"] == (first if len(request.json) == 1 else f"{first}_{last}")
    assert len(sink.posts()) <= 8
    order = [int(event["sequence"]) for event in sink.events()]
    assert order == sorted(order)


def test_filters_choose_types_and_names(launch):
    with Sink() as sink, Sink() as other:
        extra = subscription(sink, allowed="[images/**, \"**/*.jpg\"]", denied="[images/private/**]", types="[finalized, replaced]")
        extra += f"  rest:\n    url: {other.url()}\n    buckets: [photos]\n    types: [deleted]\n"
        server = launch(extra=extra)
        for name in ["images/a", "images/private/b", "x/y/z.jpg", "x/y/z.png"]:
            put(server, name)
        put(server, "images/a", "again")
        delete(server, "images/a")
        delete(server, "x/y/z.png")
        wait_until(lambda: len(sink.events()) == 4 and len(other.events()) == 2)
        time.sleep(0.3)
    found = {}
    for event in sink.events():
        found.setdefault(event["data"]["name"], []).append((event["type"].rsplit(".", 1)[1], event))
    # The old object is reported before its successor.
    assert {name: [kind for kind, _ in events] for name, events in found.items()} == {
        "images/a": ["finalized", "deleted", "finalized"], "x/y/z.jpg": ["finalized"]}
    old, new = found["images/a"][1][1], found["images/a"][2][1]
    assert old["overwrittenbygeneration"] == new["data"]["generation"] and new["overwrotegeneration"] == old["data"]["generation"]
    assert other.names() == ["images/a", "x/y/z.png"]


def test_order_is_kept_for_each_object_while_others_pass(launch):
    def answer(request, handler):
        time.sleep(0.02 if request.json["data"]["name"] == "slow" else 0)
        return 204

    with Sink(answer) as sink:
        server = launch(extra=subscription(sink))
        for number in range(30):
            for name in ("slow", "fast", "other"):
                put(server, name, str(number))
        wait_until(lambda: len(sink.events()) == 90)
    for name in ("slow", "fast", "other"):
        generations = [int(event["data"]["generation"]) for event in sink.events() if event["data"]["name"] == name]
        assert generations == sorted(generations) and len(generations) == 30


def test_keys_are_replaced_without_a_restart(launch, tmp_path):
    old, new = new_key(), new_key()
    with Sink() as sink:
        keys = key_file(tmp_path, old)
        server = launch(extra=subscription(sink, keys=keys))
        put(server, "a")
        wait_until(lambda: len(sink.posts()) == 1)
        key_file(tmp_path, new, old)
        wait_until(lambda: "keys of webhooks loaded" in server.output())
        put(server, "b")
        wait_until(lambda: len(sink.posts()) == 2)
        # Receivers with either key accept it.
        from standardwebhooks import Webhook
        for key in (old, new):
            Webhook(key).verify(sink.posts()[1].body, sink.posts()[1].fields)
        assert len(sink.posts()[1].fields["webhook-signature"].split(" ")) == 2
        keys.write_text("whsec_broken\n")
        wait_until(lambda: "the last good ones stay" in server.output())
        assert "events" in server.readiness()[1] and server.readiness()[0] == 200
        put(server, "c")
        wait_until(lambda: len(sink.posts()) == 3)
        Webhook(new).verify(sink.posts()[2].body, sink.posts()[2].fields)


def test_handshake_asks_first_and_keeps_the_rate(launch):
    refuses = threading.Event()

    def answer(request, handler):
        if request.method != "OPTIONS":
            return 204
        if not refuses.is_set():
            refuses.set()
            return 405
        return 200, {"WebHook-Allowed-Origin": request.fields["webhook-request-origin"], "WebHook-Allowed-Rate": "300"}

    with Sink(answer) as sink:
        server = launch(extra=subscription(sink, handshake="true"))
        for number in range(6):
            put(server, f"o{number}")
        wait_until(lambda: len(sink.posts()) == 6)
    assert [request.method for request in sink.requests[:2]] == ["OPTIONS", "OPTIONS"]
    assert {request.method for request in sink.requests[2:]} == {"POST"}
    times = [request.time for request in sink.posts()]
    # 300 a minute.
    assert times[-1] - times[0] > 0.9
    assert sink.requests[1].time - sink.requests[0].time > 0.9


def test_headers_are_sent(launch, tmp_path):
    fields = tmp_path / "fields"
    fields.write_text(f"authorization: Bearer {secret('ein-langes-geheimnis-im-feld')}\nx-tenant: a\n")
    fields.chmod(0o600)
    with Sink() as sink:
        server = launch(extra=subscription(sink, headers=fields))
        put(server, "a")
        wait_until(lambda: sink.posts())
    assert sink.posts()[0].fields["authorization"] == "Bearer ein-langes-geheimnis-im-feld"
    assert sink.posts()[0].fields["x-tenant"] == "a"


def test_a_new_subscription_begins_now_and_an_old_one_where_it_was(launch):
    with Sink() as sink, Sink() as second:
        server = launch(extra=subscription(sink))
        put(server, "before")
        wait_until(lambda: sink.posts())
        text = server.config.read_text()
        server.config.write_text(text + f"  second:\n    url: {second.url()}\n    buckets: [photos]\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "configuration reloaded" in server.output())
        put(server, "after")
        wait_until(lambda: second.posts() and len(sink.posts()) == 2)
        # A subscription that ends for a while continues.
        server.config.write_text(text)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.output().count("configuration reloaded") == 2)
        put(server, "between")
        wait_until(lambda: len(sink.posts()) == 3)
        server.config.write_text(text + f"  second:\n    url: {second.url()}\n    buckets: [photos]\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(second.posts()) == 2)
    assert second.names() == ["after", "between"]


def test_mistakes_are_found_by_check(launch, tmp_path):
    config = tmp_path / "c.yaml"

    def check(extra, buckets="photos: { directory: { path: ./p } }"):
        config.write_text(f"rules: none\nbuckets: {{ {buckets} }}\n{extra}")
        return sluice("check", config)

    def fails(extra, text, **options):
        status, _, err = check(extra, **options)
        assert status == 1 and text in err, (status, err)

    url = "https://hooks.example.com/a"
    assert check(subscription(url))[0] == 0
    fails(subscription(url, buckets="[photoz]"), "there is no bucket 'photoz'")
    fails(subscription(url, buckets="[cloud]"), "use its Pub/Sub notifications",
          buckets="cloud: { gcs: { bucket: b } }")
    fails(subscription(url, buckets="[cloud]"), "use its event notifications", buckets="cloud: { s3: { bucket: b } }")
    fails(subscription(url, types="[finalised]"), "did you mean 'finalized'?")
    fails(subscription(url, mode="binary", batch=2), "requires 'mode: structured'")
    fails("events: { a: { buckets: [photos] } }\n", "'events.a.url' is missing")
    fails("events: { a: { url: https://x.example } }\n", "'events.a.buckets' is missing")
    fails(subscription(url, keys=tmp_path / "missing"), "can't be read")
    fails(subscription("ftp://x/?key=geheim"), "expected a URL")
    broken = tmp_path / "keys"
    broken.write_text("whsec_c2hvcnQ=\n")
    fails(subscription(url, keys=broken), "line 1: expected whsec_")
    keys = key_file(tmp_path, "whsec_" + base64.b64encode(os.urandom(32)).decode())
    assert "http: everybody on the way" in check(subscription("http://hooks.example.com/a"))[2]
    assert "http: everybody" not in check(subscription("http://127.0.0.1:1/a"))[2]
    assert "signatures do not cover header fields" in check(subscription(url, mode="binary", keys=keys))[2]
    keys.chmod(0o644)
    assert f"{keys}: warning: every user can read" in check(subscription(url, keys=keys))[2]
