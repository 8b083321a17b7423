"""A busy, conflicting or wrong S3 service: uploads are repeated if that is safe, valid objects stay, and errors have a status."""

import itertools
import pathlib
import re
import socket
import subprocess
import types
import urllib.error
import urllib.request

import pytest

import upstreams
import wire as wire_client
from fault_proxy import FaultProxy
from faults import SMALL, Alter, Break, Fault, Reset, Stall, Status
from program import BINARY, wait_until
from s3 import BODY, FAILED, LARGE, LIMITS, NEWER, VISIBLE, XML, upload

NUMBERS = itertools.count(1)
#: More than fits into memory until the commit, and less than one part.
SENT_AGAIN = BODY[:700_000]
ZEROS = "0" * 32
CONFLICT = FAILED.replace(b"InternalError", b"ConditionalRequestConflict")
ABORTED = FAILED.replace(b"InternalError", b"OperationAborted")
MATCH_EVERYTHING = "rules_version = '2';\nservice firebase.storage { match /b/{b}/o { match /{name=**} {\n %s\n} } }\n"


@pytest.fixture(scope="module")
def moto(tmp_path_factory):
    running = upstreams.UPSTREAMS["moto"](tmp_path_factory.mktemp("upstream"))
    yield running
    running.stop()


@pytest.fixture(scope="module", params=["seaweedfs", "moto"])
def each(request, moto, tmp_path_factory):
    if request.param == "moto":
        yield moto
        return
    with upstreams.warm(upstreams.UPSTREAMS[request.param], tmp_path_factory.mktemp("upstream")) as running:
        yield running


def started(real, certificate, launch, more="", faults=lambda proxy: None, **options):
    """A gateway in front of a proxy whose faults apply to the gateway's first requests too."""
    proxy = FaultProxy(real.port, certificate)
    faults(proxy)
    server = launch(buckets=f"  photos: {{ {proxy.store(real, more)} }}\n", extra=LIMITS, **options)
    return types.SimpleNamespace(real=real, proxy=proxy, server=server, client=wire_client.Wire(server))


@pytest.fixture
def broken(moto, certificate, launch):
    running = started(moto, certificate, launch)
    yield running
    running.proxy.stop()


@pytest.fixture
def name():
    """An object that no other test uses."""
    return f"uploads/{next(NUMBERS)}"


# Entity tags that are not MD5


class Tagged(Alter):
    """Replaces the entity tag of the response."""

    def __init__(self, tag=ZEROS):
        super().__init__(lambda status, fields, body: (
            status, {**{name: value for name, value in fields.items() if name.lower() != "etag"}, "etag": f'"{tag}"'}, body))


@pytest.mark.parametrize("how", VISIBLE)
@pytest.mark.parametrize("previous", [False, True], ids=["new", "replaced"])
def test_an_entity_tag_that_is_not_md5_deletes_nothing(broken, moto, name, how, previous):
    if previous:
        moto.put(moto.bucket, name, b"the one before")
    method, target = VISIBLE[how]
    broken.proxy.fault(Tagged(), method=method, target=target)
    broken.proxy.fault(Tagged(), method=("GET", "HEAD"), target=name + "$", times=None)
    for status in (200 if previous else 201, 200):
        body, response = upload(broken, name, how)
        assert response.status == status, response
        assert moto.content(name) == body
        assert broken.proxy.sent("DELETE", name) == []
        broken.proxy.fault(Tagged(), method=method, target=target)


def test_a_generation_stays_the_same_if_tags_are_not_md5(broken, name):
    broken.proxy.fault(Tagged(), target=name + "$", times=None)
    response = broken.client.put(name, SMALL)
    assert response.status == 201, response
    assert broken.client.metadata(name)["generation"] == response.json["generation"]


