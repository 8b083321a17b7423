"""An upload session in a directory bucket whose disk is full at any moment of each step."""

import contextlib
import hashlib
import itertools
import pathlib
import shutil
import signal
import subprocess

import pytest

from directory import leftovers
from program import BINARY, wait_until
from secret_words import secret
from sessions import Session, begin, complete
from wire import Wire

DATA = hashlib.shake_256(b"full disk").digest(400_000)
PAGE = 4096
#: Offsets after each step. The first bytes are in the index; a small append, a large one, and the last one.
STEPS = {"begin": 10, "small": 5_000, "large": 350_000, "commit": len(DATA)}


@pytest.fixture
def server(launch, disk, tmp_path):
    done = subprocess.run([str(BINARY), "uploads", "new-key", "k1"], capture_output=True, text=True, check=True)
    (tmp_path / "upload.keys").write_text(done.stdout)
    secret(done.stdout.split()[1])
    return launch(buckets=f"  photos: {{ directory: {{ path: {disk}/photos }} }}\n", tls=False,
                  extra=f"uploads: {{ keys: {tmp_path}/upload.keys, lifetime: 1h, sweepInterval: 1s }}\n")


def fill(disk, free):
    """Fills the disk except for this number of pages."""
    with open(disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(PAGE))
    with open(disk / "filler", "r+b") as file:
        file.truncate(max(0, file.seek(0, 2) // PAGE - free) * PAGE)


def step(wire, session, name, what):
    """Performs a step; returns the response."""
    start = dict(zip(STEPS, [0, *STEPS.values()]))[what]
    body = DATA[start:STEPS[what]]
    if what == "begin":
        return wire.call("PUT", f"/b/photos/o/{name}", [complete(False), ("Upload-Length", str(len(DATA)))], body)
    return session.patch(start, body, last=what == "commit")


def case(server, disk, what, free, is_killed):
    """One upload whose step has this number of free pages; returns whether it was refused."""
    wire, name, about = Wire(server), f"{what}{free}{is_killed}", (what, free, is_killed)
    session, known = None, 0
    for earlier in itertools.takewhile(lambda each: each != what, STEPS):
        answer = step(wire, session, name, earlier)
        session, known = session or Session(wire, answer), STEPS[earlier]
    fill(disk, free)
    answer = step(wire, session, name, what)
    assert answer.status in (201, 204, 507), (answer, about)
    is_refused = answer.status == 507
    if is_refused:
        answer.is_problem("insufficient-storage")
    else:
        session, known = session or Session(wire, answer), STEPS[what]
    if session:
        # It can be asked about on the full disk too. What was acknowledged is there.
        assert known <= session.offset() <= STEPS[what], about
    if is_killed:
        server.stop(signal.SIGKILL)
    (disk / "filler").unlink()
    if is_killed:
        server.start()
    wait_until(lambda: server.readiness()[0] == 200, what="readiness")
    if not session:
        wire.missing(name)
        session = begin(wire, name, DATA[:10], ("Upload-Length", str(len(DATA))))
    offset = session.offset()
    assert known <= offset <= STEPS[what], about
    if is_refused:
        wire.missing(name)
    if free % 5 == 4:
        # Cancelled instead: nothing of it stays.
        assert session.cancel().status == 204 and session.head().status == 404, about
        if what != "commit" or is_refused:
            wire.missing(name)
    else:
        done = session.patch(offset, DATA[offset:], last=True)
        assert done.status == 201 and wire.get(name).body == DATA, (done, about)
        assert session.cancel().status == 204
    wire.delete(name)
    return is_refused


@pytest.mark.parametrize("is_killed", [False, True], ids=["freed", "killed"])
@pytest.mark.parametrize("what", STEPS)
def test_a_full_disk_at_each_step(server, disk, what, is_killed):
    """Nothing acknowledged is lost. With space again the session continues or is cancelled, and nothing stays."""
    refused = [case(server, disk, what, free, is_killed) for free in (*range(0, 16), 32, 64, 128, 256, 512, 1024)]
    print(f"{what}: {sum(refused)} of {len(refused)} refused")
    assert any(refused) and not all(refused), refused
    assert server.stop() == 0
    assert leftovers(disk / "photos") == []


def test_a_cancellation_on_a_full_disk(server, disk):
    """It succeeds, or nothing of the session is lost."""
    wire = Wire(server)
    for number in range(12):
        session = begin(wire, f"o{number}", DATA[:350_000])
        fill(disk, number % 4)
        answer = session.cancel()
        assert answer.status in (204, 507), answer
        if answer.status == 507:
            assert session.offset() == 350_000
        (disk / "filler").unlink()
        wait_until(lambda: session.cancel().status == 204 or session.head().status == 404, what="the cancellation")
        assert session.head().status == 404
    assert server.stop() == 0
    assert leftovers(disk / "photos") == []


@pytest.fixture
def small(launch, tmp_path):
    """A server whose n-th write to its bucket and all later ones fail, while `small.flag` exists with that number."""
    compiler = shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library, source = tmp_path / "full_disk.so", pathlib.Path(__file__).with_name("full_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O", "-o", str(library), str(source), "-ldl"], check=True)
    running = launch(tls=False, extra="uploads: { lifetime: 10s, sweepInterval: 1s }\n", environment={"LD_PRELOAD": str(library), "FULL_DISK": str(tmp_path / "flag")})
    running.flag = tmp_path / "flag"
    return running


@pytest.mark.parametrize("what", [*STEPS, "cancel"])
def test_each_write_of_a_step_can_fail(small, what):
    wire, refused = Wire(small), 0
    for number in range(60):
        session, known, name = None, 0, f"o{number}"
        for earlier in itertools.takewhile(lambda each: each not in (what, "commit"), STEPS):
            answer = step(wire, session, name, earlier)
            session, known = session or Session(wire, answer), STEPS[earlier]
        small.flag.write_text(str(number))
        answer = session.cancel() if what == "cancel" else step(wire, session, name, what)
        small.flag.unlink()
        assert answer.status in (201, 204, 502, 503, 507), (answer, number)
        wait_until(lambda: small.readiness()[0] == 200, what="readiness")
        if answer.status < 300 and what == "cancel":
            assert session.head().status == 404
            break
        if answer.status < 300:
            session, known = session or Session(wire, answer), STEPS[what]
        else:
            refused += 1
            wire.missing(name)
        if session:
            assert session.offset() >= known, number
            done = session.patch(session.offset(), DATA[session.offset():], last=True)
            assert done.status == 201 and wire.get(name).body == DATA, (done, number)
            assert session.cancel().status == 204
        if answer.status < 300:
            break
    print(f"{what}: {refused} writes refused")
    assert refused and answer.status < 300
    # If even the removal of a refused session can't be written, the sweep removes it later.
    found = lambda: leftovers(small.directory / "photos")
    wait_until(lambda: not found(), 40, lambda: f"the end of {found()}")
    assert small.stop() == 0 and found() == []
