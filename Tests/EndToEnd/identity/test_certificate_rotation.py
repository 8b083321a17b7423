"""Certificates that are replaced, expire or are revoked under load."""

import concurrent.futures
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import threading

import pytest

from authorities import SPIFFE, code
from http2_peer import GOAWAY, WINDOW_UPDATE, Peer, word
from identities import Certificate, loopback_names, uri
from program import wait_until
from signed_links import new_key, sign


class Load:
    """Threads that send requests, each over a new connection, until `end`."""

    def __init__(self, ask):
        self.ask, self.responses, self.stopping = ask, [], threading.Event()
        self.pool = concurrent.futures.ThreadPoolExecutor(4)
        self.threads = [self.pool.submit(self.run) for _ in range(4)]

    def run(self):
        while not self.stopping.is_set():
            self.responses.append(self.ask())

    def more(self, count=20):
        """Waits for `count` more responses."""
        target = len(self.responses) + count
        wait_until(lambda: len(self.responses) >= target, what="the load")

    def end(self):
        self.stopping.set()
        for thread in self.threads:
            thread.result()
        self.pool.shutdown()


@pytest.mark.parametrize("protocol", ["--http1.1", "--http2"])
def test_certificates_rotate_under_load(serve, authorities, protocol):
    authorities.revoke()
    files = Certificate(authorities.directory, "served", "localhost", issuer=authorities.root, names=loopback_names())
    server = serve(revoked=authorities.revoked, certificate=files)
    assert code(server, "open/a", authorities.worker, "-T", __file__) in (200, 201)
    load = Load(lambda: code(server, "open/a", authorities.worker, protocol))

    def shown():
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.https}", "-cert", authorities.worker.chain,
             "-key", authorities.worker.key, "-alpn", "http/1.1"], input="", capture_output=True, text=True)
        text = done.stdout.partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]
        return "".join(text.split())

    try:
        for _ in range(2):
            load.more()
            # The server's own certificate; for a moment it is not its key's.
            fresh = authorities.root.issue("next", "localhost", names=loopback_names())
            os.replace(fresh.chain, files.chain)
            os.replace(fresh.key, files.key)
            expected = "".join(fresh.pem.decode().splitlines()[1:-1])
            wait_until(lambda: shown() == expected, what="the new certificate")
            load.more()
        # The authorities: another is added, and the lists with it.
        second = Certificate(authorities.directory, "second", "second", is_authority=True)
        newcomer = second.issue("newcomer", "newcomer", names=[uri(SPIFFE)])
        assert code(server, "open/a", newcomer, protocol) is None
        authorities.write("revoked.pem", authorities.root.revocations() + authorities.middle.revocations()
                          + second.revocations())
        authorities.write("trusted.pem", authorities.root.pem + second.pem)
        wait_until(lambda: code(server, "open/a", newcomer, protocol) == 200, what="the new authority")
        load.more()
    finally:
        load.end()
    assert set(load.responses) == {200}, (len(load.responses), set(load.responses))




