"""The faults of Google's own test bench: responses to clients, and what is stored."""

import hashlib
import itertools
import json
import types

import pytest

import gcs_model
import upstreams
import wire as wire_client
from digests import md5
from faults import SMALL
from wire import fetch

NUMBERS = itertools.count(1)
BODY = hashlib.shake_256(b"bench").digest(1_500_000)
LIMITS = ("upstream: { connectTimeout: 10s, firstByteTimeout: 2s, progressTimeout: 1s, queueTimeout: 1s, "
          "retryDelay: 10ms, maximumRetryDelay: 50ms }\n")
INSERT, GET = "storage.objects.insert", "storage.objects.get"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    running = upstreams.GCSBench(tmp_path_factory.mktemp("bench"))
    yield running
    running.stop()


@pytest.fixture
def bench(real, launch):
    server = launch(buckets=f"  photos: {{ {real.store()} }}\n", extra=LIMITS)
    yield types.SimpleNamespace(real=real, model=real.model, server=server, client=wire_client.Wire(server))
    real.model.instructions.clear()
    real.model.damages = False


@pytest.fixture
def name():
    """An object that no other test uses."""
    return f"bench/{next(NUMBERS)}"


def put(bench, name, body, how):
    return bench.client.put(name, body, *(["Transfer-Encoding: chunked"] if how == "streamed" else []))


def once(bench, name):
    return sum(1 for made, _ in bench.model.commits if made == name)


ONE_REQUEST = [
    ["return-503"], ["return-503", "return-503"], ["return-408", "return-429", "return-500"],
    ["return-reset-connection"], ["return-reset-connection", "return-503"],
    ["return-reset-connection", "return-reset-connection"], ["return-broken-stream"],
    ["return-broken-stream", "return-503"],
]
SESSIONS = [
    ["return-503-after-256K"], ["return-503-after-256K", "return-503-after-512K", "return-503-after-768K"],
    ["return-503-after-256K", "return-503-after-256K", "return-503-after-256K"], ["return-408-after-1024K"],
    ["return-503", "return-503-after-512K", "return-reset-connection"], ["stall-for-1s-after-256K"],
    ["stall-for-9s-after-512K"], ["return-broken-stream-final-chunk-after-0B"],
    ["return-broken-stream-final-chunk-after-10B"],
    ["return-503-after-256K", "return-broken-stream-final-chunk-after-10B", "return-broken-stream-final-chunk-after-0B"],
]


@pytest.mark.parametrize("how", ["known", "streamed"])
@pytest.mark.parametrize("size", [0, 1, 65_536, 262_144, 262_145, 786_432, 1_500_000])
@pytest.mark.parametrize("faults", ONE_REQUEST, ids="+".join)
def test_uploads_survive_repeatable_faults(bench, name, how, size, faults):
    bench.model.instruct(INSERT, *faults)
    response = put(bench, name, BODY[:size], how)
    assert (response.status, bench.model.left()) == (201, []), response
    assert bench.real.content(name) == BODY[:size] and once(bench, name) == 1
    assert response.json["md5Hash"] == md5(BODY[:size])


@pytest.mark.parametrize("how", ["known", "streamed"])
@pytest.mark.parametrize("faults", SESSIONS, ids="+".join)
def test_sessions_continue_after_the_stored_bytes(bench, name, how, faults):
    bench.model.instruct(INSERT, *faults)
    response = put(bench, name, BODY, how)
    assert (response.status, bench.model.left()) == (201, []), response
    assert bench.real.content(name) == BODY and once(bench, name) == 1


@pytest.mark.parametrize("how", ["known", "streamed"])
def test_chunk_after_chunk_is_broken(bench, name, how):
    """More bytes than one chunk, with a fault in each chunk."""
    body = BODY * 13
    # The model takes seconds, longer than the timeout for a response.
    gcs_model.crc32c(body)
    bench.model.instruct(INSERT, "return-503", *(f"return-503-after-{part * 6144}K" for part in range(1, 4)))
    response = put(bench, name, body, how)
    assert (response.status, bench.model.left()) == (201, []), response
    assert bench.real.content(name) == body and once(bench, name) == 1


