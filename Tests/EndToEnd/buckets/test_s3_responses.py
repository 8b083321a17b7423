"""Invalid, late or foreign responses of an S3 service: nothing is lost, and no newer object is replaced."""

import itertools
import subprocess
import time

import pytest

import program
import upstreams
import wire as wire_client
from fault_proxy import FaultProxy, behind_proxy
from faults import SMALL, Bytes, Fault, Status
from program import wait_until
from s3 import BODY, FAILED, LARGE, LIMITS, NEWER, UNDECIDED, VISIBLE, XML, upload

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    running = upstreams.UPSTREAMS["moto"](tmp_path_factory.mktemp("upstream"))
    yield running
    running.stop()


@pytest.fixture
def broken(real, certificate, launch):
    with behind_proxy(real, launch, LIMITS.replace("firstByteTimeout: 10s", "firstByteTimeout: 1s"), certificate) as chain:
        yield chain


@pytest.fixture
def name():
    return f"uploads/{next(NUMBERS)}"


# Numbers out of range


@pytest.mark.parametrize("head", [
    "200 OK\r\ncontent-length: 9999999999999999999",
    "206 Partial Content\r\ncontent-length: 5\r\ncontent-range: bytes 0-18446744073709551613/18446744073709551614",
    "206 Partial Content\r\ncontent-length: 5\r\ncontent-range: bytes 0-9223372036854775807/9223372036854775808",
])
def test_too_large_sizes_are_rejected(broken, name, head):
    broken.proxy.fault(Bytes(f"HTTP/1.1 {head}\r\netag: \"a\"\r\n\r\nBytes".encode()), method="GET", target=name, times=None)
    assert broken.client.get(name).status == 502
    assert broken.client.put(name, SMALL).status == 201


@pytest.mark.parametrize("key", ["generation", "metageneration"])
@pytest.mark.parametrize("number", [0, 2**62, 2**63 - 1, 10**19])
def test_generations_out_of_range_are_not_used(broken, real, name, key, number):
    fields = {"x-amz-meta-sluice-generation": "7", f"x-amz-meta-sluice-{key}": str(number)}
    for change in ("put", "patch"):
        real.call("PUT", f"/{real.bucket}/{name}", SMALL, fields)
        tag = broken.client.head(name)["etag"]
        if change == "put":
            assert broken.client.put(name, BODY, f"If-Match: {tag}").status == 200
        else:
            assert broken.client.patch(name, {"contentType": "text/plain"}).status == 200
        assert 0 < int(broken.client.metadata(name)["metageneration"]) < 2**62


# False success


@pytest.mark.parametrize("how", VISIBLE)
@pytest.mark.parametrize("body", [b"", b"  \n<Error><Code>Internal", b"<html>Welcome</html>"],
                         ids=["empty", "truncated", "html"])
def test_a_success_without_an_object_is_an_error(broken, real, name, how, body):
    """An older object of the same size is not mistaken for the upload, and stays."""
    older = b"o" * len(SMALL if how == "memory" else BODY)
    real.put(real.bucket, name, older)
    method, target = VISIBLE[how]
    broken.proxy.fault(Status(200, {}, body), method=method, target=target, times=None)
    _, response = upload(broken, name, how)
    assert response.status == 502, response
    assert real.content(name) == older
    wait_until(lambda: real.uploads(of=name) == 0, what="the abort of the parts")


# Errors after the operation took effect


class Failed(Fault):
    """An internal error after the operation took effect; calls `happens` before it is sent."""

    def __init__(self, happens):
        self.happens = happens

    def after(self, connection, request, response):
        response.read()
        self.happens()
        connection.send_head(500, {"content-length": str(len(FAILED)), **XML})
        connection.send(FAILED)


@pytest.mark.parametrize("how", VISIBLE)
def test_after_an_internal_error_a_newer_object_is_not_replaced(broken, real, name, how):
    method, target = VISIBLE[how]
    broken.proxy.fault(Failed(lambda: real.put(real.bucket, name, NEWER)), method=method, target=target)
    _, response = upload(broken, name, how)
    assert response.status == 502, response
    assert real.content(name) == NEWER
    assert len(broken.proxy.sent(method, target)) == 1