class Damaged(Fault):
    """Stores bytes that differ from those received."""

    def __init__(self, real, name):
        self.real, self.name = real, name

    def after(self, connection, request, response):
        response.read()
        path = f"/{self.real.bucket}/{self.name}"
        status, fields, body = self.real.call("PUT", path, NEWER, {
            name: value for name, value in request.fields.items() if name.startswith("x-amz-meta-")})
        assert status == 200, (status, body)
        tag = next(value for name, value in fields.items() if name.lower() == "etag")
        connection.send_head(200, {"etag": tag, "content-length": "0"})


@pytest.mark.parametrize("how", ["memory", "single"])
def test_other_bytes_than_were_sent_are_found_by_reading_back(broken, moto, name, how):
    broken.proxy.fault(Damaged(moto, name), method="PUT", target=name + "$")
    body, response = upload(broken, name, how)
    assert len(broken.proxy.sent("GET", name + "$")) == 1
    # A body held in memory is sent again.
    assert (response.status, moto.content(name)) == ((201, body) if how == "memory" else (502, None))


def test_an_object_that_can_not_be_read_back_is_not_deleted(broken, moto, name):
    broken.proxy.fault(Tagged(), method="PUT", target=name + "$")
    broken.proxy.fault(Status(403, XML, FAILED), method="GET", target=name + "$", times=None)
    body, response = upload(broken, name, "single")
    assert response.status == 502, response
    assert moto.content(name) == body


# Conflicts without effect


def change(broken, name, what):
    """Performs one operation; returns its response."""
    if what in VISIBLE:
        return upload(broken, name, what)[1]
    if what == "part":
        return broken.client.put(name, LARGE, "Transfer-Encoding: chunked")
    broken.client.stored(name, SMALL)
    broken.proxy.fault(*broken.pending)
    if what == "patch":
        return broken.client.patch(name, {"contentType": "text/plain"})
    return broken.client.delete(name)


CHANGES = {**{how: VISIBLE[how] for how in ("memory", "parts")}, "part": ("PUT", "partNumber=1"),
           "patch": ("PUT", r"uploads/\d+$"), "delete": ("DELETE", r"uploads/\d+$")}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("body", [CONFLICT, ABORTED], ids=["conflict", "aborted"])
def test_a_conflict_is_repeated(broken, name, what, body):
    method, target = CHANGES[what]
    broken.pending = (Status(409, XML, body), method, name + "$", 1)
    if what not in ("patch", "delete"):
        broken.proxy.fault(Status(409, XML, body), method=method, target=target)
    response = change(broken, name, what)
    assert response.status in (200, 201, 204), response
    assert [request.status for request in broken.proxy.requests if isinstance(request.fault, Status)] == [None]


@pytest.mark.parametrize("what", CHANGES)
def test_endless_conflicts_are_a_busy_service(broken, name, what):
    method, target = CHANGES[what]
    broken.pending = (Status(409, XML, CONFLICT), method, name + "$", None)
    if what not in ("patch", "delete"):
        broken.proxy.fault(Status(409, XML, CONFLICT), method=method, target=target, times=None)
    response = change(broken, name, what)
    assert response.status == 503, response
    refused = [request for request in broken.proxy.requests if isinstance(request.fault, Status)]
    assert 2 <= len(refused) <= 8


def test_a_conflict_is_not_a_failed_condition(broken, moto, name):
    broken.proxy.fault(Status(409, XML, CONFLICT), method="PUT", target=name + "$")
    assert broken.client.put(name, SMALL, "If-None-Match: *").status == 201
    assert moto.content(name) == SMALL


@pytest.mark.parametrize("what", ["patch", "parts"])
def test_an_error_in_a_response_of_status_200_is_repeated(broken, name, what):
    method, target = CHANGES[what]
    busy = Status(200, XML, FAILED.replace(b"InternalError", b"SlowDown"))
    broken.pending = (busy, method, name + "$", 1)
    if what == "parts":
        broken.proxy.fault(busy, method=method, target=target)
    assert change(broken, name, what).status in (200, 201)


# A service that is busy


