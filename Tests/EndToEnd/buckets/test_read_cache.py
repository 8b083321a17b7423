"""The read cache in front of a real service: what it saves, and that nobody gets what is not current."""

import concurrent.futures
import hashlib
import itertools
import random
import re
import subprocess
import threading
import time
import types

import pytest

import wire as wire_client
from fault_proxy import FaultProxy, each_upstream
from faults import Status
from program import wait_until

NUMBERS = itertools.count(1)
MIB = 1 << 20
LARGE = hashlib.shake_256(b"large").digest(5 * MIB + 12_345)
OTHER = hashlib.shake_256(b"other").digest(5 * MIB + 12_345)
LIMITS = ("upstream: { connectTimeout: 10s, firstByteTimeout: 10s, progressTimeout: 2s, queueTimeout: 1s, attempts: 2, "
          "retryDelay: 10ms, maximumRetryDelay: 50ms }\n")
RULES = """rules_version = '2';
service firebase.storage { match /b/{bucket}/o/{path=**} {
  allow read: if resource == null || resource.contentLanguage != 'xx';
  allow write;
} }
"""

real = each_upstream("gcs-model", "seaweedfs")


@pytest.fixture
def chain(real, launch, tmp_path):
    """`chain("validate")`: a gateway with a cache behind a proxy that counts, and another one without a cache."""
    proxy = FaultProxy(real.port)
    rules = tmp_path / "cached.rules"
    rules.write_text(RULES)
    (tmp_path / "cache").mkdir(mode=0o700)

    def start(freshness, more="", settings="", directory=tmp_path / "cache", state="[+] cache"):
        store = proxy.store(real)
        cached = launch(
            buckets=f"  photos: {{ {store}, cache: {{ freshness: {freshness}{more} }} }}\n", rules=rules,
            extra=f"cache: {{ directory: {directory}, size: 256MiB, reserve: 0{settings} }}\n{LIMITS}")
        other = launch(buckets=f"  photos: {{ {real.store()} }}\n", rules=rules, extra=LIMITS)
        wait_until(lambda: state in cached.readiness()[1], what="the cache")
        return types.SimpleNamespace(
            real=real, proxy=proxy, server=cached, client=wire_client.Wire(cached), other=wire_client.Wire(other))

    yield start
    proxy.stop()


@pytest.fixture
def name():
    return f"cached/{next(NUMBERS)}"


def requests(chain):
    """The requests for objects since the last call, as (reads of bytes, others)."""
    # Checks of readiness and capabilities are not counted.
    made = [request for request in chain.proxy.requests if re.search("cached(/|%2F)", request.target)]
    del chain.proxy.requests[:]
    media = [one for one in made if one.method == "GET" and
             ("alt=media" in one.target if chain.real.kind == "gcs" else "?" not in one.target)]
    return len(media), len(made) - len(media)


def status_of(response):
    return response["cache-status"]


def test_the_second_read_asks_only_for_the_version(chain, name):
    chain = chain("validate")
    chain.other.stored(name, LARGE)
    first = chain.client.get(name)
    assert first.body == LARGE and status_of(first).startswith("sluice; fwd=miss; stored"), first.fields
    requests(chain)
    second = chain.client.get(name)
    assert second.body == LARGE and status_of(second) == "sluice; fwd=stale; detail=validated", second.fields
    assert requests(chain) == (0, 1)
    assert [field for field in first.fields if field[0] not in ("cache-status", "x-request-id", "date")] == \
        [field for field in second.fields if field[0] not in ("cache-status", "x-request-id", "date")]
    # An overwrite by another is seen by the next read.
    chain.other.stored(name, OTHER)
    assert chain.client.get(name).body == OTHER
    assert chain.client.get(name).body == OTHER
    chain.other.delete(name)
    chain.client.missing(name)
    chain.other.stored(name, LARGE)
    assert chain.client.get(name).body == LARGE


