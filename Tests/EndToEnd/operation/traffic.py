"""A gateway with directories and a bucket in S3, and clients that give each panel of the dashboard something to show."""

import http.client
import http.server
import json
import random
import threading
import urllib.parse

from collector import Collector
from fault_proxy import FaultProxy
from faults import Status
from program import Server, new_token
from upstreams import Moto

RULES = """rules_version = '2';
service firebase.storage {
  match /b/{bucket}/o {
    match /{name} { allow read, write; }
    match /album/{name=**} { allow read, write%s; }
  }
}
"""
#: The shadow rules deny what the rules allow.
SHADOW = ": if request.method != 'delete'"
BUCKETS = ["photos", "archive", "cloud"]
LARGE = bytes(range(256)) * 4096


class Hook(http.server.BaseHTTPRequestHandler):
    """A webhook that takes everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


class Deployment:
    """The gateway, its service of S3 behind a proxy that can fail, and its collector of spans."""

    def __init__(self, directory):
        directory.mkdir(exist_ok=True)
        self.service = Moto(directory)
        self.proxy = FaultProxy(self.service.port)
        self.collector = Collector()
        self.sink = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        threading.Thread(target=self.sink.serve_forever, args=(0.05,), daemon=True).start()
        self.token, entry = new_token("sync")
        (directory / "storage.rules").write_text(RULES % "")
        (directory / "shadow.rules").write_text(RULES % SHADOW)
        buckets = "".join(f"  {name}: {{ directory: {{ path: {directory}/{name} }} }}\n" for name in BUCKETS[:2])
        entry = entry.replace(" }", ", group: batch }")
        self.server = Server(
            directory / "gateway", rules=f"{directory}/storage.rules", threads=2,
            buckets=f"{buckets}  cloud: {{ {self.proxy.store(self.service)}, cache: {{ freshness: 1h }} }}\n",
            extra=f"shadowRules: {directory}/shadow.rules\ntokens:\n{entry}\ncallers:\n  batch: {{ requests: 1 }}\n"
            + f"events: {{ hook: {{ url: \"http://127.0.0.1:{self.sink.server_address[1]}/\", buckets: [photos] }} }}\n"
            + f"cache: {{ directory: {directory}/cache, size: 256MiB, reserve: 0 }}\n"
            + self.collector.configuration(", sampleRatio: 0.5"))
        self.proxy.fault(Status(503), target="/broken", times=None)

    def stop(self):
        self.server.stop()
        self.proxy.stop()
        self.service.stop()
        self.collector.server.shutdown()
        self.sink.shutdown()
        self.sink.server_close()


class Client(threading.Thread):
    """Sends requests of all kinds until `stop`. `pause` is in seconds, after each."""

    def __init__(self, deployment, seed, pause):
        super().__init__(daemon=True)
        self.deployment, self.random, self.pause = deployment, random.Random(seed), pause
        self.ended = threading.Event()
        self.connection = None

    def stop(self):
        self.ended.set()
        self.join()

    def call(self, method, path, body=None, **fields):
        """Sends a request over the client's connection; returns the response, without its body."""
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.deployment.server.http, timeout=30)
        self.connection.request(method, path, body, {name.replace("_", "-"): value for name, value in fields.items()})
        response = self.connection.getresponse()
        response.read()
        if response.will_close:
            self.connection.close()
            self.connection = None
        return response

    def run(self):
        kinds = {self.upload: 5, self.download: 12, self.look: 4, self.list: 3, self.change: 2, self.delete: 2, self.move: 2,
                 self.meet_a_limit: 2, self.be_denied: 2, self.meet_a_fault: 1, self.continue_later: 1}
        while not self.ended.wait(self.pause):
            self.random.choices(list(kinds), kinds.values())[0](f"/b/{self.random.choice(BUCKETS)}/o")

    def name(self):
        return f"album/{self.random.randrange(30)}.jpg"

    def upload(self, bucket):
        self.call("PUT", f"{bucket}/{self.name()}", LARGE[:self.random.randrange(60_000)], content_type="image/jpeg")

    def move(self, bucket):
        """A large body in each direction."""
        self.call("PUT", f"{bucket}/large", LARGE)
        self.call("GET", f"{bucket}/large")

    def download(self, bucket):
        self.call("GET", f"{bucket}/{self.name()}")

    def look(self, bucket):
        self.call("HEAD", f"{bucket}/{self.name()}")

    def list(self, bucket):
        self.call("GET", f"{bucket}?prefix=album/")

    def change(self, bucket):
        self.call("PATCH", f"{bucket}/{self.name()}", json.dumps({"customMetadata": {"seen": "yes"}}),
                  content_type="application/json")

    def delete(self, bucket):
        self.call("DELETE", f"{bucket}/{self.name()}")

    def be_denied(self, bucket):
        self.call("GET", f"{bucket}/private/plan")
        self.call("GET", f"{bucket}/{self.name()}", authorization="Bearer of-nobody")

    def meet_a_limit(self, bucket):
        for _ in range(3):
            self.call("GET", f"{bucket}/{self.name()}", authorization=f"Bearer {self.deployment.token}")
        self.call("GET", f"{bucket}/{self.name()}", long="x" * 40_000)

    def meet_a_fault(self, _):
        self.call("GET", "/b/cloud/o/broken")

    def continue_later(self, bucket):
        """Uploads in two requests. The session that waits meanwhile is shown."""
        path = f"{bucket}/{self.name()}"
        begun = self.call("PUT", path, LARGE[:5000], upload_complete="?0")
        session = urllib.parse.urlsplit(begun.headers["location"]).path
        self.ended.wait(1)
        self.call("PATCH", session, LARGE[5000:], upload_complete="?1", upload_offset="5000",
                  content_type="application/partial-upload")