@pytest.mark.parametrize("how", ["small", "known"])
@pytest.mark.parametrize("fault", [
    lambda: Status(503), lambda: Status(503, {"retry-after": "0"}, b"<html>busy</html>"), lambda: Status(500, XML, FAILED),
    lambda: Reset(1000), lambda: Reset(None), lambda: Status(503, XML, FAILED.replace(b"InternalError", b"SlowDown")),
], ids=["bare-503", "proxy-503", "500", "reset", "lost", "slow-down"])
@pytest.mark.parametrize("condition", [[], ["If-None-Match: *"]], ids=["plain", "new"])
def test_an_upload_in_memory_is_sent_again(broken, moto, name, how, fault, condition):
    body = SMALL if how == "small" else SENT_AGAIN
    broken.proxy.fault(fault(), method="PUT", target=name + "$")
    response = broken.client.put(name, body, *condition)
    assert response.status == 201, response
    assert moto.content(name) == body and broken.client.get(name).body == body


def test_a_busy_service_that_stays_so_is_503(broken, moto, name):
    broken.proxy.fault(Status(503), method="PUT", target=name + "$", times=None)
    response = broken.client.put(name, SMALL)
    assert response.status == 503, response
    assert moto.content(name) is None


@pytest.mark.parametrize("target", ["uploads=", "partNumber=1", "partNumber=2", "uploadId=[^&]*$"])
@pytest.mark.parametrize("fault", [lambda: Status(503), lambda: Reset(0)], ids=["503", "reset"])
def test_larger_uploads_in_parts_are_sent_again(moto, certificate, launch, name, target, fault):
    running = started(moto, certificate, launch, ", uploadRetries: parts")
    running.proxy.fault(fault(), method=("PUT", "POST"), target=target)
    assert running.client.put(name, LARGE).status == 201
    assert running.client.get(name).body == LARGE
    wait_until(lambda: moto.uploads(of=name) == 0, what="the end of all uploads")
    running.proxy.stop()


# Unknown multipart uploads


def test_an_upload_whose_creation_had_no_response_is_aborted(each, certificate, launch, name):
    running = started(each, certificate, launch)
    running.proxy.fault(Reset(None), method="POST", target="uploads=")
    body, response = upload(running, name, "parts")
    assert response.status == 201, response
    assert each.content(name) == body
    wait_until(lambda: each.uploads(of=name) == 0, what="the abort of the other one")
    running.proxy.stop()


def test_creations_without_a_response_leave_nothing(each, certificate, launch, name):
    if each.name == "moto":
        pytest.skip("it says of every upload that it began in 2010")
    running = started(each, certificate, launch)
    running.proxy.fault(Reset(None), method="POST", target="uploads=", times=None)
    assert upload(running, name, "parts")[1].status in (502, 503)
    wait_until(lambda: each.uploads(of=name) == 0, what="the abort of all")
    running.proxy.stop()


def test_an_upload_of_others_is_not_aborted(moto, certificate, launch, name):
    """It has the same name and start time."""
    running = started(moto, certificate, launch)
    path = f"/{moto.bucket}/{name}?uploads="

    class Others(Reset):
        def after(self, connection, request, response):
            moto.call("POST", path)
            super().after(connection, request, response)

    running.proxy.fault(Others(None), method="POST", target="uploads=")
    assert upload(running, name, "parts")[1].status == 201
    running.server.stop()
    assert moto.uploads(of=name) == 2
    running.proxy.stop()


# Responses to other requests


def completed(key):
    return (f"<CompleteMultipartUploadResult><Bucket>photos</Bucket><Key>{key}</Key><ETag>\"a-1\"</ETag>"
            "</CompleteMultipartUploadResult>").encode()


def test_a_completion_of_another_key_is_an_error(broken, moto, name):
    broken.proxy.fault(Status(200, XML, completed("other")), method="POST", target="uploadId=", times=None)
    response = upload(broken, name, "parts")[1]
    assert response.status == 502, response
    assert moto.content(name) is None
    wait_until(lambda: moto.uploads(of=name) == 0, what="the abort of the parts")


