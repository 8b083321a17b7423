"""Sends requests of every kind to one server and measures its memory after each round.

    python3 Tests/EndToEnd/support/soak.py --seconds 3600 --output .soak

runs all cases in turn for an hour and writes memory.csv and memory.svg. The tests in test_soak.py repeat each case
until a round does not increase the memory.
"""

import argparse
import itertools
import json
import pathlib
import re
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

import upstreams
from program import Server

RULES = """rules_version = '2';
service firebase.storage {
  match /b/{bucket}/o {
    match /open/{name=**} { allow read, write; }
    // These conditions need the stored object, or the size and digest of the upload.
    match /checked/{name=**} {
      allow get: if resource.size < 1000000000;
      allow create: if request.resource.size < 1000000000 && request.resource.md5Hash != '';
    }
  }
}
"""
BODY = b"x" * 300
LARGE = 2 << 20
#: Concurrent requests on a connection.
DEPTH = 16
#: The permitted growth of memory for each request, in bytes.
ALLOWED = 100


class Client:
    """An HTTP/1.1 client with pipelining over one connection, which it reopens when the server closes it."""

    def __init__(self, port, secure=False):
        self.port, self.secure, self.socket, self.buffer = port, secure, None, b""

    def connect(self):
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.secure:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            raw = context.wrap_socket(raw)
        self.socket, self.buffer = raw, b""

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None

    def reconnect(self):
        self.close()
        self.connect()

    def reset(self):
        """Closes with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def more(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.buffer += data

    def response(self, is_head):
        """Reads one response; returns its status."""
        while b"\r\n\r\n" not in self.buffer:
            self.more()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        lines = head.lower().split(b"\r\n")
        status = int(lines[0].split()[1])
        fields = dict(line.split(b": ", 1) for line in lines[1:])
        length = int(fields.get(b"content-length", 0))
        if not is_head and status not in (204, 304):
            assert b"transfer-encoding" not in fields, head
            while len(self.buffer) < length:
                self.more()
            self.buffer = self.buffer[length:]
        if fields.get(b"connection") == b"close":
            self.close()
        return status

    def send(self, requests):
        """Sends requests (method, target, fields, body); returns their statuses."""
        statuses = []
        for begin in range(0, len(requests), DEPTH):
            batch = requests[begin:begin + DEPTH]
            while batch:
                if self.socket is None:
                    self.connect()
                self.socket.sendall(b"".join(encoded(*request) for request in batch))
                while batch and self.socket:
                    statuses.append(self.response(batch[0][0] == "HEAD"))
                    batch = batch[1:]
        return statuses


def encoded(method, target, fields=(), body=None):
    lines = [f"{method} {target} HTTP/1.1", "host: soak", *fields]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


def plain(method, path, expected, fields=(), body=None):
    """A case that repeats one request. A case returns its number of requests if that is not `count`."""
    def run(client, bucket, count):
        target = f"/b/{bucket}/o/{path}"
        statuses = client.send([(method, target, fields, body)] * count)
        assert set(statuses) <= set(expected), (method, path, set(statuses))
    return run


def put_and_delete(client, bucket, count):
    for _ in range(count // DEPTH):
        names = [f"/b/{bucket}/o/open/gone-{index}" for index in range(DEPTH // 2)]
        assert set(client.send([("PUT", name, (), BODY) for name in names])) <= {200, 201}
        assert set(client.send([("DELETE", name, (), None) for name in names])) == {204}


def abandoned_upload(client, bucket, count):
    """Sends half of a body, then resets the connection."""
    for number in range(count // 4):
        client.reconnect()
        target = f"/b/{bucket}/o/{'open' if number % 2 else 'checked'}/half"
        head = f"PUT {target} HTTP/1.1\r\nhost: soak\r\ncontent-length: {200_000 if number % 4 else 20}\r\n\r\n"
        client.socket.sendall(head.encode() + b"x" * (100_000 if number % 4 else 10))
        client.reset()
    return count // 4


def abandoned_download(client, bucket, count):
    """Reads the first bytes of a large object, then resets the connection."""
    for _ in range(count // 4):
        client.reconnect()
        client.socket.sendall(encoded("GET", f"/b/{bucket}/o/open/large"))
        try:
            assert client.socket.recv(100)
        except ConnectionResetError:
            # A busy server may close the connection first.
            pass
        client.reset()
    return count // 4


def abandoned_requests(target):
    """A case that sends many requests in one write, then resets the connection before any response."""
    def run(client, bucket, count):
        for _ in range(count // 50):
            client.reconnect()
            client.socket.sendall(encoded("GET", f"/b/{bucket}/o{target}") * 50)
            client.reset()
    return run


def h2load(*arguments, names=("small",)):
    """A case over HTTP/2 with `count` requests, eight at a time, for each of `names` in turn."""
    def run(client, bucket, count):
        root = f"http{'s' if client.secure else ''}://127.0.0.1:{client.port}/b/{bucket}/o/open/"
        urls = [root + name for name in names]
        done = subprocess.run(["h2load", f"-n{count}", "-c1", "-m8", *arguments, *urls], capture_output=True, text=True,
                              timeout=120)
        failed = re.search(r"(\d+) 4xx, (\d+) 5xx", done.stdout)
        # A connection to the upstream may end while a request is being sent. rclone has no conditional requests, so the
        # gateway does not retry a write to it.
        assert f"{count} done" in done.stdout and failed[1] == "0" and int(failed[2]) * 100 <= count, done.stdout
    return run


MISSING = ["if-match: \"other\""]
CASES = {
    "get": plain("GET", "open/small", [200]),
    "get-decided": plain("GET", "checked/small", [200]),
    "get-range": plain("GET", "open/small", [206], ["range: bytes=1-9"]),
    "get-unmodified": plain("GET", "open/small", [304], ["if-none-match: *"]),
    "get-denied": plain("GET", "closed/small", [403]),
    "get-missing": plain("GET", "open/none", [404]),
    "head": plain("HEAD", "open/small", [200]),
    "metadata": plain("GET", "open/small?metadata", [200]),
    "list": plain("GET", "open/", [200]),
    "list-denied": plain("GET", "closed/", [403]),
    "list-rejected": plain("GET", "open/?pageToken=x", [400]),
    "put": plain("PUT", "open/small", [200], [], BODY),
    "put-decided": plain("PUT", "checked/small", [200, 201], [], BODY),
    "put-streamed": plain("PUT", "open/streamed", [200, 201],
                          ["transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0"]),
    "put-denied": plain("PUT", "closed/small", [403], [], BODY),
    "put-rejected": plain("PUT", "open/small", [400], ["content-md5: AAAAAAAAAAAAAAAAAAAAAA=="], BODY),
    "patch": plain("PATCH", "open/small", [200], [], b'{"cacheControl":"no-store"}'),
    "patch-rejected": plain("PATCH", "open/small", [400], [], b'{"size":"1"}'),
    "patch-denied": plain("PATCH", "closed/small", [403], [], b'{}'),
    "put-and-delete": put_and_delete,
    "delete-missing": plain("DELETE", "open/none", [404]),
    "delete-denied": plain("DELETE", "closed/small", [403]),
    "sign-rejected": plain("POST", "open/small?sign", [501], [], b'{}'),
    "malformed-name": plain("GET", "open/%ff", [400]),
    "abandoned-upload": abandoned_upload,
    "abandoned-download": abandoned_download,
    "abandoned-requests": abandoned_requests("/open/small"),
    "abandoned-lists": abandoned_requests("?prefix=open/"),
}

class TLSFront:
    """nghttpx in front of an upstream, so that the gateway connects to it over TLS."""

    def __init__(self, directory, port):
        self.directory, self.port = pathlib.Path(directory), upstreams.free_port()
        self.certificate, key = self.directory / "cert.pem", self.directory / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", str(key), "-out", str(self.certificate)], check=True, capture_output=True)
        self.process = subprocess.Popen(
            ["nghttpx", "-f", f"127.0.0.1,{self.port}", "-b", f"127.0.0.1,{port}", "--conf=/dev/null", "--workers=1",
             "--errorlog-file=/dev/null", "--no-via", "--add-x-forwarded-for", "--no-ocsp",
             "--header-field-buffer=64K", str(key), str(self.certificate)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None, "nghttpx does not start"
                time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait(20)


class Setting:
    """Buckets of every kind: `directory`, `gcs` and `s3`, the last two also over TLS."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.stores = [upstreams.FakeGCSServer(self.directory), upstreams.Rclone(self.directory)]
        self.fronts = []
        (self.directory / "soak.rules").write_text(RULES)
        self.buckets = f"  directory: {{ directory: {{ path: {self.directory}/objects }} }}\n"
        for store in self.stores:
            self.buckets += f"  {store.kind}: {{ {store.store()} }}\n"
            directory = self.directory / f"{store.kind}-tls"
            directory.mkdir()
            front = TLSFront(directory, store.port)
            self.fronts.append(front)
            store.make_bucket("photos-tls")
            described = store.store(endpoint=f"https://127.0.0.1:{front.port}", bucket="photos-tls")
            self.buckets += (f"  {store.kind}-tls: {{ {described}, "
                             f"tls: {{ certificateAuthorities: {front.certificate} }} }}\n")
        self.extra = "log: { level: error, access: false }\n"
        self.names = ["directory", *(name for store in self.stores for name in (store.kind, f"{store.kind}-tls"))]
        self.body = self.directory / "body"
        self.body.write_bytes(BODY)

    def prepare(self, client):
        for name in self.names:
            for target, body in (("open/small", BODY), ("checked/small", BODY), ("closed/small", None),
                                 ("open/large", bytes(LARGE))):
                if body is not None:
                    statuses = client.send([("PUT", f"/b/{name}/o/{target}", (), body)])
                    assert statuses[0] in (200, 201), (name, target, statuses)

    def stop(self):
        for process in self.fronts + self.stores:
            process.stop()


