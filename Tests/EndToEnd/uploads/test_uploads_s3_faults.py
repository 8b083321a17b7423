"""S3 upload sessions that another gateway takes over, after a fault at each request of the first one to the store."""

import hashlib
import itertools
import random
import signal
import subprocess
import threading

import pytest

import upstreams
from fault_proxy import FaultProxy
from faults import Cut, Fault, Reset, Stall, Status
from program import BINARY, wait_until
from s3 import FAILED, XML
from secret_words import secret
from sessions import Raw, Session, append, begin, complete
from wire import Wire

DATA = hashlib.shake_256(b"s3 take-over").digest(5_500_000)
#: Offsets after each step: in the state, in a hidden object, in a part, and the whole object.
STEPS = {"begin": 10, "small": 100_000, "large": 5_400_000, "commit": len(DATA)}
#: Seconds from the creation of a session until the sweep removes what it left.
LIFETIME = 30
LIMITS = "attempts: 2, retryDelay: 10ms, maximumRetryDelay: 50ms"
#: For a gateway whose store stalls. A store on a busy machine can be as slow, so the other gateway is patient.
IMPATIENT = LIMITS + ", firstByteTimeout: 500ms, progressTimeout: 1s"


class Kill(Fault):
    """Kills the gateway, before its request reaches the store or after the store has executed it."""

    def __init__(self, server, executed):
        self.server, self.executed, self.done = server, executed, threading.Event()
        self.lock = threading.Lock()

    def now(self):
        # Only once: a request of the sweep can have the fault, too, and the server may have been started again.
        with self.lock:
            if not self.done.is_set():
                self.server.stop(signal.SIGKILL)
                self.done.set()
        raise Cut()

    def before(self, connection, request):
        if not self.executed:
            connection.drop_body(request)
            self.now()
        return False

    def after(self, connection, request, response):
        self.now()


class Late(Fault):
    """Cuts the connection. The store gets the request only when `deliver` is called."""

    def __init__(self, store):
        self.store, self.kept = store, []

    def before(self, connection, request):
        body = b"".join(connection.body)
        fields = {name: value for name, value in request.fields.items() if name != "connection"}
        self.kept.append((request.method, request.target, body, fields))
        raise Cut()

    def deliver(self):
        for method, target, body, fields in self.kept:
            self.store.call(method, target, body, fields)


@pytest.fixture(scope="module")
def moto(tmp_path_factory):
    running = upstreams.Moto(tmp_path_factory.mktemp("upstream"))
    yield running
    running.stop()


class Pair:
    """Two gateways of one bucket, each behind a proxy of its own."""

    def __init__(self, moto, launch, keys, limits):
        self.moto = moto
        self.proxies = [FaultProxy(moto.port) for _ in range(2)]
        extra = f"uploads: {{ keys: {keys}, lifetime: {LIFETIME}s, sweepInterval: 1s, sessions: 0 }}\n"
        self.servers = [launch(buckets=f"  photos: {{ {proxy.store(moto)} }}\n", tls=False,
                               extra=f"{extra}upstream: {{ {each} }}\n")
                        for proxy, each in zip(self.proxies, limits)]
        self.wires = [Wire(server) for server in self.servers]
        for wire in self.wires:
            # What a gateway asks once is asked before.
            session = begin(wire, "warm", b"x")
            assert session.cancel().status == 204

    def left(self):
        hidden = [name for name in self.moto.names() if name.startswith(".sluice/")]
        return hidden + [self.moto.uploads()] * (self.moto.uploads() > 0)

    def is_clean(self):
        wait_until(lambda: not self.left(), LIFETIME + 30, lambda: f"the sweep of {self.left()}")


@pytest.fixture
def pair(moto, launch, tmp_path, request):
    done = subprocess.run([str(BINARY), "uploads", "new-key", "k1"], capture_output=True, text=True, check=True)
    (tmp_path / "upload.keys").write_text(done.stdout)
    secret(done.stdout.split()[1])
    made = Pair(moto, launch, tmp_path / "upload.keys", getattr(request, "param", [LIMITS, LIMITS]))
    yield made
    for proxy in made.proxies:
        proxy.stop()