@pytest.mark.parametrize("how", ["known", "streamed"])
@pytest.mark.parametrize("size", [1000, 1_500_000])
@pytest.mark.parametrize("fault", ["return-503", "return-reset-connection"])
def test_endless_faults(bench, name, how, size, fault):
    bench.model.instruct(INSERT, *[fault] * 100)
    response = put(bench, name, BODY[:size], how)
    assert response.status in (502, 503, 504) and len(bench.model.left()) > 80, response
    assert bench.real.content(name) is None and once(bench, name) == 0


@pytest.mark.parametrize("how", ["known", "streamed"])
@pytest.mark.parametrize("size", [1000, 1_500_000])
def test_a_damaged_object_is_deleted(bench, name, how, size):
    bench.model.damages = True
    response = put(bench, name, BODY[:size], how)
    assert response.status in (502, 503), response
    assert bench.real.content(name) is None


def test_a_failed_condition_is_reported_despite_faults(bench, name):
    bench.client.stored(name, SMALL)
    for size in (1000, 1_500_000):
        bench.model.instruct(INSERT, "return-503", "return-reset-connection")
        assert bench.client.put(name, BODY[:size], "If-None-Match: *").status == 412
        assert bench.real.content(name) == SMALL and once(bench, name) == 1
        bench.model.instructions.clear()


DOWNLOADS = [
    ["return-503"], ["return-503", "return-reset-connection"], ["return-broken-stream"],
    ["return-broken-stream", "return-broken-stream"], ["return-broken-stream-after-256K"],
    ["return-broken-stream-after-256K", "return-broken-stream-after-512K"], ["stall-for-9s-after-256K"],
    ["return-broken-stream-after-256K", "return-503", "return-reset-connection", "stall-for-9s-after-512K"],
]


@pytest.mark.parametrize("known", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("transport", ["http1", "h2"])
@pytest.mark.parametrize("part", [None, "100000-1499999", "-1400000"])
@pytest.mark.parametrize("faults", DOWNLOADS, ids="+".join)
def test_downloads_continue(bench, name, faults, part, transport, known):
    bench.client.stored(name, BODY)
    if known:
        assert fetch(bench.server, name) == (0, 200, BODY)
    bench.model.instruct(GET, *faults)
    options = ["-r", part] if part else []
    expected = (206, BODY[100_000:]) if part else (200, BODY)
    assert fetch(bench.server, name, transport, *options) == (0, *expected)
    assert bench.model.left() == []


@pytest.mark.parametrize("transport", list(wire_client.TRANSPORTS))
@pytest.mark.parametrize("fault", ["return-corrupted-data", "return-broken-stream", "return-503"])
def test_a_failed_download_has_no_complete_body(bench, name, transport, fault):
    bench.client.stored(name, BODY)
    bench.model.instruct(GET, *[fault] * 100)
    code, status, body = fetch(bench.server, name, transport)
    assert code != 0 or status >= 500, (code, status, len(body))
    assert len(bench.model.left()) > 70


FEW = [["return-503"], ["return-503", "return-429"], ["return-reset-connection", "return-503"], ["return-broken-stream"]]


@pytest.mark.parametrize("faults", FEW, ids="+".join)
@pytest.mark.parametrize("condition", [None, "X-Object-Metageneration-Match: 1"])
def test_a_patch_is_applied_once(bench, name, faults, condition):
    bench.client.stored(name, SMALL)
    bench.model.instruct("storage.objects.patch", *faults)
    response = bench.client.patch(name, {"cacheControl": "no-store"}, *([condition] if condition else []))
    assert (response.status, bench.model.left()) == (200, []), response
    after = bench.client.metadata(name)
    assert (after["cacheControl"], int(after["metageneration"])) == ("no-store", 2)


@pytest.mark.parametrize("faults", FEW[:3], ids="+".join)
def test_a_deletion_is_made(bench, name, faults):
    bench.client.stored(name, SMALL)
    bench.model.instruct("storage.objects.delete", *faults)
    assert (bench.client.delete(name).status, bench.model.left()) == (204, [])
    assert bench.real.content(name) is None


@pytest.mark.parametrize("faults", FEW, ids="+".join)
def test_a_list_and_metadata_are_read(bench, name, faults):
    bench.client.stored(name, SMALL)
    bench.model.instruct("storage.objects.list", *faults)
    listed = json.loads(bench.client.get("bench/").body)["items"]
    assert any(name in json.dumps(item) for item in listed) and bench.model.left() == []
    bench.model.instruct(GET, *faults)
    assert int(bench.client.metadata(name)["size"]) == len(SMALL) and bench.model.left() == []