def test_no_request_of_a_heavy_load_fails(serve, authorities):
    """The server's certificate, the authorities and the lists change all the time, under connections that come and
    go (h2load shows no certificate) and under one that stays, of a client with a certificate."""
    authorities.revoke()
    files = Certificate(authorities.directory, "served", "localhost", issuer=authorities.root, names=loopback_names())
    server = serve(required=False, revoked=authorities.revoked, certificate=files)
    assert code(server, "open/a", authorities.worker, "-T", __file__) in (200, 201)
    url = server.url("/b/photos/o/open/a", "https")
    loads = [subprocess.Popen(["h2load", "-n2000", "-c100", "-r10", *options, url], stdout=subprocess.PIPE, text=True)
             for options in (["-m10"], ["--h1"])]
    kept = [subprocess.Popen(["curl", "-sS", "--insecure", protocol, *authorities.worker.options, "-o", os.devnull,
                              "-w", "%{http_code} %{num_connects}\n", f"{url}?n=[1-4000]"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for protocol in ("--http1.1", "--http2")]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ends = [pool.submit(process.communicate) for process in loads + kept]
        rotations = 0
        while not all(end.done() for end in ends):
            fresh = authorities.root.issue("next", "localhost", names=loopback_names())
            # For a moment it is not its key's.
            os.replace(fresh.chain, files.chain)
            os.replace(fresh.key, files.key)
            more = Certificate(authorities.directory, "more", f"more {rotations}", is_authority=True)
            authorities.write("trusted.pem", more.pem + authorities.root.pem)
            authorities.revoke(authorities.middle.issue("gone", "gone"))
            loaded = server.output().count("certificate loaded")
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: server.output().count("certificate loaded") > loaded, what="the new certificate")
            rotations += 1
        responses = [end.result() for end in ends]
    assert rotations >= 5
    for text, _ in responses[:2]:
        assert re.search(r"2000 succeeded, 0 failed, 0 errored, 0 timeout", text), text
    for text, errors in responses[2:]:
        lines = text.splitlines()
        # One connection, which was verified again each time.
        assert set(lines) == {"200 1", "200 0"} and lines.count("200 1") == 1 and len(lines) == 4000, (set(lines), errors)


class Kept:
    """One connection of a client, over which it asks again and again."""

    def __init__(self, server, certificate, transport):
        self.transport, self.stream = transport, -1
        if transport == "h2":
            self.peer = Peer(("127.0.0.1", server.https), tls=True, certificate=certificate).handshake()
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(certificate.chain, certificate.key)
        self.http = http.client.HTTPSConnection("127.0.0.1", server.https, context=context, timeout=30)
        self.http.connect()
        # It must not come back by another connection.
        self.http.auto_open = 0

    def ask(self, name, query=""):
        """The status, and the problem's code where there is one."""
        path = f"/b/photos/o/{name}{query}"
        if self.transport == "h2":
            self.stream += 2
            self.peer.request(self.stream, path=path)
            response = self.peer.response(self.stream, goaway=True)
            status, body = response.status, response.body
            # The window that it took.
            self.peer.send(WINDOW_UPDATE, payload=word(len(body)))
        else:
            self.http.request("GET", path)
            response = self.http.getresponse()
            status, body = response.status, response.read()
        return status, json.loads(body)["code"] if status >= 400 else None

    @property
    def is_ending(self):
        """Whether the server has announced that it accepts no further request on this connection."""
        if self.transport == "h2":
            return any(frame.type == GOAWAY for frame in self.peer.seen)
        return self.http.sock is None

    def close(self):
        if self.transport == "h2":
            self.peer.close()
        else:
            self.http.close()


@pytest.mark.parametrize("transport", ["http1", "h2"])
@pytest.mark.parametrize("how", ["revoked", "authority gone"])
def test_open_connections_are_verified_again(serve, authorities, tmp_path, transport, how):
    other = authorities.middle.issue("other", "other", names=[uri(SPIFFE)])
    authorities.revoke()
    keys = tmp_path / "link-keys"
    keys.write_text(new_key("k1"))
    server = serve(revoked=authorities.revoked, more=f'links: {{ keys: "{keys}" }}\n')
    first, second, third = (Kept(server, authorities.worker, transport) for _ in range(3))
    assert first.ask("media/a") == second.ask("media/a") == third.ask("media/a") == (404, "object-not-found")
    # Other revocations do not affect it.
    authorities.revoke(other)
    wait_until(lambda: code(server, "media/a", other) is None, what="the new list")
    assert first.ask("media/a") == (404, "object-not-found") and not first.is_ending
    if how == "revoked":
        authorities.revoke(authorities.worker)
    else:
        authorities.write("trusted.pem", Certificate(authorities.directory, "heir", "heir", is_authority=True).pem)
    wait_until(lambda: code(server, "media/a", authorities.worker) is None, what="the end of the trust")
    # Whatever it asks for: a new connection would not come about.
    link = sign(keys, "/b/photos/o/open/a")
    for connection, name, query in [(first, "media/a", ""), (second, "open/a", ""), (third, "open/a", "?" + link.split("?")[1])]:
        assert connection.ask(name, query) == (401, "certificate-untrusted")
        assert connection.is_ending
        connection.close()
    wait_until(lambda: "was revoked, or its authority is gone" in server.output(), what="the access line")


@pytest.mark.parametrize("transport", ["http1", "h2"])
def test_a_connection_does_not_outlive_its_certificate(serve, authorities, transport):
    """An expired certificate no longer authorizes requests on an open connection."""
    short = authorities.middle.issue("short", "short", names=[uri(SPIFFE)], ends=3)
    server = serve()
    connection = Kept(server, short, transport)
    assert connection.ask("media/a") == (404, "object-not-found")
    wait_until(lambda: code(server, "media/a", short) is None, what="the certificate's end")
    assert connection.ask("open/a") == (401, "certificate-expired")
    assert connection.is_ending
    connection.close()


def test_a_connection_ends_before_its_certificate(serve, authorities):
    """A client that has renewed its certificate reconnects and is never rejected."""
    short = authorities.middle.issue("short", "short", names=[uri(SPIFFE)], ends=8)
    server = serve()
    connections = {transport: Kept(server, short, transport) for transport in ("http1", "h2")}
    while connections:
        for transport, connection in list(connections.items()):
            assert connection.ask("media/a") == (404, "object-not-found")
            if connection.is_ending:
                connections.pop(transport).close()
    assert code(server, "media/a", short) == 404


def test_an_authority_may_end_first(serve, authorities):
    """A connection does not outlive an intermediate certificate either."""
    brief = authorities.root.issue("brief", "brief", is_authority=True, ends=3)
    worker = brief.issue("below", "below", names=[uri(SPIFFE)])
    server = serve()
    connection = Kept(server, worker, "http1")
    assert connection.ask("media/a") == (404, "object-not-found")
    wait_until(lambda: code(server, "media/a", worker) is None, what="the authority's end")
    assert connection.ask("media/a") == (401, "certificate-expired")
    connection.close()