@pytest.mark.parametrize("method", ["get", "head"])
@pytest.mark.parametrize("tag", [{}, {"etag": '""'}, {"etag": "W/"}], ids=["none", "empty", "weak"])
def test_a_response_without_an_entity_tag_is_no_object(broken, name, method, tag):
    broken.client.stored(name, SMALL)
    broken.proxy.fault(Status(200, tag), method=("GET", "HEAD"), target=name + "$", times=None)
    assert getattr(broken.client, method)(name).status == 502


@pytest.mark.parametrize("body", [FAILED, b"<html>Welcome</html>"], ids=["error", "html"])
def test_a_deletion_without_effect_is_an_error(broken, moto, name, body):
    broken.client.stored(name, SMALL)
    broken.proxy.fault(Status(200, XML, body), method="DELETE", times=None)
    assert broken.client.delete(name).status == 502
    assert moto.content(name) == SMALL


# Downloads


def flipped(status, fields, body):
    return status, fields, bytes([body[0] ^ 1]) + body[1:]


@pytest.mark.parametrize("fault", [lambda: Alter(flipped), lambda: Break(5), lambda: Break(5, reset=False)],
                         ids=["flipped", "reset", "short"])
def test_a_small_body_that_is_wrong_has_a_status(broken, name, fault):
    broken.client.stored(name, SMALL)
    broken.proxy.fault(fault(), method="GET", target=name + "$", times=None)
    assert broken.client.get(name).status == 502


@pytest.mark.parametrize("fields", [[], ["Range: bytes=1000-8999999"]], ids=["whole", "part"])
@pytest.mark.parametrize("faults", [
    [Break(100_000)], [Break(100_000, reset=False), Status(503), Break(300_000)], [Break(1), Reset(0)],
], ids=["once", "often", "at-the-start"])
def test_an_interrupted_download_continues(broken, name, faults, fields):
    broken.client.stored(name, LARGE)
    tag = broken.client.head(name)["etag"]
    seen = len(broken.proxy.sent("GET", name))
    for fault in faults:
        broken.proxy.fault(fault, method="GET", target=name + "$")
    response = broken.client.get(name, *fields)
    assert response.body == (LARGE[1000:9_000_000] if fields else LARGE)
    further = broken.proxy.sent("GET", name)[seen + 1:]
    assert len(further) == len(faults)
    assert all(request.fields["if-match"] == tag and "range" in request.fields for request in further)


def test_a_download_does_not_continue_with_another_object(broken, moto, name):
    class Replaced(Break):
        def after(self, connection, request, response):
            moto.put(moto.bucket, name, LARGE[::-1])
            super().after(connection, request, response)

    broken.client.stored(name, LARGE)
    broken.proxy.fault(Replaced(100_000), method="GET", target=name + "$")
    # curl reports an incomplete body.
    with pytest.raises(AssertionError, match="curl"):
        broken.client.get(name)


# Endless lists


def listed(token, *keys):
    entries = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys)
    return (f"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
            f"{entries}</ListBucketResult>").encode()


class Endless(Fault):
    """Page after page of invalid names."""

    def __init__(self, key):
        self.key, self.pages = key, itertools.count(1)

    def before(self, connection, request):
        page = next(self.pages)
        body = listed(page, self.key(page))
        connection.send_head(200, {"content-length": str(len(body)), **XML})
        connection.send(body)
        return True


@pytest.mark.parametrize("key", [
    lambda page: "endless2/", lambda page: f"endless{page:09}/", lambda page: "%FF", lambda page: f"a//{page:09}",
], ids=["same", "rising", "not-utf-8", "group"])
@pytest.mark.parametrize("query", ["", "?delimiter=/", "?maxResults=1"])
def test_a_list_of_hidden_names_ends(broken, key, query):
    broken.proxy.fault(Endless(key), method="GET", target="list-type=2", times=None)
    assert broken.client.get(query).status == 502
    assert len(broken.proxy.sent("GET", "list-type=2")) <= 300


def test_a_list_that_repeats_itself_ends(broken):
    body = listed("token", "same/", "other/")
    broken.proxy.fault(Status(200, XML, body), method="GET", target="list-type=2", times=None)
    assert broken.client.get("").status == 502
    assert len(broken.proxy.sent("GET", "list-type=2")) <= 10


