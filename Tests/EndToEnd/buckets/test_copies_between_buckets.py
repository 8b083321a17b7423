"""Copies and moves between buckets: of two directories, and of a directory and an S3 service."""

import hashlib

import pytest

import upstreams
from wire import Wire

DATA = hashlib.shake_256(b"between").digest(300_000)
RULES = """
rules_version = '2';
service firebase.storage {
  match /b/photos/o { match /{name=**} { allow read, write; } }
  match /b/archive/o {
    match /free/{name=**} { allow read, write; }
    match /kept/{name=**} { allow read, create; }
    match /hidden/{name=**} { allow write; }
  }
}
"""


@pytest.fixture(scope="module")
def moto(tmp_path_factory):
    service = upstreams.Moto(tmp_path_factory.mktemp("moto"))
    yield service
    service.stop()


@pytest.fixture(params=["directory", "moto"])
def wire(request, launch, tmp_path):
    """A gateway whose second bucket is another directory, or in S3."""
    other = request.getfixturevalue("moto").store() if request.param == "moto" else "directory: { path: ./archive }"
    (tmp_path / "storage.rules").write_text(RULES)
    buckets = f"  photos: {{ directory: {{ path: ./photos }}, maximumObjectSize: 200000 }}\n  archive: {{ {other} }}\n"
    return Wire(launch(buckets=buckets, rules=tmp_path / "storage.rules"))


def act(wire, how, name, source, of, to="photos", more="", *fields):
    path = f"/b/{to}/o/{name}?{how}={source.replace('/', '%2F')}&sourceBucket={of}{more}"
    return wire.call("POST", path, fields)


@pytest.mark.parametrize("size", [0, 1000, 200_000])
def test_bytes_and_properties_go_to_the_other_bucket(wire, size):
    body = DATA[:size]
    source = wire.stored("a", body, "Content-Type: text/plain", "X-Object-Meta-Kind: oak")
    there = act(wire, "copyFrom", "free/b", "a", "photos", "archive")
    assert there.status == 201 and there["location"] == "/b/archive/o/free/b", there
    back = act(wire, "copyFrom", "c", "free/b", "archive")
    assert back.status == 201
    for made in (there.json, back.json):
        assert made["size"] == source["size"] and made["contentType"] == "text/plain"
        assert made["customMetadata"] == {"kind": "oak"} and made["generation"] != source["generation"]
    assert back.json["crc32c"] == source["crc32c"]
    assert wire.get("free/b", bucket="archive").body == wire.get("c").body == wire.get("a").body == body
    # Nothing is the same object: each name is replaced and deleted by itself.
    wire.stored("a", b"other")
    wire.delete("free/b", bucket="archive")
    assert wire.get("c").body == body


def test_a_move_deletes_the_source_in_its_bucket(wire):
    wire.stored("a", DATA[:5000])
    assert act(wire, "moveFrom", "free/a", "a", "photos", "archive").status == 201
    wire.missing("a")
    assert act(wire, "moveFrom", "a", "free/a", "archive").status == 201
    wire.missing("free/a", bucket="archive")
    assert wire.get("a").body == DATA[:5000]
    # The same name in the same bucket, said twice, is still one object.
    act(wire, "moveFrom", "a", "a", "photos").is_problem("invalid-argument")
    assert wire.get("a").body == DATA[:5000]


def test_the_rules_of_both_buckets_decide(wire):
    wire.stored("kept/a", b"kept", bucket="archive")
    wire.stored("hidden/a", b"hidden", bucket="archive")
    for how in ("copyFrom", "moveFrom"):
        there, missing = (act(wire, how, "b", name, "archive") for name in ("hidden/a", "hidden/none"))
        for response in (there, missing):
            response.is_problem("unauthorized")
        assert {**there.json, "instance": ""} == {**missing.json, "instance": ""}
    act(wire, "moveFrom", "b", "kept/a", "archive").is_problem("unauthorized")
    assert act(wire, "copyFrom", "b", "kept/a", "archive").status == 201
    act(wire, "copyFrom", "none/b", "b", "photos", "archive").is_problem("unauthorized")
    assert wire.get("kept/a", bucket="archive").body == b"kept"


def test_conditions_limits_and_bad_requests(wire):
    wire.stored("free/large", DATA[:200_001], bucket="archive")
    act(wire, "copyFrom", "b", "free/large", "archive").is_problem("payload-too-large")
    act(wire, "copyFrom", "b", "free/none", "archive").is_problem("object-not-found")
    act(wire, "copyFrom", "b", "a", "nowhere").is_problem("bucket-not-found")
    act(wire, "copyFrom", "b", "a", "archive", "photos", "&sourceBucket=archive").is_problem("invalid-argument")
    source = wire.stored("free/a", b"bytes", bucket="archive")
    act(wire, "copyFrom", "b", "free/a", "archive", "photos", "&sourceGeneration=7").is_problem("precondition-failed")
    wire.missing("b")
    fits = f"&sourceGeneration={source['generation']}"
    assert act(wire, "copyFrom", "b", "free/a", "archive", "photos", fits, "If-None-Match: *").status == 201
    act(wire, "copyFrom", "b", "free/a", "archive", "photos", "", "If-None-Match: *").is_problem("precondition-failed")