def result(request, body):
    """Sends the body; returns the status and the fields of the response, or None without one."""
    try:
        request.send(body)
        while True:
            status, fields = request.head()
            if status >= 200:
                return status, fields
    except (OSError, AssertionError):
        return None
    finally:
        request.close()


def one_step(server, session, step, name):
    """Performs a step; returns its result."""
    before = dict(zip(STEPS, [0, *STEPS.values()]))[step]
    body = DATA[before:STEPS[step]]
    fields = [complete(False), ("Content-Length", len(body)), ("Upload-Length", len(DATA))]
    try:
        request = (Raw(server, "PUT", f"/b/photos/o/{name}", fields) if step == "begin"
                   else append(server, session.path, before, len(body), last=step == "commit"))
    except ConnectionError:
        # A request of the sweep had the fault first, and the gateway was killed.
        return None
    return result(request, body)


FAULTS = {
    "500": lambda pair: Status(500, XML, FAILED),
    "503": lambda pair: Status(503, XML, FAILED.replace(b"InternalError", b"SlowDown")),
    "lost request": lambda pair: Reset(0),
    "lost response": lambda pair: Reset(None),
    "timeout": lambda pair: Stall(),
    "late request": lambda pair: Late(pair.moto),
    "killed before": lambda pair: Kill(pair.servers[0], executed=False),
    "killed after": lambda pair: Kill(pair.servers[0], executed=True),
}


def case(pair, fault, step, skip, name):
    """One upload whose step has the fault from its request `skip` on; returns whether there was such a request."""
    first, (one, two), what = pair.servers[0], pair.wires, (step, skip)
    session, known = None, 0
    if step != "begin":
        session = begin(one, name, DATA[:STEPS["begin"]], ("Upload-Length", len(DATA)))
        known = STEPS["begin"]
    for earlier in itertools.takewhile(lambda each: each != step, STEPS):
        if earlier != "begin":
            assert one_step(first, session, earlier, name)[0] == 204, what
            known = STEPS[earlier]
    started = len(pair.proxies[0].requests)
    pair.proxies[0].fault(fault, target=name + r"|\.sluice|uploads", times=None, skip=skip)
    found = one_step(first, session, step, name)
    happened = any(request.fault is fault for request in pair.proxies[0].requests[started:])
    if found is None and isinstance(fault, Stall):
        # The client gave up. The gateway still waits: a completion may take minutes.
        stalled = [request for request in pair.proxies[0].requests[started:] if request.fault is fault]
        # Its sweep may have stalled, too, but not in place of the completion.
        assert any(each.method == "POST" and "?uploadId=" in each.target for each in stalled), (stalled, what)
    elif found is None:
        assert isinstance(fault, Kill) and fault.done.wait(20), what
    elif found[0] < 300:
        known = STEPS[step]
        if step == "begin":
            session = Session(two, Created(found[1]))
    else:
        # A commit that lost its response may be known already.
        assert found[0] in (409, 502, 503, 504), (found, what)
    if session:
        take_over(pair, session, fault, known, step, name, what)
    pair.proxies[0].clear()
    if isinstance(fault, Stall):
        fault.release()
    if isinstance(fault, Kill) and any(request.fault is fault for request in pair.proxies[0].requests[started:]):
        # A request of the sweep may have met the fault, too, and its kill may still be to come.
        assert fault.done.wait(20), what
    if first.process.poll() is not None:
        first.start()
    if session:
        done = session.patch(len(DATA), None, last=True)
        assert done.status == 201, (done, what)
        back = Session(one, session.created)
        # The circuit of the first gateway may be open for a moment.
        again = wait_until(lambda: (answer := back.patch(len(DATA), None, last=True)).status < 500 and answer)
        assert again.status == 201 and again.json == done.json, (again, done, what)
        for wire in pair.wires:
            got = wire.get(name)
            assert got.body == DATA and got["x-object-generation"] == done.json["generation"], what
        assert session.cancel().status == 204 and Session(one, session.created).head().status == 404, what
        assert one.delete(name).status == 204
    else:
        assert wait_until(lambda: (answer := one.get(name)).status < 500 and answer).status == 404, what
    return happened


