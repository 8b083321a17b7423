"""Upload sessions on a bucket of Google Cloud Storage that two gateways share."""

import hashlib
import random
import signal
import subprocess

import pytest

import upstreams
from program import BINARY, wait_until
from secret_words import secret
from sessions import Session, append, begin, complete, problem
from wire import Wire

DATA = hashlib.shake_256(b"cloud").digest(6_000_000)


@pytest.fixture
def gcs(tmp_path):
    running = upstreams.GCSModel(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def gateways(gcs, launch, tmp_path):
    """Two gateways with the same keys and the same bucket."""
    done = subprocess.run([str(BINARY), "uploads", "new-key", "k1"], capture_output=True, text=True, check=True)
    (tmp_path / "upload.keys").write_text(done.stdout)
    secret(done.stdout.split()[1])
    options = {"buckets": f"  photos: {{ {gcs.store()} }}\n", "extra": f"uploads: {{ keys: {tmp_path}/upload.keys }}\n"}
    return [launch(**options), launch(**options)]


class Anywhere(Session):
    """A session whose requests go to one gateway or another."""

    def at(self, server):
        self.wire = Wire(server)
        return self


def left(gcs):
    """What upload sessions have left at the service, except for their states and the times until which these are kept."""
    hidden = [name for name in gcs.names(".sluice/") if name.endswith(".data")]
    return hidden + [one for one in gcs.model.sessions.values() if not one["made"] and one["content"]]


def killed(server):
    server.stop(signal.SIGKILL)
    server.start()


def test_an_upload_continues_at_another_gateway(gcs, gateways):
    first, second = gateways
    session = Anywhere(Wire(first), Wire(first).put("big", DATA[:1_000_000], complete(False)))
    request = append(first, session.path, 1_000_000, 4_000_000)
    request.send(DATA[1_000_000:3_000_000])
    wait_until(lambda: first.metrics()['sluice_uploads_staged_bytes{bucket="photos"}'] >= 1_000_000, what="the bytes")
    killed(first)
    request.close()
    offset = session.at(second).offset()
    assert 1_000_000 <= offset <= 3_000_000
    assert session.patch(offset, DATA[offset:offset + 1_500_000]).status == 204
    # The killed gateway comes back, and the other one is killed.
    killed(second)
    offset += 1_500_000
    assert session.at(first).offset() == offset
    Wire(first).missing("big")
    assert Wire(first).call("GET", "/b/photos/o").json["items"] == []
    assert session.patch(offset, DATA[offset:], last=True).status == 201
    assert session.at(second).patch(len(DATA), None, last=True).status == 201
    assert Wire(second).get("big").body == DATA
    assert [name for name, _ in gcs.model.commits] == ["big"] and left(gcs) == []


def test_a_cancelled_upload_leaves_nothing(gcs, gateways):
    first, second = gateways
    session = Anywhere(Wire(first), Wire(first).put("o", DATA[:1_000_000], complete(False)))
    assert session.at(second).cancel().status == 204
    assert gcs.names(".sluice/") == [] and left(gcs) == []
    for server in gateways:
        problem(session.at(server).head(method="GET"), 404, "upload-not-found")


def test_a_refused_upload_leaves_nothing(gcs, gateways):
    first, _ = gateways
    gcs.put("photos", "there", b"old")
    session = begin(Wire(first), "new", DATA[:1_000_000], ("If-None-Match", "*"))
    gcs.put("photos", "new", b"faster")
    assert session.patch(1_000_000, DATA[1_000_000:1_500_000], last=True).status == 412
    assert left(gcs) == [] and gcs.content("new") == b"faster"
    assert [name for name, _ in gcs.model.commits] == ["there", "new"]
    found = problem(session.patch(1_500_000, b"x"), 409, "upload-conflict")
    assert "type" not in found and "refused: precondition-failed" in found["detail"], found


def test_a_long_append_reports_its_progress(gateways):
    first, second = gateways
    session = Anywhere(Wire(first), Wire(first).put("long", b"x", complete(False)))
    size = 96 << 20
    request = append(first, session.path, 1, size, more=[("Upload-Draft-Interop-Version", "8")])
    # The state is written after every 64 MiB.
    for _ in range(84):
        request.send(DATA[:1 << 20])
    status, fields = request.head()
    assert status == 104 and "location" not in fields, fields
    reported = int(fields["upload-offset"])
    assert 64 << 20 <= reported <= 1 + (84 << 20)
    # What was reported is there at another gateway.
    first.stop(signal.SIGKILL)
    request.close()
    assert reported <= session.at(second).offset() <= 1 + (84 << 20)


def test_random_kills_lose_nothing(gcs, gateways):
    chance = random.Random(5)
    for turn in range(2):
        name, offset = f"o{turn}", 0
        data = DATA[:chance.randrange(2_000_000, 4_000_000)]
        session = Anywhere(Wire(gateways[0]), Wire(gateways[0]).put(name, None, complete(False)))
        while offset < len(data):
            server = chance.choice(gateways)
            size = min(chance.choice([500, 70_000, 900_000, 2_000_000]), len(data) - offset)
            sent = chance.choice([size, chance.randrange(size + 1)])
            request = append(server, session.path, offset, size)
            request.send(data[offset:offset + sent])
            durable = offset
            if sent == size:
                assert request.head()[0] == 204
                durable += size
            if chance.randrange(3) == 0:
                killed(server)
            request.close()
            now = session.at(chance.choice(gateways)).offset()
            assert durable <= now <= offset + sent
            offset = now
        assert session.at(chance.choice(gateways)).patch(offset, None, last=True).status == 201
        assert gcs.content(name) == data
    assert len(gcs.model.commits) == 2 and left(gcs) == []