def test_within_the_time_to_live_nobody_asks(chain, name):
    chain = chain("1h")
    chain.other.stored(name, LARGE)
    chain.other.stored(name + "s", b"small")
    assert chain.client.get(name).body == LARGE and chain.client.get(name + "s").body == b"small"
    requests(chain)
    for _ in range(3):
        response = chain.client.get(name)
        assert response.body == LARGE and re.fullmatch(r"sluice; hit; ttl=35\d\d", status_of(response))
        assert 0 <= int(response["age"]) < 100
        assert chain.client.get(name + "s").body == b"small"
        assert chain.client.head(name)["content-length"] == str(len(LARGE))
        assert chain.client.get(name, f"If-None-Match: {response['etag']}").status == 304
        assert chain.client.metadata(name)["size"] == str(len(LARGE))
    assert requests(chain) == (0, 0)
    # Others' writes are seen later, unless the client asks.
    chain.other.stored(name, OTHER)
    assert chain.client.get(name).body == LARGE
    assert chain.client.get(name, "Cache-Control: max-age=0, No-Cache").body == OTHER
    assert chain.client.get(name).body == OTHER
    # Its own writes at once, whatever is known.
    chain.client.stored(name, LARGE)
    assert chain.client.get(name).body == LARGE
    chain.client.patch(name, {"cacheControl": "private"})
    assert chain.client.head(name)["cache-control"] == "private"
    assert chain.client.delete(name).status == 204
    chain.client.missing(name)


def test_ranges(chain, name):
    chain = chain("forever")
    chain.other.stored(name, LARGE)
    choice = random.Random(7)
    size = len(LARGE)
    borders = [0, 1, 16_383, 16_384, MIB - 1, MIB, MIB + 1, 5 * MIB - 1, 5 * MIB, size - 1]
    for _ in range(60):
        first, last = sorted((choice.choice(borders), choice.choice([*borders, choice.randrange(size)])))
        response = chain.client.get(name, f"Range: bytes={first}-{last}")
        assert response.status == 206 and response.body == LARGE[first:last + 1], (first, last, response)
        assert response["content-range"] == f"bytes {first}-{last}/{size}"
    assert chain.client.get(name, "Range: bytes=-70000").body == LARGE[-70_000:]
    assert chain.client.get(name, f"Range: bytes={size}-").status == 416
    assert chain.client.get(name).body == LARGE
    reads = requests(chain)[0]
    assert reads <= 6, "one read for each slice at most"
    chain.other.stored(name + "x", LARGE)
    requests(chain)
    # Only the slice is fetched.
    assert chain.client.get(name + "x", f"Range: bytes={2 * MIB + 5}-{2 * MIB + 9}").body == LARGE[2 * MIB + 5:2 * MIB + 10]
    assert chain.server.metrics()['sluice_cache_written_bytes_total'] < 8 * MIB + 12_345


@pytest.mark.parametrize("freshness", ["validate", "1h"])
def test_many_cold_readers_are_one_download(chain, name, freshness):
    chain = chain(freshness)
    chain.other.stored(name, LARGE * 4)
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        bodies = list(threads.map(lambda _: chain.client.get(name).body, range(16)))
    assert all(body == LARGE * 4 for body in bodies)
    assert requests(chain)[0] == 1


def test_a_denial_is_not_decided_by_what_was_known(chain, name):
    chain = chain("1h")
    chain.other.stored(name, LARGE)
    chain.other.patch(name, {"contentLanguage": "xx"})
    assert chain.client.get(name).status == 403
    # It is visible again, for a reader that knows only the hidden one.
    chain.other.patch(name, {"contentLanguage": "en"})
    assert chain.client.get(name).body == LARGE
    assert chain.client.head(name).status == 200
    chain.other.patch(name, {"contentLanguage": "xx"})
    assert chain.client.head(name, "Pragma: no-cache").status == 403
    chain.other.patch(name, {"contentLanguage": "en"})
    assert chain.client.head(name).status == 200
    # The same for a condition that does not hold.
    chain.other.stored(name, OTHER)
    tag = chain.other.head(name)["etag"]
    assert chain.client.get(name, f"If-Match: {tag}").body == OTHER
    chain.client.missing(name + "-none")
    chain.other.stored(name + "-none", b"there")
    assert chain.client.get(name + "-none").body == b"there"