# Readiness


def test_a_bucket_that_does_not_exist_is_not_ready(moto, certificate, launch):
    server = launch(buckets=f"  photos: {{ {moto.store(bucket='missing')} }}\n", ready=503)
    with pytest.raises(urllib.error.HTTPError) as response:
        urllib.request.urlopen(f"http://127.0.0.1:{server.operator}/readyz?verbose", timeout=5)
    assert response.value.code == 503 and b"photos" in response.value.read()


def test_the_lookup_of_an_object_ends_with_its_upload(broken, name):
    stall = broken.proxy.fault(Stall(), method="HEAD", target=name)
    with socket.create_connection(("127.0.0.1", broken.server.http)) as connection:
        connection.sendall(f"PUT /b/photos/o/{name} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf".encode())
        wait_until(lambda: any(request.fault is stall for request in broken.proxy.requests), what="the request")
    wait_until(lambda: any(request.abandoned for request in broken.proxy.requests), timeout=5, what="its end")


# Conditional changes


class Conditional(Fault):
    """A service that copies and deletes only if the entity tag is that of If-Match."""

    def __init__(self, real):
        self.real = real

    def before(self, connection, request):
        wanted = request.fields.get("if-match")
        if wanted is None:
            return False
        _, fields, _ = self.real.call("HEAD", request.target)
        tag = next((value for name, value in fields.items() if name.lower() == "etag"), None)
        if tag == wanted:
            return False
        connection.drop_body(request)
        body = FAILED.replace(b"InternalError", b"PreconditionFailed")
        connection.send_head(412, {"content-length": str(len(body)), **XML})
        connection.send(body)
        return True


IMAGES = "allow read, create; allow update: if request.resource.contentType.matches('image/.+');"
OWNED = "allow read, create; allow update: if resource.metadata.owner == 'me';"


@pytest.fixture
def conditional(moto, certificate, launch, tmp_path):
    made = []

    def make(rules):
        path = tmp_path / "update.rules"
        path.write_text(MATCH_EVERYTHING % rules)
        running = started(
            moto, certificate, launch, environment={"SLUICE_RULES": str(path)},
            faults=lambda proxy: proxy.fault(Conditional(moto), method=("PUT", "DELETE"), times=None))
        made.append(running)
        return running
    yield make
    for running in made:
        running.proxy.stop()


