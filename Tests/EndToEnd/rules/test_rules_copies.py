"""The rules of copies, moves and deletions of many objects."""

import json

import pytest
import wire as wire_client

RULES = """
rules_version = '2';
service firebase.storage {
  match /b/{bucket}/o {
    match /free/{name=**} { allow read, write; }
    match /hidden/{name=**} { allow write; }
    match /kept/{name=**} { allow read, create; }
    match /texts/{name=**} {
      allow create: if request.resource.contentType == 'text/plain' && request.resource.size < 100
                       && request.resource.crc32c != null && request.resource.metadata.kind == 'oak';
    }
    match /new/{name=**} { allow create: if resource == null; }
    match /mine/{name=**} { allow get, delete: if resource.metadata.owner == 'me'; allow create; }
  }
}
"""


@pytest.fixture
def wire(launch, tmp_path):
    (tmp_path / "storage.rules").write_text(RULES)
    return wire_client.Wire(launch(rules=tmp_path / "storage.rules", tls=False))


def act(wire, how, name, source):
    return wire.call("POST", f"/b/photos/o/{name}?{how}={source.replace('/', '%2F')}")


@pytest.mark.parametrize("how", ["copyFrom", "moveFrom"])
def test_a_caller_who_may_not_read_the_source_learns_nothing(wire, how):
    wire.stored("hidden/a", b"bytes")
    there, missing = act(wire, how, "free/b", "hidden/a"), act(wire, how, "free/b", "hidden/none")
    for response in (there, missing):
        response.is_problem("unauthorized")
    assert {**there.json, "instance": ""} == {**missing.json, "instance": ""}
    # A source that depends on the object, and one onto itself.
    wire.stored("mine/a", b"bytes", "X-Object-Meta-Owner: you")
    for source in ("mine/a", "mine/none"):
        act(wire, how, "free/b", source).is_problem("unauthorized")
    act(wire, how, "hidden/a", "hidden/a").is_problem("unauthorized")
    wire.missing("free/b")
    assert wire.delete("hidden/a").status == 204


def test_a_move_needs_the_right_to_delete(wire):
    wire.stored("kept/a", b"bytes")
    act(wire, "moveFrom", "free/b", "kept/a").is_problem("unauthorized")
    wire.missing("free/b")
    assert act(wire, "copyFrom", "free/b", "kept/a").status == 201
    wire.stored("mine/a", b"bytes", "X-Object-Meta-Owner: me")
    assert act(wire, "moveFrom", "free/c", "mine/a").status == 201


def test_the_rules_see_the_facts_of_the_copy(wire):
    wire.stored("free/a", b"text", "Content-Type: text/plain", "X-Object-Meta-Kind: oak")
    wire.stored("free/elm", b"text", "Content-Type: text/plain", "X-Object-Meta-Kind: elm")
    wire.stored("free/long", b"x" * 100, "Content-Type: text/plain", "X-Object-Meta-Kind: oak")
    wire.stored("free/image", b"text", "Content-Type: image/png", "X-Object-Meta-Kind: oak")
    for how in ("copyFrom", "moveFrom"):
        for source in ("free/elm", "free/long", "free/image"):
            act(wire, how, "texts/b", source).is_problem("unauthorized")
    fields = ["Content-Type: application/json"]
    change = json.dumps({"contentType": "text/plain"})
    assert wire.call("POST", "/b/photos/o/texts/b?copyFrom=free%2Fimage", fields, change).status == 201
    assert act(wire, "copyFrom", "texts/a", "free/a").status == 201


def test_the_rules_see_the_object_that_a_copy_replaces(wire):
    wire.stored("free/a", b"bytes")
    assert act(wire, "copyFrom", "new/b", "free/a").status == 201
    for how in ("copyFrom", "moveFrom"):
        act(wire, how, "new/b", "free/a").is_problem("unauthorized")
    assert wire.get("free/a").status == 200


def test_each_deletion_is_decided_by_itself(wire):
    for name in ("free/a", "hidden/a", "kept/a", "mine/a", "mine/b"):
        wire.stored(name, b"bytes", "X-Object-Meta-Owner: " + ("me" if name == "mine/a" else "you"))
    objects = ["free/a", "free/none", "kept/a", "kept/none", "mine/a", "mine/b", "mine/none", "hidden/a", "other/x"]
    response = wire.call("POST", "/b/photos/o?delete", ["Content-Type: application/json"], json.dumps({"objects": objects}))
    found = {entry["name"]: entry["status"] for entry in response.json["results"]}
    assert found == {"free/a": 204, "free/none": 404, "kept/a": 403, "kept/none": 403, "mine/a": 204, "mine/b": 403,
                     "mine/none": 403, "hidden/a": 204, "other/x": 403}
    assert wire.get("kept/a").status == 200