def test_what_forbids_it_is_not_kept(chain, name):
    chain = chain("forever")
    chain.other.stored(name, LARGE, "Cache-Control: private, No-Store")
    for _ in range(2):
        response = chain.client.get(name, "Range: bytes=1000-2000")
        assert response.body == LARGE[1000:2001]
        assert chain.client.get(name).body == LARGE
    assert chain.server.metrics()["sluice_cache_written_bytes_total"] == 0


def test_the_last_known_version_while_the_service_is_down(chain, name):
    chain = chain("validate", ", staleIfError: 1h")
    for each, body in ((name, LARGE), (name + "s", b"small")):
        chain.other.stored(each, body)
        assert chain.client.get(each).body == body
    chain.proxy.fault(Status(503), times=None)
    for each, body in ((name, LARGE), (name + "s", b"small")):
        response = chain.client.get(each)
        assert response.body == body and status_of(response) == "sluice; hit; detail=stale", response
        assert chain.client.get(each, "Cache-Control: no-cache").status >= 500
        # A negative result is not decided by what was known.
        assert chain.client.get(each, 'If-Match: "other"').status >= 500
    assert chain.client.get(name + "-unknown").status >= 500
    chain.proxy.clear()
    chain.other.delete(name)
    wait_until(lambda: chain.client.get(name).status == 404, what="the object is gone")
    assert '"cache":"stale"' in chain.server.output()


def test_a_restart_keeps_the_bytes(chain, name):
    chain = chain("forever")
    chain.other.stored(name, LARGE)
    assert chain.client.get(name).body == LARGE
    assert chain.server.stop() == 0
    chain.server.start()
    wait_until(lambda: chain.server.metrics()["sluice_cache_slices"] == 6, what="the index")
    assert chain.client.get(name).body == LARGE
    assert chain.server.metrics()["sluice_cache_written_bytes_total"] == 0


def test_two_gateways_and_overwrites(chain, name):
    """With `validate` a read never gets a version that was replaced before it began."""
    chain = chain("validate")
    written, end, failures = [0], threading.Event(), []

    def body(number):
        return number.to_bytes(4, "big") * (100_000 // 4)

    def overwrite():
        for number in itertools.count(1):
            if end.is_set():
                return
            writer = chain.client if number % 3 == 0 else chain.other
            writer.stored(name, body(number))
            written[0] = number

    def read():
        while not end.is_set():
            before = written[0]
            found = chain.client.get(name)
            if found.status != 200:
                failures.append(found)
                continue
            number = int.from_bytes(found.body[:4], "big")
            if found.body != body(number) or number < before:
                failures.append((before, number, len(found.body)))

    chain.other.stored(name, body(0))
    threads = [threading.Thread(target=overwrite), *(threading.Thread(target=read) for _ in range(4))]
    for thread in threads:
        thread.start()
    wait_until(lambda: written[0] >= 60 or failures, 60, "sixty overwrites")
    end.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_slow_client_holds_up_nobody(chain, name):
    chain = chain("forever")
    chain.other.stored(name, LARGE * 6)
    slow = subprocess.Popen(
        ["curl", "-sS", "--limit-rate", "100k", "--max-time", "60", chain.server.url(f"/b/photos/o/{name}")],
        stdout=subprocess.PIPE)
    assert slow.stdout.read(1000) == LARGE[:1000]
    begin = time.monotonic()
    assert chain.client.get(name).body == LARGE * 6
    assert time.monotonic() - begin < 30
    assert requests(chain)[0] == 1
    slow.kill()
    slow.wait()
    wait_until(lambda: chain.server.live() == {}, what="nothing is left")
    assert chain.server.metrics()["sluice_cache_fills"] == 0
