"""Texts that look the same but differ in bytes are different, for rules and for buckets."""

import urllib.parse

import pytest

import wire

RULES = """rules_version = '2';
service firebase.storage {
  match /b/{bucket}/o {
    match /kinds/{name} {
      allow read, create;
      allow update: if request.resource.metadata.Kind == 'safe';
    }
    match /K/{name} { allow read, write; }
    match /params/{name} { allow get: if request.params.K == 'yes'; }
  }
}
"""
KELVIN = "\u212a"


@pytest.fixture
def running(launch, tmp_path):
    (tmp_path / "text.rules").write_text(RULES)
    return launch(rules=tmp_path / "text.rules")


@pytest.fixture(params=list(wire.TRANSPORTS))
def client(request, running):
    return wire.Wire(running, request.param)


def quoted(text):
    return urllib.parse.quote(text)


def test_metadata_keys_that_look_the_same(client):
    assert client.put("kinds/a", b"x").status == 201
    for order in (["Kind", KELVIN + "ind"], [KELVIN + "ind", "Kind"]):
        patch = {"customMetadata": {order[0]: "evil", order[1]: "evil"}}
        patch["customMetadata"][KELVIN + "ind"] = "safe"
        response = client.patch("kinds/a", patch)
        assert response.status == 403, response
    patch = {"customMetadata": {KELVIN + "ind": "evil", "Kind": "safe"}}
    response = client.patch("kinds/a", patch)
    assert response.status == 200 and response.json["customMetadata"] == patch["customMetadata"]


def test_segments_and_parameters_that_look_the_same(client):
    assert client.put("K/a", b"x").status in (200, 201)
    assert client.put(f"{quoted(KELVIN)}/a", b"x").status == 403
    assert client.get("params/a?K=yes").status == 404
    assert client.get(f"params/a?{quoted(KELVIN)}=yes").status == 403
    assert client.get(f"params/a?K=no&{quoted(KELVIN)}=yes").status == 403


def test_buckets_that_look_the_same(launch, tmp_path):
    server = launch(buckets=f"  backups-k: {{ directory: {{ path: {tmp_path}/k }} }}\n")
    client = wire.Wire(server)
    client.get("none", bucket="backups-k").is_problem("object-not-found")
    name = quoted("backups-" + KELVIN)
    client.get("none", bucket=name).is_problem("bucket-not-found")
