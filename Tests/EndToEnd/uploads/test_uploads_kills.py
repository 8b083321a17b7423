"""`kill -9` of gateways at any moment of uploads in several requests, which continue at the other gateway, or after a restart.

UPLOAD_KILLS sets the number of kills for each store (40 here). For an hour of it, with another seed:

    UPLOAD_KILLS=1000 UPLOAD_SEED=2 .venv/bin/pytest -o faulthandler_timeout=9000 Tests/EndToEnd/uploads/test_uploads_kills.py
"""

import base64
import hashlib
import os
import random
import re
import signal
import subprocess
import time

import pytest

import upstreams
from directory import leftovers
from program import BINARY, wait_until
from secret_words import secret
from sessions import Raw, Session, append, complete
from wire import Wire

KILLS = int(os.environ.get("UPLOAD_KILLS", "40"))
SEED = int(os.environ.get("UPLOAD_SEED", "1"))
#: Seconds from the creation of a session until the sweep removes what it left.
LIFETIME = 20
DATA = hashlib.shake_256(b"kills").digest(24 << 20)


class Directory:
    """A directory, whose only gateway is restarted."""

    gateways = 1
    sizes = [0, 10, 5000, 70_000, 300_000, 3_000_000, 12_000_000, 20_000_000]

    def __init__(self, path):
        self.path = path / "photos"

    def config(self):
        return f"directory: {{ path: {self.path} }}"

    def left(self):
        return leftovers(self.path)

    def stop(self):
        pass


class S3:
    gateways = 2
    sizes = Directory.sizes

    def __init__(self, path):
        self.service = upstreams.Moto(path)

    def config(self):
        return self.service.store()

    def left(self):
        # Moto says that each multipart upload began in 2010, so those that were begun without a response are not found.
        # They have no parts.
        body = self.service.call("GET", f"/{self.service.bucket}?uploads")[2].decode()
        uploads = re.findall(r"<UploadId>(.*?)</UploadId><Key>(.*?)</Key>", body)
        assert body.count("<UploadId>") == len(uploads), body
        parts = []
        for upload, key in uploads:
            listed = self.service.call("GET", f"/{self.service.bucket}/{key}?uploadId={upload}")[2]
            parts += re.findall(rb"<PartNumber>\d+</PartNumber>", listed)
        return [name for name in self.service.names() if name.startswith(".sluice/")] + parts

    def stop(self):
        self.service.stop()


class GCS(S3):
    # The model computes a crc32c in Python.
    sizes = [0, 10, 5000, 300_000, 600_000, 1_000_000]

    def __init__(self, path):
        self.service = upstreams.GCSModel(path)

    def left(self):
        names = [name for name, _ in self.service.model.commits]
        assert len(names) == len(set(names)), "an object was made twice"
        # Those without bytes end at the service after a week.
        sessions = [one for one in self.service.model.sessions.values() if not one["made"] and one["content"]]
        return self.service.names(".sluice/") + sessions


class Upload:
    """One upload as its client knows it."""

    def __init__(self, name, size, session, began):
        self.name, self.data, self.session, self.expires = name, DATA[:size], session, began + LIFETIME
        #: Bytes that were reported as stored, and that were sent at most.
        self.acknowledged = self.sent = 0
        self.result = None
        #: Whether its end was requested, which may have been executed without a response.
        self.may_exist = False

    def at(self, server):
        return Session(Wire(server), self.session.created)


