"""Watches: what a client with two GETs sees, over each protocol, and when waits end."""

import concurrent.futures
import random
import signal
import socket
import subprocess
import time

import pytest

from program import BINARY, Server, wait_until
from wire import TRANSPORTS, Wire

WATCHED = "eventOptions: { watch: true }\n"
RULES = """rules_version = '2';
service firebase.storage {
  match /b/{bucket}/o/{name=**} {
    allow list: if request.path != /b/photos/o/secret;
    allow create, delete, update;
    allow get: if request.path[3] != 'names';
  }
}
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("watched"), extra=WATCHED)
    yield server
    assert server.stop() == 0, server.output()


def sequence(wire, query=""):
    response = wire.call("GET", f"/b/photos/o{query}")
    assert response.status == 200
    return int(response["x-object-sequence"])


def watch(wire, number, prefix="", wait=0):
    response = wire.call("GET", f"/b/photos/o?watch={number}&prefix={prefix}&wait={wait}s")
    assert response.status == 200, response
    return int(response.json["sequence"]), response.json["events"]


def waits(server, count):
    wait_until(lambda: server.metrics()["sluice_watches"] == count, what=f"{count} watches")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_change_ends_the_wait(watched, transport):
    wire, folder = Wire(watched, transport), f"{transport}/"
    number = sequence(wire)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pending = pool.submit(watch, wire, number, folder, 25)
        waits(watched, 1)
        Wire(watched).stored("other", b"x")
        made = Wire(watched).stored(folder + "a", b"abc", "Content-Type: text/plain")
        began = time.monotonic()
        last, events = pending.result()
        assert time.monotonic() - began < 5
    assert last == number + 2 and len(events) == 1
    event = events[0]
    assert event["type"] == "finalized" and event["name"] == folder + "a" and event["sequence"] == str(last)
    assert {key: event[key] for key in ("generation", "size", "contentType", "etag")} == {
        key: made[key] for key in ("generation", "size", "contentType", "etag")}
    assert watch(wire, last, wait=1) == (last, [])


def test_sessions_copies_and_many_deletions(watched):
    wire = Wire(watched)
    number = sequence(wire)
    wire.stored("s/a", b"x")
    assert wire.call("POST", "/b/photos/o/s/b?copyFrom=s/a").status == 201
    assert wire.call("POST", "/b/photos/o/s/c?moveFrom=s/a").status == 201
    made = wire.call("PUT", "/b/photos/o/s/d", ["Upload-Complete: ?0"], b"abc")
    assert made.status == 201
    done = wire.call("PATCH", "/" + made["location"].split("/", 3)[3],
                     ["Upload-Offset: 3", "Upload-Complete: ?1", "Content-Type: application/partial-upload"], b"def")
    assert done.status in (200, 201), done
    assert wire.call("POST", "/b/photos/o?delete", [], '{"objects": ["s/b", "s/d", "s/none"]}').status == 200
    _, events = watch(wire, number)
    assert [(event["type"], event["name"]) for event in events] == [
        ("finalized", "s/a"), ("finalized", "s/b"), ("finalized", "s/c"), ("deleted", "s/a"), ("finalized", "s/d"),
        ("deleted", "s/b"), ("deleted", "s/d")]


def test_waits_end_with_their_clients_and_the_drain(launch):
    server = launch(extra=WATCHED)
    number = sequence(Wire(server))
    for transport in TRANSPORTS:
        scheme, *options = TRANSPORTS[transport]
        command = ["curl", "-s", *options, server.url(f"/b/photos/o?watch={number}&wait=60s", scheme)]
        client = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        waits(server, 1)
        client.kill()
        client.wait()
        waits(server, 0)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pending = [pool.submit(watch, Wire(server, transport), number, "", 60) for transport in TRANSPORTS]
        waits(server, 3)
        began = time.monotonic()
        assert server.stop() == 0
        assert [request.result() for request in pending] == [(number, [])] * 3
        assert time.monotonic() - began < 10


def test_a_client_that_goes_before_its_wait_begins(launch):
    """The end of its input arrives with the request, before anything waits for it."""
    server = launch(extra=WATCHED)
    number = sequence(Wire(server))
    request = f"GET /b/photos/o?watch={number}&wait=60s HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    clients = []
    for _ in range(100):
        clients.append(socket.create_connection(("127.0.0.1", server.http)))
        clients[-1].sendall(request)
        clients[-1].shutdown(socket.SHUT_WR)
    for client in clients:
        client.settimeout(20)
        # Long before the wait would end: closed, or with an error for a client that only stopped sending.
        assert b" 200 " not in client.recv(4096)
        client.close()
    waits(server, 0)


def test_a_watch_is_a_transfer(launch):
    server = launch(extra=WATCHED + "callers: { default: { transfers: 1 } }\n")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pending = pool.submit(watch, Wire(server), 0, "", 2)
        waits(server, 1)
        Wire(server).call("GET", "/b/photos/o").is_problem("too-many-requests")
        assert pending.result() == (0, [])


def test_restarts_and_times_without_records(launch):
    server = launch(extra=WATCHED)
    wire = Wire(server)
    wire.stored("a", b"x")
    number = sequence(wire)
    assert server.stop(signal.SIGKILL) != 0
    server.start()
    assert watch(wire, number) == (number, [])
    assert watch(wire, 0)[1][0]["name"] == "a"
    assert server.stop() == 0
    with_watch = server.config.read_text()
    server.config.write_text(with_watch.replace("watch: true", "watch: false"))
    server.start()
    wire.call("GET", f"/b/photos/o?watch={number}").is_problem("not-implemented")
    assert wire.call("GET", "/b/photos/o")["x-object-sequence"] is None
    wire.delete("a")
    assert server.stop() == 0
    server.config.write_text(with_watch)
    server.start()
    wire.call("GET", f"/b/photos/o?watch={number}").is_problem("watch-expired")
    assert watch(wire, sequence(wire)) == (number + 1, [])


@pytest.fixture
def ruled(launch, tmp_path):
    (tmp_path / "watch.rules").write_text(RULES)
    return launch(extra=WATCHED, rules=tmp_path / "watch.rules")


def test_the_rules_decide(ruled, tmp_path):
    wire = Wire(ruled)
    for name in ("a", "secret/b", "names/c"):
        wire.stored(name, b"x")
    last, events = watch(wire, 0)
    assert last == 3 and [event["name"] for event in events] == ["a", "names/c"]
    assert "size" in events[0] and set(events[1]) == {"type", "sequence", "time", "name"}
    wire.call("GET", "/b/photos/o?watch=0&prefix=secret/").is_problem("unauthorized")
    # Rules that replace them during the wait decide on the response.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pending = pool.submit(wire.call, "GET", f"/b/photos/o?watch={last}&wait=30s")
        waits(ruled, 1)
        (tmp_path / "watch.rules").write_text(RULES.replace("allow list: if request.path != /b/photos/o/secret;", ""))
        wait_until(lambda: wire.call("GET", "/b/photos/o/").status == 403, what="the rules")
        wire.stored("d", b"x")
        pending.result().is_problem("unauthorized")


def test_a_caller_whose_token_expires_does_not_wait_longer(launch):
    server = launch(extra=WATCHED, arguments=["--unsigned-tokens"])
    token = subprocess.run([str(BINARY), "token", "unsigned", "--uid", "alice", "--claim", f"exp={int(time.time()) + 2}"],
                           capture_output=True, text=True, check=True)
    began = time.monotonic()
    response = Wire(server).call("GET", "/b/photos/o?watch=0&wait=25s", [("Authorization", f"Bearer {token.stdout.strip()}")])
    assert response.status == 200 and response.json == {"sequence": "0", "events": []}
    assert 0.5 < time.monotonic() - began < 8


@pytest.mark.parametrize("seed", range(2))
def test_list_and_watch_are_the_state(launch, seed):
    """A client that follows, while others write, and the gateway is killed: it ends with what a list says."""
    choose = random.Random(seed)
    server = launch(extra=WATCHED)
    wire = Wire(server)
    names = ["a", "b/c", "b/d", "e"]
    for name in names[:2]:
        wire.stored(name, b"x")
    number, state = sequence(wire), {}
    for item in wire.call("GET", "/b/photos/o?view=full").json["items"]:
        state[item["fullPath"]] = item["generation"]
    for step in range(12):
        if step == 6:
            server.stop(signal.SIGKILL)
            server.start()
        for _ in range(4):
            name = choose.choice(names)
            choose.choice([wire.put, wire.put, lambda name, _: wire.delete(name)])(name, b"y")
        number, events = watch(wire, number, wait=1)
        for event in events:
            state[event["name"]] = event["generation"]
            if event["type"] == "deleted":
                del state[event["name"]]
    items = wire.call("GET", "/b/photos/o?view=full").json["items"]
    assert state == {item["fullPath"]: item["generation"] for item in items}


def test_idle_watchers(launch):
    """They cost no CPU, and little memory."""
    server = launch(extra=WATCHED)
    count = 200
    Wire(server).stored("first", b"x")
    number = sequence(Wire(server))
    before = server.status("RssAnon")
    command = ["curl", "-s", "--parallel", "--parallel-immediate", "--parallel-max", str(count)]
    for _ in range(count):
        command += [server.url(f"/b/photos/o?watch={number}&prefix=q&wait=60s"), "-o", "/dev/null"]
    clients = subprocess.Popen(command)
    waits(server, count)
    spent = server.metrics()["process_cpu_seconds_total"]
    time.sleep(3)
    assert server.metrics()["process_cpu_seconds_total"] - spent < 0.1
    assert server.status("RssAnon") - before < count * 32
    Wire(server).stored("q", b"x")
    assert clients.wait(20) == 0
    waits(server, 0)


def test_the_verb(watched, tmp_path):
    wire = Wire(watched)
    environment = {"SLUICE_URL": watched.url("")}
    output = open(tmp_path / "tail", "wb")
    client = subprocess.Popen([str(BINARY), "events", "tail", "photos/tail/"], stdout=output, env=environment)
    waits(watched, 1)
    wire.stored("tail/a", b"x")
    wire.delete("tail/a")
    wait_until(lambda: (tmp_path / "tail").read_text().count("\n") == 2, what="two lines")
    client.send_signal(signal.SIGINT)
    assert client.wait(10) == 128 + signal.SIGINT
    lines = [line.split() for line in (tmp_path / "tail").read_text().splitlines()]
    assert [line[1:] for line in lines] == [["stored", "tail/a"], ["deleted", "tail/a"]]
