"""Limits per caller: requests, transfers and bytes, independent of other callers."""

import concurrent.futures
import json
import socket
import subprocess
import time
import urllib.parse

import pytest

from identities import Key, claims, key_set
from program import curl, new_token, wait_until
from raw import DATA, HTTP2, WINDOW_UPDATE, connect, frame, setting
from signed_links import new_key, sign
from wire import Wire

CALLERS = ["one", "two", "free"]
MIB = 1 << 20


@pytest.fixture
def limited(launch):
    """Starts a gateway with these limits, `GROUP: { … }` each, and three callers: two of one group, one without limits."""
    def start(*limits, more="", **options):
        made = {name: new_token(name) for name in CALLERS}
        entries = "".join(entry.replace(" }", ", group: pair }" if name != "free" else " }") + "\n"
                          for name, (_, entry) in made.items())
        running = launch(extra="log: { format: json }\ntokens:\n" + entries + "callers:\n"
                         + "".join(f"  {limit}\n" for limit in limits) + more, **options)
        running.tokens = {name: ("Authorization", f"Bearer {token}") for name, (token, _) in made.items()}
        return running
    return start


def stored(server, name, size):
    body = bytes(range(256)) * (size // 256)
    assert Wire(server).put(name, body, server.tokens["free"]).status == 201
    return body


def refused(response, server, limit, group, count=None):
    response.is_problem("too-many-requests")
    assert int(response["retry-after"]) >= 1
    seen = server.metrics()[f'sluice_limited_requests_total{{group="{group}",limit="{limit}"}}']
    assert seen >= 1 and (count is None or seen == count)


def download(server, name, caller=None, receive=4096):
    """Begins a download over a connection that is not read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    raw.connect(("127.0.0.1", server.http))
    line = f"{caller[0]}: {caller[1]}\r\n" if caller else ""
    raw.sendall(f"GET /b/photos/o/{name} HTTP/1.1\r\nHost: a\r\n{line}\r\n".encode())
    return raw


# Not h2c: curl 7.88 can't use such a connection twice.
@pytest.mark.parametrize("transport", ["http1", "h2"])
def test_requests(limited, transport):
    server = limited("pair: { requests: 2 }")
    wire = Wire(server, transport)

    def burst(caller, count=12):
        """The statuses of requests on one connection."""
        options = ["-H", ": ".join(server.tokens[caller])] if caller else []
        url = server.url("/b/photos/o/a", wire.scheme)
        return curl(*wire.options, *options, "-o", "/dev/null", "-w", "%{http_code}\n", f"{url}?[1-{count}]").decode().split()

    responses = burst("one")
    assert responses[:2] == ["404", "404"] and "429" in responses
    # Limits are per caller, also within a group; callers of other groups have none.
    assert burst("two")[:2] == ["404", "404"]
    assert set(burst("free")) == set(burst(None)) == {"404"}
    refused(wait_until(lambda: (lambda a: a if a.status == 429 else None)(wire.get("a", server.tokens["one"]))),
            server, "requests", "pair")
    # It is a matter of waiting.
    wait_until(lambda: wire.get("a", server.tokens["one"]).status == 404, what="another request")
    text = curl(f"http://127.0.0.1:{server.operator}/metrics").decode()
    assert 'group="pair"' in text and '"one"' not in text and '"two"' not in text


def test_callers_of_different_issuers_are_separate(limited, tmp_path):
    """The same uid in the same group by a static token and by an issuer's token, and an anonymous caller."""
    key = Key()
    (tmp_path / "keys.json").write_bytes(key_set(key))
    server = limited("pair: { transfers: 1 }", more="issuers:\n  ci: { jwks: { issuer: ci, audiences: [sluice], "
                     f'keys: "{tmp_path}/keys.json" }}, group: pair }}\n')
    wire = Wire(server)
    stored(server, "large", 16 * MIB)
    with download(server, "large", server.tokens["one"]):
        wait_until(lambda: wire.get("none", server.tokens["one"]).status == 429, what="the limit")
        assert wire.get("none", ("Authorization", f"Bearer {key.sign(claims('ci', sub='one'))}")).status == 404


def test_defaults_are_for_callers_without_an_entry(limited):
    server = limited("default: { requests: 1 }", "free: {}")
    wire = Wire(server)

    def is_limited(*fields):
        return 429 in [wire.get("a", *fields).status for _ in range(20)]

    assert is_limited(server.tokens["one"]) and is_limited() and not is_limited(server.tokens["free"])
    limited_by = {key for key, value in server.metrics().items() if key.startswith("sluice_limited") and value}
    assert limited_by == {f'sluice_limited_requests_total{{group="{group}",limit="requests"}}' for group in ("pair", "anonymous")}


def test_anonymous_callers_are_keyed_by_address(limited):
    server = limited("anonymous: { requests: 1 }")
    url = server.url("/b/photos/o/a?[1-8]")

    def burst(address):
        return curl("--interface", address, "-o", "/dev/null", "-w", "%{http_code}\n", url).decode().split()

    assert "429" in burst("127.0.0.1")
    assert burst("127.0.0.2")[0] == "404"
    # Invalid tokens are counted by address.
    responses = curl("--interface", "127.0.0.3", "-H", "Authorization: Bearer guess", "-o", "/dev/null", "-w", "%{http_code}\n",
                     url).decode().split()
    assert responses[0] == "401" and "429" in responses
    assert Wire(server).get("a", server.tokens["one"]).status == 404


@pytest.mark.parametrize("end", ["close", "reset"])
def test_transfers_are_released_however_they_end(limited, end):
    server = limited("pair: { transfers: 3 }")
    stored(server, "large", 16 * MIB)
    wire = Wire(server)
    for _ in range(5):
        open_now = [download(server, "large", server.tokens["one"]) for _ in range(3)]
        refused(wait_until(lambda: (lambda a: a if a.status == 429 else None)(wire.get("none", server.tokens["one"])),
                           what="the limit"), server, "transfers", "pair")
        assert wire.get("none", server.tokens["two"]).status == 404
        for raw in open_now:
            if end == "reset":
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            raw.close()
        wait_until(lambda: wire.get("none", server.tokens["one"]).status == 404, what="a free transfer")
        # All three, not just one.
        half = [connect(("127.0.0.1", server.http)) for _ in range(2)]
        for raw in half:
            raw.sendall((f"PUT /b/photos/o/half HTTP/1.1\r\nHost: a\r\nAuthorization: {server.tokens['one'][1]}\r\n"
                         "Content-Length: 5\r\n\r\nab").encode())
        wait_until(lambda: server.metrics()["sluice_streams_live"] >= 2, what="the uploads")
        assert wire.get("none", server.tokens["one"]).status == 404
        for raw in half:
            raw.close()
        wait_until(lambda: server.metrics()["sluice_streams_live"] == 0, what="the end of the uploads")


def test_transfers_of_one_http2_connection(limited):
    server = limited("pair: { transfers: 4 }")
    stored(server, "large", 4 * MIB)
    done = subprocess.run(["h2load", "-n", "200", "-c", "1", "-m", "20", "-H", ": ".join(server.tokens["one"]),
                           server.url("/b/photos/o/large")], capture_output=True, text=True, timeout=120)
    assert "4xx" in done.stdout and "200 done" in done.stdout, done
    metrics = server.metrics()
    assert metrics['sluice_limited_requests_total{group="pair",limit="transfers"}'] > 0
    assert metrics['sluice_caller_requests_total{group="pair"}'] == 200
    assert Wire(server).get("large", server.tokens["one"]).status == 200


@pytest.mark.parametrize("transport", ["http1", "h2c", "h2"])
def test_bytes_out_are_paced(limited, transport):
    rate = 4 * MIB
    server = limited("pair: { bytesOut: 4MiB }")
    body = stored(server, "large", 10 * MIB)
    wire = Wire(server, transport)
    response = wire.call("GET", "/b/photos/o/large", [server.tokens["one"]], more=["-w", "%{time_total}"])
    assert response.body == body
    # A second's worth at once, the rest at the rate: never more than that within any time.
    line = wait_until(lambda: access_line(server, "large"), what="the access line")
    assert line["bytes_out"] == len(body)
    assert line["bytes_out"] <= rate + rate * line["duration_ms"] / 1000
    # Other addresses are not affected.
    assert wire.get("large", server.tokens["two"]).status == 200
    assert wire.get("large", server.tokens["free"]).body == body


def test_a_body_moves_in_large_pieces(limited):
    """Each crumb would be a frame: at 1 MiB a second a body of 3 MiB once went in 200,000 of them."""
    server = limited("pair: { bytesOut: 1MiB }")
    body = stored(server, "large", 3 * MIB)
    with HTTP2(("127.0.0.1", server.http), setting(4, 1 << 30)) as connection:
        connection.acknowledge()
        connection.send(frame(WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4)))
        connection.request(1, b"GET", b"/b/photos/o/large", (b"authorization", server.tokens["one"][1].encode()))
        sizes = []
        while sum(sizes) < len(body):
            sizes.append(len(connection.until(DATA, stream=1)[3]))
    assert len(sizes) < 1000, (len(sizes), sorted(sizes)[:10])