class Storm:
    def __init__(self, store, servers, seed):
        self.store, self.servers, self.chance = store, servers, random.Random(seed)
        self.open, self.kills, self.names, self.made, self.what = [], 0, 0, {}, []

    def up(self):
        """A gateway that runs."""
        return self.chance.choice(self.servers)

    def kill(self, server):
        self.kills += 1
        server.stop(signal.SIGKILL)
        server.start()

    def kill_soon(self, server):
        # Not to wait for something, but for any moment of what the gateway is doing.
        time.sleep(self.chance.choice([0, 0.002, 0.01, 0.03, 0.1]) * self.chance.random())
        self.kill(server)

    def settled(self, upload, call):
        """Repeats a request at any gateway while another one's is in its way. None if the session has expired."""
        for _ in range(20):
            answer = call(upload.at(self.up()))
            if answer.status == 404 and time.time() >= upload.expires - 1:
                return None
            # Moto answers 500 for an upload that another request has completed.
            if answer.status not in (409, 502, 503):
                return answer
        raise AssertionError((answer, self.what))

    def begin(self):
        self.names += 1
        name, size = f"k{self.names}", self.chance.choice(self.store.sizes)
        length = [("Upload-Length", str(size))] if self.chance.random() < 0.5 else []
        began = time.time()
        answer = Wire(self.up()).put(name, None, complete(False), *length)
        self.open.append(Upload(name, size, Session(Wire(self.servers[0]), answer), began))

    def check(self, upload):
        """Compares the offset with what the client knows. False if the upload is over."""
        answer = self.settled(upload, lambda session: session.head())
        if answer is None:
            self.expired(upload)
            return False
        assert answer.status == 204, (answer, self.what)
        offset = int(answer["upload-offset"])
        assert upload.acknowledged <= offset <= upload.sent, (upload.acknowledged, offset, upload.sent, self.what)
        upload.acknowledged = offset
        return True

    def expired(self, upload):
        self.open.remove(upload)
        found = Wire(self.up()).get(upload.name)
        assert found.status == 404 or found.body == upload.data
        if found.status == 200:
            self.made[upload.name] = len(upload.data)

    def step(self):
        upload = self.chance.choice(self.open)
        self.what = [upload.name, len(upload.data)]
        if not self.check(upload):
            return
        if not upload.may_exist and self.chance.random() < 0.2:
            Wire(self.up()).missing(upload.name)
        if not upload.may_exist and self.chance.random() < 0.04:
            return self.cancel(upload)
        if upload.acknowledged == len(upload.data):
            return self.finish(upload)
        self.append(upload)

    def append(self, upload):
        offset = upload.acknowledged
        size = min(self.chance.choice([1, 3000, 70_000, 400_000, 2_000_000, 9_000_000]), len(upload.data) - offset)
        sent = self.chance.choice([size, self.chance.randrange(size + 1)])
        is_last = sent == size == len(upload.data) - offset and self.chance.random() < 0.5
        server = self.up()
        self.what += ["append", offset, size, sent, is_last]
        request = append(server, upload.session.path, offset, size, last=is_last)
        upload.sent = max(upload.sent, offset + sent)
        upload.may_exist = upload.may_exist or is_last
        try:
            request.send(upload.data[offset:offset + sent])
            kind = self.chance.choice([0, 0, 1, 2])
            if kind == 0:
                self.kill_soon(server)
            elif kind == 1:
                # Another request, perhaps of the other gateway, while the append is in progress.
                if self.check(upload):
                    self.kill(server)
            elif sent == size:
                status, fields = request.head()
                if status not in (201, 204):
                    # A cut append that arrives late at the other gateway came between, or the session has expired.
                    assert status in (409, 502, 503) or time.time() >= upload.expires - 1, (status, fields, self.what)
                    return
                upload.acknowledged = offset + size
                if is_last:
                    self.finished(upload)
        except OSError:
            # The newer request has ended the connection.
            assert kind == 1, self.what
        finally:
            request.close()

    def finish(self, upload):
        self.what.append("finish")
        upload.may_exist = True
        server = self.up()
        if self.chance.random() < 0.6:
            request = append(server, upload.session.path, len(upload.data), 0, last=True)
            if self.chance.random() < 0.3 and len(self.servers) > 1:
                # Both at once.
                other = append(self.servers[1 - self.servers.index(server)], upload.session.path, len(upload.data), 0, last=True)
            else:
                other = None
            self.kill_soon(server)
            request.close()
            if other:
                other.close()
        self.finished(upload)

    def finished(self, upload):
        """Gets the result, everywhere the same, and compares the object."""
        for server in self.servers:
            answer = self.settled(upload, lambda session: session.patch(len(upload.data), None, last=True))
            if answer is None:
                return self.expired(upload)
            assert answer.status == 201, (answer, self.what)
            upload.result = upload.result or answer.json
            assert answer.json == upload.result, (answer, upload.result, self.what)
        got = Wire(self.up()).get(upload.name)
        assert got.body == upload.data, (len(got.body), self.what)
        assert got["x-object-generation"] == upload.result["generation"], self.what
        md5 = base64.b64encode(hashlib.md5(upload.data).digest()).decode()
        assert upload.result.get("md5Hash", md5) == md5, self.what
        self.made[upload.name] = len(upload.data)
        self.open.remove(upload)

    def cancel(self, upload):
        self.what.append("cancel")
        server = self.up()
        if self.chance.random() < 0.7:
            request = Raw(server, "DELETE", upload.session.path, [])
            self.kill_soon(server)
            request.close()
        answer = self.settled(upload, lambda session: session.cancel())
        assert answer is None or answer.status in (204, 404), (answer, self.what)
        assert upload.at(self.up()).head().status == 404, self.what
        Wire(self.up()).missing(upload.name)
        self.open.remove(upload)

    def run(self, kills):
        while self.kills < kills:
            if len(self.open) < 3:
                self.begin()
            self.step()
        while self.open:
            upload = self.open[0]
            self.what = [upload.name, "the end"]
            if self.check(upload):
                offset = upload.acknowledged
                answer = upload.at(self.up()).patch(offset, upload.data[offset:], last=True)
                upload.sent = len(upload.data)
                if answer.status == 201:
                    self.finished(upload)
                else:
                    assert answer.status in (404, 409, 502, 503), (answer, self.what)
        wait_until(lambda: not self.store.left(), LIFETIME + 30, lambda: f"the sweep of {self.store.left()}")
        page = Wire(self.up()).call("GET", "/b/photos/o?maxResults=1000").json
        names = [item["name"] for item in page["items"]]
        assert names == sorted(self.made)[:len(names)] and ("nextPageToken" in page or len(names) == len(self.made))


@pytest.mark.parametrize("kind", [Directory, S3, GCS])
def test_kills_lose_nothing_and_leave_nothing(kind, launch, tmp_path):
    done = subprocess.run([str(BINARY), "uploads", "new-key", "k1"], capture_output=True, text=True, check=True)
    (tmp_path / "upload.keys").write_text(done.stdout)
    secret(done.stdout.split()[1])
    store = kind(tmp_path / "store")
    try:
        settings = f"{{ keys: {tmp_path}/upload.keys, lifetime: {LIFETIME}s, sweepInterval: 1s, sessions: 0 }}"
        servers = [launch(buckets=f"  photos: {{ {store.config()} }}\n", extra=f"uploads: {settings}\n", tls=False)
                   for _ in range(kind.gateways)]
        storm = Storm(store, servers, SEED)
        storm.run(KILLS)
        print(f"{storm.kills} kills, {storm.names} uploads, {len(storm.made)} objects")
    finally:
        store.stop()
