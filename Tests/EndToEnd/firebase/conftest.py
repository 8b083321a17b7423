"""Gateways that speak the Firebase Storage protocol."""

import pytest

import program
import wire as wire_client
from firebase import Firebase
from rulesets import rules

RULES = rules(
    "match /open/{n=**} { allow read, write: if true; }",
    "match /users/{user}/{n} { allow read, write: if request.auth.uid == user; }",
    "match /small/{n} { allow read; allow write: if request.resource.size < 10; }",
    "match /text/{n} { allow read; allow create: if request.resource.contentType == 'text/plain' "
    "&& request.resource.metadata.k == 'v'; }",
    "match /once/{n} { allow read; allow create: if resource == null; }",
    "match /clean/{n} { allow create; allow read: if !('firebaseStorageDownloadTokens' in resource.metadata); }",
)


@pytest.fixture(scope="session")
def firebase_server(tmp_path_factory, store):
    """The server that the tests of the protocol share: everything is open."""
    directory = tmp_path_factory.mktemp("firebase")
    running = program.Server(directory, buckets=f"  photos: {{ {store(directory, 'photos')} }}\n", extra="firebase: true\n")
    yield running
    assert running.stop() == 0, running.output()


@pytest.fixture(params=list(wire_client.TRANSPORTS))
def each(request, firebase_server):
    """A client of the shared server, over each transport."""
    return Firebase(wire_client.Wire(firebase_server, request.param))


@pytest.fixture
def client(firebase_server):
    """A client of the shared server."""
    return Firebase(wire_client.Wire(firebase_server))


@pytest.fixture
def ruled(launch, tmp_path, store):
    """Starts a server with rules and two callers: returns a function from a caller's name (or None) to a client."""
    def start(more="", buckets=None):
        (tmp_path / "storage.rules").write_text(RULES)
        tokens = {name: program.new_token(name) for name in ("alice", "bob")}
        lines = "".join(f"{line}\n" for _, line in tokens.values())
        server = launch(extra=f"firebase: true\ntokens:\n{lines}{more}", rules=tmp_path / "storage.rules",
                        buckets=buckets(tmp_path) if buckets else f"  photos: {{ {store(tmp_path, 'photos')} }}\n")

        def client(name=None):
            return Firebase(wire_client.Wire(server), token=name and tokens[name][0])
        client.server = server
        return client
    return start