def anonymous_memory(pid):
    """The anonymous resident memory of a process in bytes."""
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise KeyError("RssAnon")


def main():
    """Runs the mixed load and plots the memory of the server."""
    options = argparse.ArgumentParser(description=main.__doc__)
    options.add_argument("--seconds", type=int, default=3600)
    options.add_argument("--output", type=pathlib.Path, default=pathlib.Path(".soak"))
    options = options.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        setting = Setting(directory)
        server = Server(pathlib.Path(directory) / "server", buckets=setting.buckets, extra=setting.extra,
                        rules=setting.directory / "soak.rules")
        clients = [Client(server.http), Client(server.https, secure=True)]
        samples, done, begin = [], 0, time.monotonic()
        try:
            setting.prepare(clients[0])
            for case, name, client in itertools.cycle(itertools.product(CASES.values(), setting.names, clients)):
                case(client, name, 100)
                done += 100
                samples.append((time.monotonic() - begin, done, anonymous_memory(server.process.pid)))
                if samples[-1][0] > options.seconds:
                    break
        finally:
            server.stop()
            setting.stop()
    with open(options.output / "memory.csv", "w") as file:
        file.write("seconds,requests,bytes\n")
        file.writelines(f"{at:.1f},{count},{held}\n" for at, count, held in samples)
    (options.output / "memory.svg").write_text(plot(samples))
    half = samples[len(samples) // 2]
    growth = (samples[-1][2] - half[2]) / max(1, samples[-1][1] - half[1])
    print(json.dumps({"requests": done, "mebibytes": round(samples[-1][2] / 2**20, 1),
                      "bytes_a_request_in_the_second_half": round(growth, 2)}))
    return growth > ALLOWED


def plot(samples):
    """Plots the memory over time as SVG."""
    width, height, margin = 900, 300, 50
    end, top = samples[-1][0], max(held for _, _, held in samples) * 1.1
    points = " ".join(f"{margin + at / end * (width - 2 * margin):.1f},{height - margin - held / top * (height - 2 * margin):.1f}"
                      for at, _, held in samples)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
            f'<rect width="{width}" height="{height}" fill="white"/>'
            f'<polyline points="{points}" fill="none" stroke="#1f6feb" stroke-width="1.5"/>'
            f'<path d="M{margin} {margin}V{height - margin}H{width - margin}" fill="none" stroke="#555"/>'
            f'<text x="{margin}" y="{margin - 10}">{top / 2**20:.0f} MiB</text>'
            f'<text x="{width - margin}" y="{height - margin + 20}" text-anchor="end">{end / 60:.0f} min, '
            f'{samples[-1][1]} requests</text></svg>\n')


if __name__ == "__main__":
    sys.exit(main())