@pytest.mark.parametrize("transport", ["http1", "h2c"])
def test_a_long_transfer_does_not_block_others_of_its_caller(limited, transport):
    server = limited("pair: { bytesOut: 1MiB, bytesIn: 1MiB }")
    body = stored(server, "large", 4 * MIB)
    wire = Wire(server, transport)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        down = pool.submit(wire.get, "large", server.tokens["one"])
        up = pool.submit(wire.put, "up", body, server.tokens["one"])
        wait_until(lambda: server.metrics()["sluice_streams_live"] == 2, what="both transfers")
        small = 0
        while not (down.done() and up.done()):
            assert wire.put(f"small{small}", b"x", server.tokens["one"]).status == 201
            assert wire.get(f"small{small}", server.tokens["one"]).body == b"x"
            small += 1
        assert small > 3 and down.result().body == body and up.result().status == 201


def test_lists_count_as_bytes(limited):
    rate = 64 * 1024
    server = limited("pair: { bytesOut: 64KiB }")
    wire = Wire(server)
    with connect(("127.0.0.1", server.http)) as raw:
        for number in range(200):
            raw.sendall((f"PUT /b/photos/o/{'n' * 400}{number} HTTP/1.1\r\nHost: a\r\n"
                         f"Authorization: {server.tokens['free'][1]}\r\nContent-Length: 0\r\n\r\n").encode())
            assert b" 201 " in raw.recv(4096)
    began, moved = time.monotonic(), 0
    for _ in range(3):
        response = wire.call("GET", "/b/photos/o", [server.tokens["one"]])
        assert len(response.json["items"]) == 200
        moved += len(response.body)
    assert moved <= rate + rate * (time.monotonic() - began)
    # When more transfers wait than a second can serve, the next is rejected with Retry-After.
    raws = [download(server, "", server.tokens["one"]) for _ in range(40)]
    refused(wait_until(lambda: (lambda a: a if a.status == 429 else None)(wire.get("none", server.tokens["one"]))),
            server, "bytes_out", "pair")
    assert wire.get("none", server.tokens["two"]).status == 404
    # A client that disconnects returns its unused bytes.
    for raw in raws:
        raw.close()
    wait_until(lambda: server.metrics()["sluice_streams_live"] == 0, what="the end of the lists")
    assert wire.get("none", server.tokens["one"]).status == 404


