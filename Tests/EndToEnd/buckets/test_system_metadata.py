"""What the gateway itself keeps with an object is apart from custom metadata: nobody reads, sets or removes it there."""

import json
import urllib.parse

import pytest

import upstreams
import wire as wire_client
from secret_words import secret

TOKENS = [secret("7f1b58b1-3ed1-4d76-be86-e0437f9cf896"), secret("0e3b37c3-b9a5-4d1c-9d7e-0c9b1f3d2a55")]
KEY = "firebaseStorageDownloadTokens"
RULES = """rules_version = '2';
service firebase.storage {{
  match /b/photos/o {{
    match /{{name=**}} {{
      allow get, create, delete: if true;
      allow update: if {0};
    }}
  }}
}}
"""
RESERVED = [KEY, KEY.lower(), KEY.upper(), "sluice-", "sluice-session", "Sluice-Generation", "sluice-x"]


class GCSObject:
    def __init__(self, running):
        self.running = running

    def seed(self, name):
        self.running.put("photos", name, b"seeded")
        metadata, _ = self.running.model.objects["photos", name]
        metadata["metadata"] = {"k": "v", KEY: ",".join(TOKENS), "sluice-x": "hidden"}

    def tokens(self, name):
        return self.running.model.objects["photos", name][0].get("metadata", {}).get(KEY)


class S3Object:
    def __init__(self, running):
        self.running = running

    def seed(self, name):
        fields = {"x-amz-meta-k": "v", f"x-amz-meta-{KEY}": ",".join(TOKENS), "x-amz-meta-sluice-x": "hidden",
                  "content-type": "text/plain"}
        status, _, body = self.running.call("PUT", f"/photos/{urllib.parse.quote(name)}", b"seeded", fields)
        assert status == 200, body

    def tokens(self, name):
        _, fields, _ = self.running.call("HEAD", f"/photos/{urllib.parse.quote(name)}")
        return {key.lower(): value for key, value in fields.items()}.get(f"x-amz-meta-{KEY.lower()}")


STORES = {"gcs-model": GCSObject, "moto": S3Object, "seaweedfs": S3Object}


@pytest.fixture(scope="module", params=list(STORES))
def running(request, tmp_path_factory):
    upstream = upstreams.UPSTREAMS[request.param](tmp_path_factory.mktemp("upstream"))
    yield STORES[request.param](upstream)
    upstream.stop()


@pytest.fixture
def seeded(running, launch, tmp_path):
    """Starts a gateway in front of an object with tokens: `seeded("a", update="true")`."""
    def start(name, update="true"):
        rules = tmp_path / "storage.rules"
        rules.write_text(RULES.format(update))
        running.seed(name)
        server = launch(buckets=f"  photos: {{ {running.running.store()} }}\n", rules=rules)
        return wire_client.Wire(server)
    return start


def shows_nothing(client, name):
    responses = [client.get(name), client.head(name), client.get(f"{name}?metadata")]
    for response in responses:
        assert response.status == 200
        text = f"{response.fields}{response.body}".lower()
        assert KEY.lower() not in text and "sluice-x" not in text and not any(token in text for token in TOKENS)


def test_tokens_are_hidden_and_kept(running, seeded):
    client = seeded("a")
    shows_nothing(client, "a")
    assert client.metadata("a")["customMetadata"] == {"k": "v"}
    assert client.patch("a", {"customMetadata": {"new": "1"}, "contentLanguage": "de"}).status == 200
    assert client.metadata("a")["customMetadata"] == {"k": "v", "new": "1"}
    assert running.tokens("a") == ",".join(TOKENS)
    assert "customMetadata" not in client.patch("a", {"customMetadata": None}).json
    shows_nothing(client, "a")
    assert running.tokens("a") == ",".join(TOKENS)


def test_a_new_upload_has_no_tokens(running, seeded):
    client = seeded("b")
    client.stored("b", b"new")
    assert running.tokens("b") is None
    assert "customMetadata" not in client.metadata("b")


def test_nobody_sets_or_removes_a_reserved_key(running, seeded):
    client = seeded("c")
    before = client.metadata("c")
    for key in RESERVED:
        for value in ("x", None):
            response = client.patch("c", {"customMetadata": {"k": "changed", key: value}})
            assert key in response.is_problem("invalid-argument")
        client.put("c", b"x", f"X-Object-Meta-{key}: x").is_problem("invalid-argument")
    assert client.metadata("c") == before and running.tokens("c") == ",".join(TOKENS)


@pytest.mark.parametrize("where", ["resource", "request.resource"])
def test_rules_do_not_see_tokens(running, seeded, where):
    if where == "resource" and isinstance(running, S3Object):
        pytest.skip("S3 can't decide a patch by what is there")
    # The metadata has exactly one key, and it is not the tokens'.
    condition = f"{where}.metadata.keys().hasOnly(['k'])"
    client = seeded("d", condition)
    response = client.patch("d", {"contentLanguage": "de"})
    if isinstance(running, S3Object) and running.running.name == "moto":
        response.is_problem("not-implemented")
    else:
        assert response.status == 200, response


@pytest.mark.parametrize("key", RESERVED)
def test_reserved_keys_are_rejected_with_every_store(wire, folder, key):
    name = f"{folder}/a"
    wire.stored(name, b"x", "X-Object-Meta-Sluice: fine")
    wire.put(name, b"y", f"X-Object-Meta-{key}: x").is_problem("invalid-argument")
    wire.patch(name, json.dumps({"customMetadata": {key: "x"}})).is_problem("invalid-argument")
    wire.patch(name, json.dumps({"customMetadata": {key: None}})).is_problem("invalid-argument")
    assert wire.metadata(name)["customMetadata"] == {"sluice": "fine"}
    assert wire.get(name).body == b"x"