class Created(dict):
    """The head of a raw response to the creation of a session."""

    status = 201


def take_over(pair, session, fault, known, step, name, what):
    """Continues at the second gateway. What the first one has acknowledged is there; nothing is visible before the end."""
    elsewhere = session.wire = pair.wires[1]
    offset = session.offset()
    assert known <= offset <= STEPS[step], (offset, known, what)
    if step != "commit":
        elsewhere.missing(name)
    middle = max(offset, len(DATA) - 50_000)
    if offset < middle:
        answer = session.patch(offset, DATA[offset:middle])
        assert answer.status == 204 and answer["upload-offset"] == str(middle), (answer, what)
    if isinstance(fault, Late):
        fault.deliver()
        assert session.offset() == middle, what
    answer = session.patch(middle, DATA[middle:], last=True)
    assert answer.status == 201, (answer, what)
    if isinstance(fault, Late):
        fault.deliver()


@pytest.mark.parametrize(("kind", "pair"), [(kind, [IMPATIENT if kind == "timeout" else LIMITS, LIMITS])
                                            for kind in FAULTS], ids=FAULTS, indirect=["pair"])
def test_a_fault_at_each_request(pair, kind):
    """The fault happens at a request and at all after it. The second gateway completes each upload."""
    cases = 0
    for step in STEPS:
        for skip in itertools.count():
            if not case(pair, FAULTS[kind](pair), step, skip, f"{kind.replace(' ', '-')}-{step}-{skip}"):
                break
            cases += 1
        assert skip > 0, f"{step} has sent no request"
    print(f"{kind}: {cases} cases")
    pair.is_clean()


class Storm(Fault):
    """Does one of these faults to some of the requests."""

    def __init__(self, seed, kinds):
        self.chance, self.kinds, self.lock = random.Random(seed), kinds, threading.Lock()

    def pick(self):
        with self.lock:
            return self.chance.choice(self.kinds) if self.chance.random() < 0.15 else Fault()

    def before(self, connection, request):
        connection.chosen = self.pick()
        return connection.chosen.before(connection, request)

    def after(self, connection, request, response):
        connection.chosen.after(connection, request, response)


@pytest.mark.parametrize("pair", [[IMPATIENT, IMPATIENT]], ids=["impatient"], indirect=True)
def test_both_append_at_once(pair):
    """Two clients with the same data, each at a gateway of its own whose store fails now and then."""
    kinds = [Status(500, XML, FAILED), Status(503, XML, FAILED), Reset(0), Reset(None), Stall()]
    for round in range(3):
        name = f"both-{round}"
        session = begin(pair.wires[0], name, None, ("Upload-Length", len(DATA)))
        failures, acknowledged = [], [0]
        for number, proxy in enumerate(pair.proxies):
            proxy.fault(Storm(100 * round + number, kinds), times=None)

        def client(number):
            chance, server = random.Random(10 * round + number), pair.servers[number]
            here = Session(pair.wires[number], session.created)
            for _ in range(12):
                floor = acknowledged[0]
                head = here.head()
                if head.status != 204:
                    assert head.status in (502, 503, 504), head
                    continue
                offset = int(head["upload-offset"])
                if offset < floor:
                    failures.append(f"{number}: {offset} after {floor}")
                end = min(len(DATA), offset + chance.choice([1, 3000, 70_000, 1_000_000, 6_000_000]))
                request = append(server, session.path, offset, end - offset)
                found = result(request, DATA[offset:end])
                if found and found[0] == 204:
                    acknowledged[0] = max(acknowledged[0], int(found[1]["upload-offset"]))
                elif found and found[0] not in (409, 502, 503, 504):
                    failures.append(f"{number}: {found}")

        clients = [threading.Thread(target=client, args=(number,)) for number in range(2)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        for proxy in pair.proxies:
            proxy.clear()
        assert not failures, failures
        offset = Session(pair.wires[1], session.created).offset()
        assert offset >= acknowledged[0]
        done = session.patch(offset, DATA[offset:], last=True)
        assert done.status == 201, done
        assert pair.wires[1].get(name).body == DATA
        assert session.cancel().status == 204
    pair.is_clean()
