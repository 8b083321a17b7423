"""The read cache from outside: its configuration, the endpoints of the operator's listener, `sluice cache`, reloads and logs."""

import json
import os
import signal
import urllib.error
import urllib.request

import pytest

from program import curl, log_lines, sluice, status, wait_until
from upstreams import GCSModel

#: More than 64 KiB, which `validate` reads past the cache, and more than one slice.
OLD, NEW = b"old." * 500_000, b"new." * 500_000
RESULTS = ["hit", "validated", "miss", "partial", "stale", "bypass", "replaced"]


@pytest.fixture
def cached(launch, tmp_path):
    """Starts a gateway whose bucket `photos` is one of a service, with `freshness`."""
    upstream = GCSModel(tmp_path / "upstream")

    def start(freshness):
        server = launch(buckets=f"  photos: {{ {upstream.store()}, cache: {{ freshness: {freshness} }} }}\n",
                        extra=f"cache: {{ directory: {tmp_path}/cache, size: 256MiB, reserve: 0 }}\n")
        server.upstream = upstream
        return server

    yield start
    upstream.stop()


def call(server, method, path, **fields):
    """A request to the operator's listener; returns its status and JSON."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.operator}{path}", method=method, headers=fields)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def report(server):
    code, found = call(server, "GET", "/cache")
    assert code == 200, found
    return found


def results(server):
    """The results of reads of the bucket that are not 0."""
    (bucket,) = report(server)["buckets"]
    assert list(bucket["requests"]) == RESULTS and bucket["bucket"] == "photos"
    return {name: count for name, count in bucket["requests"].items() if count}


def expect(server, **wanted):
    """Waits for these results: a read is counted when its response has ended."""
    wait_until(lambda: results(server) == wanted, what=lambda: results(server))


def verb(server, *arguments):
    return sluice("cache", *arguments, "--operator", f"http://127.0.0.1:{server.operator}")


def read(server, name="a/b c.jpg"):
    return curl(server.url("/b/photos/o/" + urllib.request.quote(name, safe="")))


def is_open(server):
    wait_until(lambda: report(server)["state"] == "open", what="the cache's disk")
    return server


def lines(server):
    """The lines of the cache in the log."""
    return [line for line in log_lines(server, "sluice") if line["message"] == "read cache"]


def states(server):
    return [line["metadata"]["state"] for line in lines(server)]


def reload(server, *changes):
    """Replaces texts in the configuration and has it read again."""
    text = server.config.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    count = server.output().count('"configuration reloaded"')
    server.config.write_text(text)
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: server.output().count('"configuration reloaded"') > count, what="the reload")


# MARK: Configuration

BUCKET = 's3: { bucket: b, endpoint: "http://127.0.0.1:9", credentials: anonymous }'


def check(directory, bucket, cache="cache: { directory: ./cache }", rules="none", rules_text=None):
    file = directory / "sluice.yaml"
    file.write_text(f"rules: {rules}\n{cache}\nbuckets: {{ photos: {{ {bucket} }} }}\n")
    if rules_text:
        (directory / rules).write_text(rules_text)
    code, _, errors = sluice("check", file)
    return code, errors


@pytest.mark.parametrize("bucket, cache, fault", [
    (BUCKET + ", cache: { freshness: 30s }", "", "'buckets.photos.cache.freshness' requires 'cache.directory'"),
    (BUCKET + ", cache: { staleIfError: 1h }", "cache: { directory: ./cache }",
     "'buckets.photos.cache.staleIfError' requires 'buckets.photos.cache.freshness'"),
    ("directory: { path: ./photos }, cache: { freshness: validate }", "cache: { directory: ./cache }",
     "'buckets.photos.cache.freshness' does not apply to a directory"),
    ("directory: { path: ./photos }", "cache: { directory: ./photos/cache }", "one inside the other"),
    (BUCKET, "cache: { directory: ./cache, size: 255MiB }", "from 256MiB to 64TiB, found '255MiB'"),
    (BUCKET + ", cache: { freshness: 500ms }", "cache: { directory: ./cache }",
     "expected validate, a duration from 1s to 720h, forever, or null, found '500ms'"),
])
def test_mistakes_are_found(tmp_path, bucket, cache, fault):
    code, errors = check(tmp_path, bucket, cache)
    assert code == 1 and errors.count("error") == 1 and fault in errors, errors


@pytest.mark.parametrize("allow, warns", [("read, write", True), ("delete", True), ("read, create", False)])
def test_check_warns_of_forever_where_objects_may_change(tmp_path, allow, warns):
    rules = "service firebase.storage { match /b/photos/o { match /{name=**} { allow %s: if request.auth != null; } } }" % allow
    code, errors = check(tmp_path, BUCKET + ", cache: { freshness: forever }", rules="storage.rules", rules_text=rules)
    assert code == 0 and ("buckets.photos.cache.freshness: warning: " in errors) == warns, errors
    code, errors = check(tmp_path, BUCKET + ", cache: { freshness: 720h }", rules="storage.rules", rules_text=rules)
    assert code == 0 and "cache" not in errors, errors


def test_check_warns_of_forever_in_an_open_bucket(tmp_path):
    code, errors = check(tmp_path, BUCKET + ", cache: { freshness: forever }")
    assert code == 0 and "buckets.photos.cache.freshness: warning: " in errors


# MARK: What operators see and do

def test_a_gateway_without_a_cache_has_nothing_of_it(launch):
    server = launch()
    assert call(server, "GET", "/cache")[0] == 404 and call(server, "POST", "/cache/purge")[0] == 404
    code, _, errors = verb(server, "show")
    assert code == 1 and "status 404" in errors
    assert "cache" not in server.readiness()[1]
    assert not [name for name in server.metrics() if name.startswith("sluice_cache")]


def test_the_report_and_the_metrics_count_reads(cached):
    server = is_open(cached("1h"))
    server.upstream.put("photos", "a/b c.jpg", OLD)
    expect(server)
    assert read(server) == OLD
    expect(server, miss=1)
    assert read(server) == OLD
    expect(server, miss=1, hit=1)
    found = report(server)
    (bucket,) = found["buckets"]
    assert found["limit"] == 256 << 20 and found["slices"] == 2 and found["fills"] == 0
    assert found["size"] >= len(OLD) and found["writtenBytes"] >= len(OLD)
    assert (bucket["bytesFromCache"], bucket["bytesFromService"]) == (len(OLD), len(OLD))
    assert bucket["knownObjects"] == 1 and bucket["savedRequests"] > 0
    assert "b c.jpg" not in json.dumps(found), "no object's name is at this listener"
    metrics = server.metrics()
    assert metrics['sluice_cache_requests_total{bucket="photos",result="hit"}'] == 1
    assert metrics['sluice_cache_bytes_total{bucket="photos",source="cache"}'] == len(OLD)
    assert metrics["sluice_cache_slices"] == 2 and metrics['sluice_cache_state{state="open"}'] == 1
    code, output, _ = verb(server, "show")
    assert code == 0 and output.startswith("state: open\n")
    assert output.splitlines()[-1].split()[:4] == ["photos", "1", "0", "1"], output
    assert json.loads(verb(server, "show", "--json")[1]) == report(server)
    assert "[+] cache ok" in server.readiness()[1]


def test_forgetting_makes_the_next_read_ask(cached):
    server = is_open(cached("forever"))
    for name in "a/b c.jpg", "other":
        server.upstream.put("photos", name, OLD)
        assert read(server, name) == OLD
        server.upstream.put("photos", name, NEW)
        assert read(server, name) == OLD, "that is what 'forever' means"
    assert verb(server, "forget", "photos", "a/b c.jpg")[:2] == (0, "forgot photos/a/b c.jpg\n")
    assert read(server) == NEW and read(server, "other") == OLD
    assert verb(server, "forget", "photos")[:2] == (0, "forgot photos\n")
    assert read(server, "other") == NEW


def test_purging_removes_everything(cached):
    server = is_open(cached("1h"))
    server.upstream.put("photos", "a/b c.jpg", OLD)
    assert read(server) == OLD and report(server)["slices"] == 2
    assert verb(server, "purge")[:2] == (0, "purged\n")
    found = report(server)
    assert found["slices"] == 0 and found["evictedSlices"]["purged"] == 2, found
    assert read(server) == OLD
    expect(server, miss=2)


@pytest.mark.parametrize("query, code, detail", [
    ("", 400, "names the bucket"),
    ("?name=a", 400, "names the bucket"),
    ("?bucket=photos&nam=a", 400, "no parameter nam"),
    ("?bucket=photos&bucket=photos", 400, "twice"),
    ("?bucket=photos&name=", 400, "needs a value"),
    ("?bucket=photos&name", 400, "needs a value"),
    ("?bucket=photos&name=%zz", 400, "needs a value"),
    ("?bucket=photos&name=%ff", 400, "needs a value"),
    ("?bucket=other", 404, "not cached"),
    ("?bucket=Photos", 404, "not cached"),
])
def test_malformed_requests_forget_nothing(cached, query, code, detail):
    server = cached("1h")
    found, problem = call(server, "POST", "/cache/forget" + query)
    assert found == code and detail in problem["detail"], problem


def test_changes_are_protected_as_others_are(cached, tmp_path):
    file = tmp_path / "operator.token"
    file.write_text("0123456789abcdef\n")
    server = cached("1h")
    assert call(server, "POST", "/cache/purge", Origin="https://page.example")[0] == 403
    assert call(server, "GET", "/cache/purge")[0] == 405 and call(server, "POST", "/cache")[0] == 405
    assert call(server, "GET", "/cache?bucket=photos")[0] == 400 and call(server, "POST", "/cache/purge?bucket=photos")[0] == 400
    server.stop()
    server.arguments = ["--set", f"listen.operatorToken={file}"]
    server.start()
    for path in "/cache/purge", "/cache/forget?bucket=photos":
        assert call(server, "POST", path)[0] == 401
    assert call(server, "GET", "/cache")[0] == 200
    assert verb(server, "purge")[0] == 1
    assert verb(server, "purge", "--token", str(file))[0] == 0
    assert verb(server, "forget", "photos", "--token", str(file))[0] == 0


def test_the_verbs_check_their_arguments(cached):
    server = cached("1h")
    assert verb(server, "forget", "Photos!")[0] == 64 and verb(server, "forget", "photos", "")[0] == 64
    code, _, errors = verb(server, "forget", "other")
    assert code == 1 and "status 404" in errors
    for name in "show", "forget", "purge":
        assert "Example" in sluice("cache", name, "--help")[1]


# MARK: Reload, log, disk

def test_a_reload_changes_the_freshness(cached):
    server = is_open(cached("1h"))
    server.upstream.put("photos", "a/b c.jpg", OLD)
    assert read(server) == OLD
    server.upstream.put("photos", "a/b c.jpg", NEW)
    assert read(server) == OLD
    reload(server, ("freshness: 1h", "freshness: validate"))
    assert read(server) == NEW and read(server) == NEW
    wait_until(lambda: results(server).get("validated"), what=lambda: results(server))
    reload(server, (", cache: { freshness: validate }", ""))
    assert read(server) == NEW
    assert "cache-status" not in curl("-I", server.url("/b/photos/o/a%2Fb%20c.jpg")).decode().lower()
    assert call(server, "POST", "/cache/forget?bucket=photos")[0] == 404
    reload(server, ("credentials: anonymous }", "credentials: anonymous }, cache: { freshness: 1h }"))
    before = results(server).get("hit", 0)
    assert read(server) == NEW and read(server) == NEW
    wait_until(lambda: results(server).get("hit", 0) > before, what=lambda: results(server))


def test_the_keys_of_the_process_take_a_restart(cached):
    server = is_open(cached("1h"))
    reload(server, ("size: 256MiB", "size: 512MiB"))
    wait_until(lambda: [line for line in log_lines(server, "sluice") if line["message"] == "some changes take a restart"
                        and line["metadata"]["keys"] == "cache.size"], what="the warning")
    assert report(server)["limit"] == 256 << 20


def test_each_state_of_the_disk_is_logged_once(cached):
    server = is_open(cached("1h"))
    wait_until(lambda: states(server)[-1:] == ["open"], what="the line")
    assert server.stop() == 0
    assert [state for state in states(server) if state != "opening"] == ["open"]
    for line in lines(server):
        assert line["level"] == "info" and line["metadata"]["directory"].endswith("/cache") and "cause" not in line["metadata"]


def test_a_directory_that_others_may_enter(cached, tmp_path):
    """A private folder in it is used, as in the root of an emptyDir. It is not used if others may enter that, too."""
    folder = tmp_path / "cache"
    folder.mkdir()
    os.chmod(folder, 0o2777)
    server = cached("1h")
    wait_until(lambda: report(server)["state"] == "open", what=lambda: report(server))
    server.upstream.put("photos", "a/b c.jpg", OLD)
    assert read(server) == OLD and read(server) == OLD
    assert os.listdir(folder) == ["sluice-cache"] and os.stat(folder / "sluice-cache").st_mode & 0o777 == 0o700
    assert server.stop() == 0
    os.chmod(folder / "sluice-cache", 0o755)
    server.start()
    wait_until(lambda: report(server)["state"] == "broken", what=lambda: report(server))
    assert "0700" in report(server)["cause"]
    assert read(server) == OLD and read(server) == OLD, "it is served without the disk"
    code, text = server.readiness()
    line, = (line for line in text.splitlines() if line[4:].startswith("cache "))
    assert code == 200 and line.startswith("[-]"), text
    wait_until(lambda: states(server)[-1:] == ["broken"], what="the line")
    assert server.metrics()['sluice_cache_state{state="broken"}'] == 1
    assert "state: broken: " in verb(server, "show")[1]
    assert status(server.url("/b/photos/o/none")) == 404
