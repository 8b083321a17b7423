"""Uploads to S3 that race with others, end early, or whose outcome only the stored object shows."""

import itertools
import re
import signal
import socket

import pytest

import wire as wire_client
from fault_proxy import FaultProxy, behind_proxy, each_upstream
from faults import SMALL, Cut, Fault, Status
from program import wait_until
from s3 import LARGE, LIMITS, NEWER, UNDECIDED, VISIBLE, upload

NUMBERS = itertools.count(1)


real = each_upstream("seaweedfs", "moto")


@pytest.fixture
def broken(real, certificate, launch):
    with behind_proxy(real, launch, LIMITS, certificate) as chain:
        yield chain


@pytest.fixture
def name():
    """An object that no other test uses."""
    return f"uploads/{next(NUMBERS)}"


class Meanwhile(Fault):
    """Calls `happens`, then cuts the connection, before or after the request has reached the upstream."""

    def __init__(self, happens, reaches):
        self.happens, self.reaches = happens, reaches

    def before(self, connection, request):
        if self.reaches:
            return False
        connection.drop_body(request)
        self.happens()
        raise Cut()

    def after(self, connection, request, response):
        self.happens()
        raise Cut()


@pytest.mark.parametrize("how", VISIBLE)
@pytest.mark.parametrize("reaches", [True, False], ids=["response", "request"])
def test_an_object_stored_meanwhile_is_not_replaced(broken, name, how, reaches):
    """The connection is cut, and another client stores the same name before the gateway can check. Whether the upload
    was stored in between is unknown, so the response is an error, and the newer object stays."""
    method, target = VISIBLE[how]
    newer = Meanwhile(lambda: broken.real.put(broken.real.bucket, name, NEWER), reaches)
    broken.proxy.fault(newer, method=method, target=target)
    _, response = upload(broken, name, how)
    assert response.status in (502, 503, 504), response
    assert broken.real.content(name) == NEWER
    assert len(broken.proxy.sent(method, target)) == 1


@pytest.mark.parametrize("how", VISIBLE)
def test_a_lost_response_is_looked_up_and_nothing_sent_again(broken, name, how):
    method, target = VISIBLE[how]
    broken.proxy.fault(Meanwhile(lambda: None, True), method=method, target=target)
    body, response = upload(broken, name, how)
    assert response.status in (200, 201), response
    assert broken.real.content(name) == body
    assert len(broken.proxy.sent(method, target)) == 1


@pytest.mark.parametrize("how", ["memory", "parts"])
@pytest.mark.parametrize("condition", [[], ["If-None-Match: *"]], ids=["plain", "new"])
def test_a_request_that_is_lost_is_sent_again_where_that_is_safe(broken, name, how, condition):
    method, target = VISIBLE[how]
    broken.proxy.fault(Meanwhile(lambda: None, False), method=method, target=target)
    body, response = upload(broken, name, how, *condition)
    assert response.status in (200, 201), response
    assert broken.real.content(name) == body
    sent = broken.proxy.sent(method, target)
    assert len(sent) == 2
    # An object stored from now on is not replaced.
    assert sent[-1].fields.get("if-none-match") == "*"


BUSY = b"<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


@pytest.mark.parametrize("how", ["memory", "parts"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_rejected_request_is_sent_again_unchanged(broken, name, how, status):
    method, target = VISIBLE[how]
    broken.proxy.fault(Status(status, {"content-type": "application/xml"}, BUSY), method=method, target=target)
    body, response = upload(broken, name, how)
    assert response.status in (200, 201), response
    assert broken.real.content(name) == body
    sent = broken.proxy.sent(method, target)
    assert len(sent) == 2 and "if-none-match" not in sent[-1].fields
    # There was no request in between.
    order = [request.method for request in broken.proxy.requests]
    assert "HEAD" not in order[broken.proxy.requests.index(sent[0]):]


@pytest.mark.parametrize("reaches", [True, False], ids=["response", "request"])
def test_a_deletion_does_not_delete_a_newer_object(broken, name, reaches):
    broken.client.stored(name, SMALL)
    newer = Meanwhile(lambda: broken.real.put(broken.real.bucket, name, NEWER), reaches)
    broken.proxy.fault(newer, method="DELETE")
    assert broken.client.delete(name).status == 204
    assert broken.real.content(name) == NEWER
    assert len(broken.proxy.sent("DELETE")) == 1


# Aborted uploads


def begun(server, name, sent, length=None):
    """A connection with an upload, of which `sent` bytes were sent."""
    connection = socket.create_connection(("127.0.0.1", server.http))
    framing = f"Content-Length: {length}" if length else "Transfer-Encoding: chunked"
    connection.sendall(f"PUT /b/photos/o/{name} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n".encode())
    connection.sendall(sent if length else b"%x\r\n%s\r\n" % (len(sent), sent))
    return connection


def test_parts_of_a_cut_upload_are_aborted(broken, name):
    with begun(broken.server, name, LARGE):
        wait_until(lambda: broken.real.uploads(of=name) == 1, what="an upload in parts")
    wait_until(lambda: broken.real.uploads(of=name) == 0, what="its abort")
    assert broken.real.content(name) is None


def test_parts_of_uploads_that_a_drain_ends_are_aborted(real, launch, name):
    server = launch(buckets=f"  photos: {{ {real.store()} }}\n", extra="limits: { drainTimeout: 100ms }\n")
    with begun(server, name, LARGE):
        wait_until(lambda: real.uploads(of=name) == 1, what="an upload in parts")
        server.stop(signal.SIGTERM)
    assert real.uploads(of=name) == 0
    assert real.content(name) is None


def test_an_undecided_upload_of_known_length_goes_in_parts(real, certificate, launch, tmp_path, name):
    """No part of it is visible before the rules have evaluated its digest."""
    rules = tmp_path / "undecided.rules"
    rules.write_text(UNDECIDED)
    proxy = FaultProxy(real.port, certificate)
    server = launch(buckets=f"  photos: {{ {proxy.store(real)} }}\n", extra=LIMITS,
                    environment={"SLUICE_RULES": str(rules)})
    client = wire_client.Wire(server)
    with begun(server, name, LARGE[:-1], len(LARGE)) as connection:
        wait_until(lambda: real.uploads(of=name) == 1, what="an upload in parts")
        wait_until(lambda: any(request.status == 200 for request in proxy.sent("PUT", "partNumber=1")), what="the first part")
        assert real.content(name) is None
        connection.sendall(LARGE[-1:])
        assert re.match(rb"HTTP/1.1 20[01] ", connection.recv(1000))
    assert client.get(name).body == LARGE
    parts = proxy.sent("PUT", "partNumber=")
    assert [request.received >= 1 << 20 for request in parts] == [True, True]
    assert all("content-length" in request.fields for request in parts)
    assert real.uploads(of=name) == 0
    proxy.stop()