@pytest.mark.parametrize("how", VISIBLE)
def test_after_an_internal_error_the_object_is_looked_up(broken, real, name, how):
    method, target = VISIBLE[how]
    broken.proxy.fault(Failed(lambda: None), method=method, target=target)
    body, response = upload(broken, name, how)
    assert response.status == 201, response
    assert real.content(name) == body
    assert len(broken.proxy.sent(method, target)) == 1


@pytest.mark.parametrize("method", ["DELETE", "PUT"])
def test_after_an_internal_error_of_a_change_the_object_is_looked_up(broken, real, name, method):
    broken.client.stored(name, SMALL)
    seen = len(broken.proxy.sent(method, name + "$"))
    broken.proxy.fault(Failed(lambda: real.put(real.bucket, name, NEWER)), method=method, target=name + "$")
    if method == "DELETE":
        assert broken.client.delete(name).status == 204
    else:
        assert broken.client.patch(name, {"contentType": "text/plain"}).status == 502
    assert real.content(name) == NEWER
    assert len(broken.proxy.sent(method, name + "$")) == seen + 1


# Slow responses


class Late(Fault):
    """The response, later than the timeout of other requests."""

    def after(self, connection, request, response):
        time.sleep(2)
        connection.pass_on(response)


class Spaces(Fault):
    """The head at once, then spaces at intervals, as AWS does, and finally the document."""

    def after(self, connection, request, response):
        body = response.read()
        connection.send_head(200, {"content-length": str(len(body) + 6), **XML})
        for _ in range(6):
            connection.send(b" ")
            time.sleep(0.5)
        connection.send(body)


@pytest.mark.parametrize("fault", [Late, Spaces])
def test_completions_and_copies_have_a_longer_timeout(broken, real, name, fault):
    method, target = VISIBLE["parts"]
    broken.proxy.fault(fault(), method=method, target=target)
    body, response = upload(broken, name, "parts")
    assert response.status == 201, response
    assert real.content(name) == body and len(broken.proxy.sent(method, target)) == 1
    broken.proxy.fault(fault(), method="PUT", target=name + "$")
    assert broken.client.patch(name, {"contentType": "text/plain"}).status == 200
    assert len(broken.proxy.sent("PUT", name + "$")) == 1


# Rights and credentials


@pytest.mark.parametrize("how", VISIBLE)
@pytest.mark.parametrize("status", [403, 500])
def test_write_permission_does_not_require_read_permission(broken, real, name, how, status):
    broken.proxy.fault(Status(status), method="HEAD", times=None)
    body, response = upload(broken, name, how)
    assert response.status == 201, response
    assert real.content(name) == body


KEYS = "aws_access_key_id = {key}\naws_secret_access_key = secret\n"
REFUSED = b"<?xml version=\"1.0\"?><Error><Code>ExpiredToken</Code><Message>It has expired.</Message></Error>"


class Expired(Status):
    """Rejects all requests signed with the first key."""

    def __init__(self, status):
        super().__init__(status, XML, REFUSED)

    def before(self, connection, request):
        if "Credential=first/" not in request.fields.get("authorization", ""):
            return False
        self.body = b"" if request.method == "HEAD" else REFUSED
        return super().before(connection, request)


@pytest.mark.parametrize("status", [400, 403])
@pytest.mark.parametrize("what", ["get", "head", "health", "streamed", "parts"])
def test_rejected_credentials_are_read_again(real, launch, tmp_path, name, status, what):
    keys = tmp_path / "credentials"
    keys.write_text("[default]\n" + KEYS.format(key="first"))
    proxy = FaultProxy(real.port)
    server = launch(buckets=f"  photos: {{ s3: {{ endpoint: \"{proxy.endpoint}\", bucket: {real.bucket}, "
                            f"credentials: {keys} }} }}\n", extra=LIMITS)
    client = wire_client.Wire(server)
    client.stored(name, SMALL)
    proxy.fault(Expired(status), times=None)
    keys.write_text("[default]\n" + KEYS.format(key="second"))
    if what == "get":
        assert client.get(name).body == SMALL
    elif what == "head":
        assert client.head(name).status == 200
    elif what == "health":
        wait_until(lambda: server.ready() and "Credential=second/" in proxy.requests[-1].fields["authorization"],
                   what="readiness with the other key")
    else:
        # A streamed upload can't be repeated, but the next one must succeed.
        fields = ["Transfer-Encoding: chunked"] if what == "parts" else []
        wait_until(lambda: client.put(name, BODY, *fields).status == 200, what="an upload with the other key")
    proxy.stop()


# A service that is busy


