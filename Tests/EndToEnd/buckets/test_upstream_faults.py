"""Faults of upstreams: responses to clients, and what is stored."""

import hashlib
import itertools
import json
import os
import re
import socket
import threading
import urllib.error
import urllib.request

import pytest

import wire as wire_client
from digests import md5
from fault_proxy import FaultProxy, behind_proxy, each_upstream
from faults import SMALL, Alter, Break, Bytes, Reset, Stall, StallRequest, Status
from program import wait_until
from wire import fetch

NUMBERS = itertools.count(1)
BODY = hashlib.shake_256(b"body").digest(700_000)
LIMITS = ("upstream: { connectTimeout: 10s, firstByteTimeout: 3s, progressTimeout: 1s, queueTimeout: 1s, attempts: 3, "
          "retryDelay: 10ms, maximumRetryDelay: 50ms }\n")
#: For all requests, so that retries do not help.
NEVER = None


real = each_upstream("gcs-model", "seaweedfs")


@pytest.fixture
def broken(real, certificate, launch):
    with behind_proxy(real, launch, LIMITS, certificate) as chain:
        yield chain
    # Session URLs, signatures and tokens stay out of the log.
    assert not re.search(r"upload_id=|session-\d|Signature=|Bearer|hush", chain.server.output())


@pytest.fixture
def name():
    """An object that no other test uses."""
    return f"faults/{next(NUMBERS)}"


def is_media(real):
    """The target of a download."""
    return "alt=media" if real.kind == "gcs" else "/photos/faults"


def commits(broken, name):
    """The number of times that the upstream made an object of that name visible."""
    if broken.real.kind == "gcs":
        return sum(1 for made, _ in broken.real.model.commits if made == name)
    path = f"/photos/{name}"
    single = [request for request in broken.proxy.sent("PUT", path + r"(\?|$)")
              if "partNumber" not in request.target and request.status == 200]
    # The same upload may be completed again, to learn its outcome.
    return len(single) + len({request.target for request in broken.proxy.sent("POST", path + r"\?.*uploadId=")
                              if request.status == 200})


def upload(broken, name, body, how="known", *fields):
    """`known`: with a length, in one block; `streamed`: without a length."""
    fields = [*fields, *(["Transfer-Encoding: chunked"] if how == "streamed" else [])]
    return broken.client.put(name, body, *fields)


WRITES = {"gcs": ("POST", "PUT"), "s3": ("POST", "PUT")}
HOW = ["known", "streamed"]


# Downloads


@pytest.mark.parametrize("fault", [
    Status(503), Status(503, {"retry-after": "0"}), Status(429), Status(500), Status(502), Status(504), Status(408), Reset(),
    Reset(reset=False), Bytes(b""), Status(503, early=True),
], ids=lambda fault: f"{type(fault).__name__}{getattr(fault, 'status', '')}")
def test_a_read_that_fails_once_is_repeated(broken, name, fault):
    broken.client.stored(name, BODY)
    broken.proxy.fault(fault, method=("GET", "HEAD"), target="faults", times=1)
    assert fetch(broken.server, name) == (0, 200, BODY)


def test_a_read_that_fails_always_is_an_error(broken, name):
    broken.client.stored(name, BODY)
    broken.proxy.fault(Status(503), times=NEVER)
    response = broken.client.get(name)
    assert response.status in (502, 503), response
    assert len(broken.proxy.sent("GET", "faults")) <= 2 * 3
    assert "photos" not in json.dumps(response.json["detail"]) or "http" not in response.json["detail"]


@pytest.mark.parametrize("transport", list(wire_client.TRANSPORTS))
@pytest.mark.parametrize("fault", [Break(1), Break(300_000), Break(300_000, reset=False), Break(len(BODY) - 1, reset=False),
                                   Stall(300_000)], ids=["first", "reset", "end", "last", "stall"])
def test_a_download_that_breaks_is_never_a_clean_short_body(broken, name, fault, transport):
    broken.client.stored(name, BODY)
    broken.proxy.fault(fault, method="GET", target="faults", times=NEVER)
    code, status, body = fetch(broken.server, name, transport)
    # It is complete if each response continued the previous one.
    assert code != 0 or status >= 500 or body == BODY, (code, status, len(body))
    assert status >= 500 or BODY.startswith(body)


@pytest.mark.parametrize("fault", [Break(0), Break(1), Break(300_000), Break(300_000, reset=False), Stall(300_000)],
                         ids=["head", "first", "reset", "end", "stall"])