def test_check_connect_warns_of_rules_that_the_service_can_not_apply(moto, tmp_path):
    """moto ignores If-Match in copies; only a probe shows whether a service supports it."""
    rules = tmp_path / "storage.rules"
    rules.write_text(MATCH_EVERYTHING % "allow read; allow update: if request.resource.contentType == 'a/b';")
    file = tmp_path / "sluice.yaml"
    file.write_text(f"rules: {rules}\nbuckets: {{ photos: {{ {moto.store()} }} }}\n")
    for arguments, findings in ([], 0), (["--connect"], 1):
        done = subprocess.run([str(BINARY), "check", *arguments, str(file)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0
        assert done.stderr.count("can never allow an update in bucket 'photos'") == findings, done.stderr


def test_rules_on_the_result_of_a_patch_work_with_conditional_copies(conditional, name):
    running = conditional(IMAGES)
    running.client.stored(name, SMALL, "Content-Type: image/png")
    assert running.client.patch(name, {"contentType": "image/gif"}).status == 200
    assert running.client.patch(name, {"customMetadata": {"Place": "Malmö"}}).status == 200
    assert running.client.patch(name, {"contentType": "text/html"}).status == 403
    found = running.client.metadata(name)
    assert (found["contentType"], found["customMetadata"]) == ("image/gif", {"Place": "Malmö"})
    copies = [request for request in running.proxy.sent("PUT", name + "$") if "x-amz-copy-source" in request.fields]
    assert len(copies) == 2 and all("if-match" in request.fields for request in copies)
    assert not [left for left in running.real.names() if left.startswith(".sluice-probe")]


@pytest.mark.parametrize("choice", ["yes", "no"])
def test_stated_conditions_are_not_probed(moto, certificate, launch, tmp_path, name, choice):
    rules = tmp_path / "storage.rules"
    rules.write_text(MATCH_EVERYTHING % f"{IMAGES} allow delete;")
    running = started(moto, certificate, launch, more=f", conditionalWrites: {choice}", environment={"SLUICE_RULES": str(rules)},
                      faults=lambda proxy: proxy.fault(Conditional(moto), method=("PUT", "DELETE"), times=None))
    states = choice == "yes"
    try:
        running.client.stored(name, SMALL)
        # A decision about the result needs a copy of the object that was read.
        assert running.client.patch(name, {"contentType": "image/gif"}).status == (200 if states else 501)
        assert running.client.delete(name, f'If-Match: "{ZEROS}"').status in (412, 501)
        etag = running.client.get(name)["etag"]
        assert running.client.delete(name, f"If-Match: {etag}").status == (204 if states else 501)
        assert not [request for request in running.proxy.requests if ".sluice-probe" in request.target]
    finally:
        running.proxy.stop()


def test_the_shipped_rules_let_metadata_of_images_change(each, certificate, launch, name):
    """SeaweedFS supports conditional copies."""
    rules = pathlib.Path(__file__).resolve().parents[3] / "config/storage.rules"
    running = started(each, certificate, launch, environment={"SLUICE_RULES": str(rules)})
    image = name.replace("uploads", "images")
    running.client.stored(image, SMALL, "Content-Type: image/png")
    wanted = {"seaweedfs": 200, "moto": 501}[each.name]
    assert running.client.patch(image, {"contentType": "image/gif"}).status == wanted
    if wanted == 200:
        assert running.client.patch(image, {"contentType": "text/html"}).status == 403
    assert running.client.delete(image).status == 204
    running.proxy.stop()


def test_a_patch_is_decided_again_after_a_concurrent_upload(conditional, moto, name):
    running = conditional(IMAGES)
    running.client.stored(name, SMALL, "Content-Type: image/png")

    class Overtaken(Conditional):
        def before(self, connection, request):
            moto.call("PUT", f"/{moto.bucket}/{name}", NEWER, {"content-type": "text/html"})
            return super().before(connection, request)

    running.client.patch(name, {"contentType": "image/gif"})
    running.proxy.faults.insert(0, [Overtaken(moto), ("PUT",), re.compile(name + "$"), 1, 0])
    response = running.client.patch(name, {"cacheControl": "no-store"})
    assert response.status == 403, response
    assert moto.content(name) == NEWER


def test_rules_on_the_stored_object_can_not_be_enforced(conditional, name):
    """A copy compares bytes only, so concurrent changes of metadata are not detected."""
    running = conditional(OWNED)
    running.client.stored(name, SMALL, "X-Object-Meta-owner: me")
    assert running.client.patch(name, {"contentType": "image/gif"}).status == 501


def test_without_conditional_copies_such_rules_are_rejected(moto, certificate, launch, tmp_path, name):
    path = tmp_path / "update.rules"
    path.write_text(MATCH_EVERYTHING % IMAGES)
    running = started(moto, certificate, launch, environment={"SLUICE_RULES": str(path)})
    running.client.stored(name, SMALL, "Content-Type: image/png")
    assert running.client.patch(name, {"contentType": "image/gif"}).status == 501
    running.proxy.stop()


def test_deletions_have_conditions_if_the_service_evaluates_them(broken, moto, name):
    broken.client.stored(name, SMALL)
    tag = broken.client.head(name)["etag"]
    assert broken.client.delete(name, 'If-Match: "other"').status == 412
    moto.put(moto.bucket, name, NEWER)
    assert broken.client.delete(name, f"If-Match: {tag}").status == 412
    assert moto.content(name) == NEWER
    assert broken.client.delete(name, f"If-Match: {broken.client.head(name)['etag']}").status == 204