@pytest.mark.parametrize("target", ["uploads=", "partNumber=1", "partNumber=2"])
@pytest.mark.parametrize("status", [500, 503])
def test_a_busy_service_does_not_end_an_upload_in_parts(real, launch, tmp_path, name, target, status):
    """An upload of known length whose decision needs the digest."""
    rules = tmp_path / "undecided.rules"
    rules.write_text(UNDECIDED)
    proxy = FaultProxy(real.port)
    server = launch(buckets=f"  photos: {{ {real.store(proxy.endpoint)} }}\n", extra=LIMITS,
                    environment={"SLUICE_RULES": str(rules)})
    proxy.fault(Status(status, XML, FAILED if status == 500 else FAILED.replace(b"InternalError", b"SlowDown")),
                method=("PUT", "POST"), target=target)
    client = wire_client.Wire(server)
    # The first has the length of a whole part.
    for body in (LARGE[:8 << 20], LARGE):
        client.stored(name, body)
        assert client.get(name).body == body
    assert real.uploads(of=name) == 0
    parts = [request for request in proxy.sent("PUT", "partNumber=") if request.status == 200]
    assert [request.received >= 1 << 20 for request in parts] == [True] * 3
    proxy.stop()


# Reports about a store


def check(proxy, real, tmp_path):
    config = tmp_path / "check.yaml"
    config.touch(0o600)
    config.write_text(f"listen: {{ http: 127.0.0.1:0, operator: null }}\nrules: none\n"
                      f"buckets:\n  photos: {{ {real.store(proxy.endpoint)} }}\n")
    done = subprocess.run([program.BINARY, "check", "--connect", config], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def proxy(real):
    running = FaultProxy(real.port)
    yield running
    running.stop()


@pytest.mark.parametrize("status, code, fields, said", [
    (403, "SignatureDoesNotMatch", {}, "the secret access key is wrong, or a proxy changes requests (SignatureDoesNotMatch"),
    (403, "InvalidAccessKeyId", {}, "refuses the credentials: InvalidAccessKeyId"),
    (403, "RequestTimeTooSkewed", {}, "clock is wrong"),
    (404, "NoSuchBucket", {}, "does not exist"),
    (400, "AuthorizationHeaderMalformed", {"x-amz-bucket-region": "eu-north-1"}, "is in eu-north-1, not in us-east-1"),
    (301, "PermanentRedirect", {"x-amz-bucket-region": "eu-north-1"}, "is in eu-north-1, not in us-east-1"),
])
def test_errors_are_reported(real, proxy, tmp_path, status, code, fields, said):
    class Refused(Status):
        def before(self, connection, request):
            body = b"" if request.method == "HEAD" else FAILED.replace(b"InternalError", code.encode())
            super().__init__(status, {**XML, **fields, "x-amz-request-id": "1"}, body)
            return super().before(connection, request)

    proxy.fault(Refused(status), times=None)
    ended, _, err = check(proxy, real, tmp_path)
    assert ended == 1 and said in err, err


@pytest.mark.parametrize("status", [200, 403, 404])
def test_a_web_server_that_is_not_s3_is_recognised(real, proxy, tmp_path, status):
    proxy.fault(Status(status, {"content-type": "text/html"}, b"<!DOCTYPE html><title>It works!</title>"), times=None)
    ended, _, err = check(proxy, real, tmp_path)
    assert ended == 1 and "is the endpoint another web server?" in err, err


def test_a_bucket_with_only_read_permission_is_accepted(real, proxy, tmp_path):
    denied = FAILED.replace(b"InternalError", b"AccessDenied")
    proxy.fault(Status(403, XML, denied), method=("PUT", "POST", "DELETE"), times=None)
    ended, out, err = check(proxy, real, tmp_path)
    assert (ended, err) == (0, "") and "note: can't write: " in out, (out, err)


def test_remains_of_a_probe_are_not_listed(real, launch):
    """If a service ignores conditions and forbids deletion, the probe's object remains."""
    left = ".sluice-probe-" + "0" * 32
    for name in (left, left + "0", "listed"):
        real.put(real.bucket, name, SMALL)
    client = wire_client.Wire(launch(buckets=f"  photos: {{ {real.store()} }}\n"))
    for query in ("", "?delimiter=/"):
        listed = [item["fullPath"] for item in client.get(query).json["items"]]
        assert "listed" in listed and left + "0" in listed and left not in listed