@pytest.mark.parametrize("path, code", [
    ("/b/photos/o/a?link-method=GET&link-expires=9&link-key=k&link-signature=x", "403"), ("/nothing", "404"), ("/b/none/o/a", "404")])
def test_guesses_of_links_and_paths_are_counted_by_address(limited, path, code):
    server = limited("anonymous: { requests: 2 }")
    responses = curl("--globoff", "-o", "/dev/null", "-w", "%{http_code}\n", *[server.url(path), "-o", "/dev/null"] * 11,
                     server.url(path)).decode().split()
    assert responses[:2] == [code] * 2 and "429" in responses, responses


def access_line(server, name):
    found = [json.loads(line) for line in server.output().splitlines() if line.startswith("{") and f'/o/{name}"' in line]
    found = [line for line in found if line.get("principal") == "one" and line.get("status") in (200, 201)]
    return found[0] if found else None


@pytest.mark.parametrize("transport", ["http1", "h2c", "h2"])
def test_bytes_in_are_paced(limited, transport):
    rate = 4 * MIB
    server = limited("pair: { bytesIn: 4MiB }")
    wire = Wire(server, transport)
    body = bytes(range(256)) * (10 * MIB // 256)
    assert wire.put("up", body, server.tokens["one"]).status == 201
    line = wait_until(lambda: access_line(server, "up"), what="the access line")
    assert line["bytes_in"] == len(body)
    assert line["bytes_in"] <= rate + rate * line["duration_ms"] / 1000 + 64 * 1024
    assert wire.get("up", server.tokens["one"]).body == body
    assert server.metrics()['sluice_caller_received_bytes_total{group="pair"}'] == len(body)


def test_transfers_of_a_caller_share_its_limit(limited):
    rate = 2 * MIB
    server = limited("pair: { bytesOut: 2MiB }")
    body = stored(server, "large", 2 * MIB)

    def get(caller):
        """Asks until it is not turned away."""
        return wait_until(lambda: (lambda a: a if a.status == 200 else None)(Wire(server).get("large", server.tokens[caller])))

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert all(response.body == body for response in pool.map(get, ["one"] * 3))
    # All three together had a second's worth at once, and the rest at the rate.
    assert 3 * len(body) <= rate + rate * (time.monotonic() - began)
    assert get("two").body == body


def test_links_have_limits_by_key(limited, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(new_key("a") + new_key("b"))
    server = limited("links: { requests: 1 }", more=f"links: {{ keys: \"{keys}\" }}\n")
    stored(server, "x", 256)
    link = sign(keys, "/b/photos/o/x")
    responses = curl("-w", "%{http_code}\n", *["-o", "/dev/null", server.url(link)] * 8).decode().split()
    assert responses[0] == "200" and "429" in responses, responses
    assert urllib.parse.parse_qs(link)["link-key"] == ["a"]
    metrics = server.metrics()
    assert metrics['sluice_limited_requests_total{group="links",limit="requests"}'] >= 1
    assert metrics['sluice_limited_requests_total{group="anonymous",limit="requests"}'] == 0
