"""Look-ups of documents in a running server: which, how many, and cancellation."""

import http.server
import json
import signal
import socket
import struct
import threading

import pytest

from program import new_token, wait_until
from raw import connect, read_to_end, responses

DOCUMENTS = "/databases/(default)/documents"
TARGET = "/v1/projects/p/databases/%28default%29/documents"


class Firestore:
    """Reports every document as existing, once `released` is set."""

    def __init__(self):
        self.targets, self.released, self.ended = [], threading.Event(), threading.Event()
        self.released.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.targets.append(self.path)
                while not outer.released.wait(0.05) and not outer.ended.is_set():
                    pass
                body = json.dumps({"fields": {}}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def authority(self):
        return f"127.0.0.1:{self.server.server_address[1]}"

    def close(self):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def firestore():
    running = Firestore()
    yield running
    running.close()


@pytest.fixture
def start(launch, firestore, tmp_path):
    """Starts a server with this condition for get, whose files are `users/OWNER/…`, and a token of this uid."""
    def start(condition):
        rules = tmp_path / "storage.rules"
        rules.write_text("rules_version = '2'; service firebase.storage { match /b/photos/o/users/{owner}/{file=**} {"
                         f" allow get: if {condition}; }} }}")
        token, entry = new_token("aKb")
        running = launch(
            environment={"SLUICE_RULES": str(rules), "FIRESTORE_EMULATOR_HOST": firestore.authority},
            extra=f"firestore: {{ project: p }}\ntokens:\n{entry}\nlimits: {{ drainTimeout: 1s }}\n"
                  "log: { format: json }\n")
        running.token = token
        return running
    return start


def get(server, name):
    """Begins a GET; returns the socket."""
    raw = connect(("127.0.0.1", server.http))
    raw.sendall(f"GET /b/photos/o/users/{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                f"Authorization: Bearer {server.token}\r\n\r\n".encode())
    return raw


BOTH = (f"firestore.exists({DOCUMENTS}/users/$(request.auth.uid))"
        f" && firestore.exists({DOCUMENTS}/users/$(owner))")


def test_equivalent_document_names_are_looked_up_separately(start, firestore):
    server = start(BOTH)
    # U+212A, the sign of the kelvin, for the letter.
    with get(server, "a%E2%84%AAb/x") as raw:
        # Allowed: both documents exist, and the object does not.
        assert responses(read_to_end(raw))[0].status == 404
    assert len(firestore.targets) == 2 and len(set(firestore.targets)) == 2
    assert server.stop() == 0


def test_a_slash_in_a_value_stays_in_its_segment(start, firestore):
    server = start(f"firestore.exists({DOCUMENTS}/teams/$(request.params.team)/members/$(request.auth.uid))")
    for team in ("lobby/guests/mallory", "../users/mallory"):
        with get(server, f"o/x?team={team}") as raw:
            read_to_end(raw)
    assert firestore.targets == [f"{TARGET}/teams/{team.replace('/', '%2F')}/members/aKb"
                                 for team in ("lobby/guests/mallory", "../users/mallory")]


def test_nothing_more_is_looked_up_for_a_disconnected_client(start, firestore):
    server = start(BOTH)
    firestore.released.clear()
    raw = get(server, "other/x")
    wait_until(lambda: firestore.targets, what="the first look-up")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()
    wait_until(lambda: '"status":499' in server.output().replace(" ", ""), what="the request's end")
    firestore.released.set()
    assert len(firestore.targets) == 1
    assert server.stop() == 0


def test_a_look_up_that_hangs_does_not_outlive_the_drain(start, firestore):
    server = start(BOTH)
    firestore.released.clear()
    with get(server, "other/x"):
        wait_until(lambda: firestore.targets, what="the look-up")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(40) == 0
