"""The requests that the steps of an upload session cost at S3 and Google Cloud Storage: at the gateway of the previous
step, and at another one."""

import hashlib
import re
import subprocess

import pytest

import upstreams
from fault_proxy import FaultProxy
from program import BINARY
from secret_words import secret
from sessions import Session, begin, problem
from wire import Wire

MIB = 1 << 20
DATA = hashlib.shake_256(b"requests").digest(MIB) * 48
#: Requests that carry the object's bytes.
BYTES = ("part", "piece", "chunk")
READ, WRITE = "read state", "write state"


def label(request):
    """What a request does; None for a check of the store's health."""
    method, target = request.method, request.target
    if "max-keys=1" in target or "maxResults=1" in target or ".sluice-probe-" in target:
        return None
    if "partNumber=" in target:
        return "part"
    if "upload_id=" in target:
        return "query" if request.fields.get("content-range", "").startswith("bytes */*") else "chunk"
    if "?uploads=" in target or "uploadType=resumable" in target:
        return "begin"
    kind = {"GET": "read", "DELETE": "delete"}.get(method, "write")
    if ".tail." in target:
        return "piece" if kind == "write" else f"{kind} piece"
    hidden = re.search(r"\.sluice(?:/|%2F)uploads(?:/|%2F)\d+(?:/|%2F)[0-9a-z]+(\.\w+)?", target)
    if hidden:
        return f"{kind} {(hidden[1] or '.state')[1:]}"
    return f"{method} {target}"


@pytest.fixture(params=["s3", "gcs"])
def store(request, tmp_path):
    real = (upstreams.Moto if request.param == "s3" else upstreams.GCSModel)(tmp_path / "upstream")
    proxy = FaultProxy(real.port)
    yield real, proxy
    proxy.stop()
    real.stop()


@pytest.fixture
def wires(store, launch, tmp_path):
    """Two gateways of one bucket."""
    done = subprocess.run([str(BINARY), "uploads", "new-key", "k1"], capture_output=True, text=True, check=True)
    (tmp_path / "upload.keys").write_text(done.stdout)
    secret(done.stdout.split()[1])
    real, proxy = store
    options = {"buckets": f"  photos: {{ {proxy.store(real)} }}\n",
               "extra": f"uploads: {{ keys: {tmp_path}/upload.keys, sweepInterval: 1h }}\n"}
    return [Wire(launch(**options)) for _ in range(2)]


class Costs:
    """A session, and the requests of its steps."""

    def __init__(self, store, wires):
        _, self.proxy = store
        begin(wires[0], "warm", b"x").cancel()
        self.take()
        session = begin(wires[0], "o")
        assert self.take() == [WRITE]
        self.at, self.offset = [session, Session(wires[1], session.created)], 0

    def take(self):
        found = [label(request) for request in self.proxy.requests]
        self.proxy.requests.clear()
        return [name for name in found if name]

    def append(self, gateway, size):
        """Appends at a gateway; returns the requests without those that carry the bytes."""
        body = DATA[self.offset:self.offset + size]
        assert self.at[gateway].patch(self.offset, body).status == 204
        self.offset += size
        return [name for name in self.take() if name not in BYTES]

    def content(self, wires):
        done = self.at[0].patch(self.offset, None, last=True)
        assert done.status == 201, done
        assert wires[0].get("o").body == DATA[:self.offset]


@pytest.mark.parametrize("size", [16 * MIB, 6 * MIB])
def test_an_append_costs_two_requests_and_three_at_another_gateway(store, wires, size):
    """6 MiB do not fill a part of S3: a tail remains, which its owner does not read back."""
    costs = Costs(store, wires)
    found = costs.append(0, size)
    while "begin" not in found:
        # It stays in the tail.
        assert found == [READ, WRITE]
        found = costs.append(0, size)
    assert found == [READ, "begin", WRITE, WRITE]
    assert costs.append(0, size) == [WRITE, WRITE]
    found = costs.append(1, size)
    assert [name for name in found if name != "read piece"] == [READ, WRITE, WRITE]
    costs.content(wires)


def test_an_append_after_the_offset_was_queried_elsewhere(store, wires):
    """The gateway finds out by the write that fails, not by a read before it."""
    costs = Costs(store, wires)
    costs.append(0, 8 * MIB)
    assert costs.append(0, 8 * MIB) == [WRITE, WRITE]
    assert costs.at[1].offset() == costs.offset
    assert costs.take() == [READ, WRITE]
    # It may have been this write, so the state is read to find out; then it is claimed.
    assert costs.append(0, 8 * MIB) == [WRITE, READ, READ, WRITE, WRITE, WRITE]
    assert costs.append(0, 8 * MIB) == [WRITE, WRITE]
    costs.content(wires)


def test_a_former_owner_does_not_overwrite(store, wires):
    costs = Costs(store, wires)
    costs.append(0, 8 * MIB)
    costs.append(1, 8 * MIB)
    # The first gateway knows an older offset.
    found = problem(costs.at[0].patch(8 * MIB, DATA[:8 * MIB]), 409, "upload-offset-mismatch")
    assert found["expected-offset"] == 16 * MIB
    costs.take()
    assert costs.append(0, 8 * MIB) == [WRITE, WRITE]
    costs.content(wires)


def test_a_small_append_costs_two_requests(store, wires):
    costs = Costs(store, wires)
    for _ in range(3):
        assert costs.append(0, 10_000) == [READ, WRITE]
    assert costs.append(1, 10_000) == [READ, WRITE, WRITE]
    costs.content(wires)


def test_the_offset_costs_one_read_and_two_requests_at_another_gateway(store, wires):
    costs = Costs(store, wires)
    costs.append(0, 10_000)
    for gateway, cost in ((0, [READ]), (1, [READ, WRITE]), (1, [READ]), (0, [READ, WRITE])):
        assert costs.at[gateway].offset() == costs.offset
        assert costs.take() == cost


def test_an_append_after_the_end_at_another_gateway(store, wires):
    """The gateway that owned the session learns of its end."""
    for ends in ("cancelled", "finished"):
        costs = Costs(store, wires)
        costs.append(0, 8 * MIB)
        if ends == "cancelled":
            assert costs.at[1].cancel().status == 204
            problem(costs.at[0].patch(costs.offset, DATA[:8 * MIB]), 404, "upload-not-found")
        else:
            assert costs.at[1].patch(costs.offset, None, last=True).status == 201
            found = problem(costs.at[0].patch(costs.offset, DATA[:8 * MIB]), 409, "upload-conflict")
            assert found["type"].endswith("#completed-upload")