def test_a_download_that_is_interrupted_once_is_complete(broken, name, fault):
    broken.client.stored(name, BODY)
    broken.proxy.fault(fault, method="GET", target=is_media(broken.real))
    code, status, body = fetch(broken.server, name)
    # With S3 it may be an error.
    assert (code, status, body) == (0, 200, BODY) or code != 0 and broken.real.kind == "s3", (code, status, len(body))


def test_flipped_bytes_are_not_passed_as_the_object(broken, name):
    # S3 has the checksum of a small body from the request, and returns it.
    body = BODY if broken.real.kind == "gcs" else BODY[:60_000]
    broken.client.stored(name, body)
    broken.proxy.fault(Alter(lambda status, fields, body: (status, fields, body[:5000] + b"!" + body[5001:])), method="GET",
                       target="faults", times=NEVER)
    for transport in wire_client.TRANSPORTS:
        code, status, taken = fetch(broken.server, name, transport)
        assert code != 0 or status >= 500, (code, status, len(taken))


@pytest.mark.parametrize("size", [1, 5000, 64 * 1024])
def test_a_small_damaged_object_is_a_502(broken, name, size):
    broken.client.stored(name, BODY[:size])
    media = r"alt=media" if broken.real.kind == "gcs" else f"/photos/{name}"
    flip = Alter(lambda status, fields, body: (status, fields, body[:size // 2] + bytes([body[size // 2] ^ 1]) + body[size // 2 + 1:]))
    broken.proxy.fault(flip, method="GET", target=media, times=NEVER)
    for attempt in range(2):
        response = broken.client.get(name)
        assert (response.status, response.json["code"]) == (502, "upstream-unavailable"), response
    broken.proxy.clear()
    assert broken.client.get(name).body == BODY[:size]


def test_a_missing_response(broken, name):
    broken.client.stored(name, BODY)
    broken.proxy.fault(Stall(), method=("GET", "HEAD"), target="faults", times=NEVER)
    response = broken.client.get(name)
    assert response.status in (502, 503, 504), response


# Uploads


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("fault", [Status(503), Status(429, {"retry-after": "0"}), Status(500), Reset(), Reset(reset=False)],
                         ids=["503", "429", "500", "reset", "end"])
@pytest.mark.parametrize("skip", range(3))
def test_an_upload_with_a_fault_on_the_way(broken, name, how, fault, skip):
    """The fault applies to the first, second or third write request. The response reports the true outcome."""
    broken.proxy.fault(fault, method=WRITES[broken.real.kind], skip=skip)
    check_upload(broken, name, upload(broken, name, BODY, how), BODY)


def check_upload(broken, name, response, body):
    """Stored once and whole, or reported as a failure with at most the whole object visible."""
    content = broken.real.content(name)
    assert response.status in (200, 201) or response.status >= 500, response
    if response.status < 300:
        assert content == body
        assert commits(broken, name) == 1
        assert response.json.get("md5Hash", md5(body)) == md5(body)
    else:
        assert content in (None, body)
        assert commits(broken, name) <= 1


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("skip", range(4))
def test_an_upload_with_a_lost_response(broken, name, how, skip):
    """The upstream has executed the request, but its response is lost: it is not executed twice."""
    broken.proxy.fault(Reset(after=None), method=WRITES[broken.real.kind], skip=skip)
    check_upload(broken, name, upload(broken, name, BODY, how), BODY)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", ["cut", "stall", "garbage", "redirect"])
@pytest.mark.parametrize("skip", range(3))
def test_an_upload_that_can_not_be_finished(broken, name, how, kind, skip):
    fault = {"cut": Reset(after=1000), "stall": StallRequest(after=1000), "garbage": Bytes(b"\x16\x03\x01\x00\xff\r\n\r\n"),
             "redirect": Status(307, {"location": "http://127.0.0.1:1/"})}[kind]
    if (broken.real.kind, how, kind, skip) == ("s3", "streamed", "stall", 2):
        pytest.skip("putting parts together may take five minutes")
    broken.proxy.fault(fault, method=WRITES[broken.real.kind], skip=skip, times=NEVER)
    response = upload(broken, name, BODY, how)
    broken.proxy.clear()
    check_upload(broken, name, response, BODY)


def test_a_success_that_is_an_error(broken, name):
    """S3 may respond with 200 and report a failure in the body."""
    error = b"<?xml version=\"1.0\"?><Error><Code>InternalError</Code><Message>Try again.</Message></Error>"
    target = r"uploadId=|upload_id=" if broken.real.kind == "s3" else "upload"
    broken.proxy.fault(Status(200, {"content-type": "application/xml"}, error), method=("POST", "PUT"), target=target,
                       times=NEVER)
    check_upload(broken, name, upload(broken, name, BODY, "streamed"), BODY)


def test_a_checksum_that_differs_is_not_reported_as_stored(broken, name):
    def change(status, fields, body):
        body = re.sub(rb'"md5Hash": ?"[^"]+"', b'"md5Hash": "AAAAAAAAAAAAAAAAAAAAAA=="', body)
        body = re.sub(rb'"crc32c": ?"[^"]+"', b'"crc32c": "AAAAAA=="', body)
        if "etag" in fields:
            fields["etag"] = '"00000000000000000000000000000000"'
        return status, fields, body
    broken.proxy.fault(Alter(change), method=("POST", "PUT"), times=NEVER)
    response = upload(broken, name, BODY)
    if broken.real.kind == "s3":
        # Its entity tag need not be an MD5, because the object was read back.
        assert response.status == 201 and broken.real.content(name) == BODY, response
    else:
        assert response.status >= 500, response


def test_a_client_that_disconnects(broken, name):
    with socket.create_connection(("127.0.0.1", broken.server.http)) as connection:
        connection.sendall(f"PUT /b/photos/o/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(BODY)}\r\n\r\n".encode())
        connection.sendall(BODY[:-1])
    wait_until(lambda: '"status":499' in broken.server.output(), what="a 499")
    assert broken.real.content(name) is None and commits(broken, name) == 0
    if broken.real.kind == "s3":
        wait_until(lambda: broken.real.uploads(of=name) == 0, what="the abort of the upload")


def test_a_reader_that_disconnects_frees_the_upstream(broken, name):
    broken.client.stored(name, BODY)
    stall = broken.proxy.fault(Stall(1000), method="GET", target="faults")
    with socket.create_connection(("127.0.0.1", broken.server.http)) as connection:
        connection.sendall(f"GET /b/photos/o/{name} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        wait_until(lambda: any(request.fault is stall for request in broken.proxy.requests), what="the request")
    wait_until(lambda: any(request.abandoned for request in broken.proxy.requests), what="the cancellation")


@pytest.mark.parametrize("persisted", [0, 262_144])
def test_a_session_that_keeps_less_than_was_sent(broken, name, persisted):
    if broken.real.kind != "gcs":
        pytest.skip("S3 has no such sessions")
    broken.real.model.persisted = persisted or None
    try:
        if persisted == 0:
            broken.proxy.fault(Status(308), method="PUT", target="upload_id")
        body = BODY * 30
        check_upload(broken, name, upload(broken, name, body, "streamed"), body)
    finally:
        broken.real.model.persisted = None


# Changes


def test_a_deletion_with_a_lost_response_is_not_404(broken, name):
    broken.client.stored(name, SMALL)
    broken.proxy.fault(Reset(after=None), method="DELETE")
    response = broken.client.delete(name)
    assert response.status == 204 or response.status >= 500, response
    assert broken.real.content(name) is None


@pytest.mark.parametrize("fault", [Status(503), Reset(after=None)], ids=["503", "lost"])
def test_a_patch_is_applied_once(broken, name, fault):
    broken.client.stored(name, SMALL, "X-Object-Meta-Kept: yes")
    before = broken.client.metadata(name)
    method = "PATCH" if broken.real.kind == "gcs" else "PUT"
    broken.proxy.fault(fault, method=method)
    response = broken.client.patch(name, {"customMetadata": {"place": "Oslo"}})
    after = broken.client.metadata(name)
    assert response.status == 200 or response.status >= 500, response
    if response.status == 200:
        assert after["customMetadata"] == {"kept": "yes", "place": "Oslo"}
        assert int(after["metageneration"]) == int(before["metageneration"]) + 1
    assert broken.client.get(name).body == SMALL


# Invalid responses


@pytest.mark.parametrize("fault", [
    Bytes(b"\x00\x01\x02 garbage\r\n\r\n"), Bytes(b"HTTP/1.1 200 OK\r\n", b"x-filler: " + b"a" * 1000 + b"\r\n", None),
    Bytes(b"HTTP/1.1 200 OK\r\nx: ", b"a" * 65536, None), Bytes(b"HTTP/1.1 99999 What\r\n\r\n"),
    Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!"),
    Bytes(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, None),
    Status(302, {"location": "http://127.0.0.1:1/secret"}), Status(200, {"content-length": "99999999"}, b"short"),
], ids=["garbage", "headers", "header", "status", "lengths", "interim", "redirect", "short"])
@pytest.mark.parametrize("path", ["o/{name}", "o/{name}?metadata", "o/faults/"])
def test_malformed_responses_are_errors_and_take_no_memory(broken, name, fault, path):
    broken.client.stored(name, SMALL)
    broken.proxy.fault(fault, method=("GET", "HEAD"), times=NEVER)
    code, status, body = fetch(broken.server, path.format(name=name).removeprefix("o/"))
    # A response to HEAD has a length but no body.
    is_head = broken.real.kind == "s3" and "metadata" in path and getattr(fault, "body", b"") == b"short"
    assert is_head or code != 0 or status in (502, 503, 504), (code, status, body[:200])
    assert b"secret" not in body
    if "SANITIZER" not in os.environ:
        assert broken.server.status("VmHWM") <= 48 * 1024
    broken.proxy.clear()
    wait_until(lambda: broken.client.get(name).status == 200, what="recovery")


def test_a_redirect_is_not_followed(broken, name):
    trap = FaultProxy(broken.real.port, broken.proxy.certificate)
    broken.client.stored(name, SMALL)
    for status in (301, 302, 303, 307, 308):
        broken.proxy.fault(Status(status, {"location": f"{trap.endpoint}/photos/{name}"}), method=("GET", "HEAD"), times=NEVER)
        assert broken.client.get(name).status >= 500
        broken.proxy.clear()
    assert not trap.requests
    trap.stop()


def test_a_huge_page_of_a_list(broken, name):
    def change(status, fields, body):
        filler = b" " * (64 << 20)
        return status, fields, body.replace(b">", b">" + filler, 1) if body[:1] == b"<" else body.replace(b"{", b"{" + filler, 1)

    broken.client.stored(name, SMALL)
    broken.proxy.fault(Alter(change), method="GET", times=NEVER)
    response = broken.client.get("faults/")
    assert response.status in (502, 503), response
    if "SANITIZER" not in os.environ:
        assert broken.server.status("VmHWM") <= 48 * 1024


def test_a_page_of_a_list_that_breaks_off(broken, name):
    broken.client.stored(name, SMALL)
    broken.proxy.fault(Break(200, reset=False), method="GET", times=NEVER)
    response = broken.client.get("faults/")
    assert response.status in (502, 503, 504), response


# Upstreams that stop and restart


def test_an_upstream_that_stops_and_restarts(broken, name):
    broken.client.stored(name, SMALL)
    broken.proxy.pause()
    for _ in range(12):
        assert broken.client.get(name).status in (502, 503)
    response = upload(broken, f"{name}-lost", SMALL)
    assert response.status in (502, 503), response
    wait_until(lambda: broken.server.readiness()[0] == 503, what="not ready")
    assert "bucket photos" in broken.server.readiness()[1]
    broken.proxy.resume()
    wait_until(lambda: broken.client.get(name).status == 200, what="recovery")
    assert broken.client.get(name).body == SMALL
    wait_until(lambda: broken.server.readiness()[0] == 200, what="readiness")
    assert broken.real.content(f"{name}-lost") is None


def test_the_process_starts_without_its_upstream(real, certificate, launch):
    proxy = FaultProxy(real.port, certificate)
    proxy.pause()
    server = launch(buckets=f"  photos: {{ {proxy.store(real)} }}\n", extra=LIMITS, ready=503)
    status, text = server.readiness()
    assert status == 503 and "bucket photos" in text and f":{proxy.port}" in text, text
    proxy.resume()
    wait_until(lambda: server.readiness()[0] == 200, what="readiness")
    proxy.stop()


def test_metrics_of_the_upstream(broken, name):
    broken.client.stored(name, BODY)
    broken.proxy.fault(Status(503), method=("GET", "HEAD"), target="faults")
    assert broken.client.get(name).status == 200
    wait_until(lambda: broken.server.metrics().get('sluice_upstream_retries_total{upstream="bucket photos"}', 0) >= 1,
               what="a retry")
    metrics = broken.server.metrics()
    assert any(key.startswith("sluice_upstream_requests_total{") and 'method="GET"' in key and 'outcome="5xx"' in key
               for key in metrics), metrics
    assert metrics['sluice_upstream_breaker_open{upstream="bucket photos"}'] == 0


def test_a_slow_upstream_delays_only_its_own_requests(broken, name):
    """A slow upstream delays only the requests that need it."""
    broken.client.stored(name, SMALL)
    broken.proxy.fault(Stall(), method="GET", target="faults", times=40)
    threads = [threading.Thread(target=fetch, args=(broken.server, name)) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert broken.server.readiness()[0] in (200, 503)
    with urllib.request.urlopen(f"http://127.0.0.1:{broken.server.operator}/livez", timeout=5) as response:
        assert response.status == 200
    for thread in threads:
        thread.join()
    broken.proxy.clear()
    wait_until(lambda: broken.client.get(name).status == 200, what="recovery")
