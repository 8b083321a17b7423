"""Operation of the S3 listener: what `sluice check` finds, keys, and the end of a busy server."""

import threading

import pytest

import s3_clients
from program import sluice, wait_until
from rulesets import rules


def check(tmp_path, listen="", more="", keys=None, policy="none"):
    """Checks a configuration; returns the status and what was printed to standard error."""
    if keys is not None:
        (tmp_path / "s3-keys").write_text(keys)
        (tmp_path / "s3-keys").chmod(0o600)
    (tmp_path / "sluice.yaml").write_text(
        f"listen: {{ http: 127.0.0.1:8080{listen} }}\nrules: {policy}\n{more}"
        f"buckets: {{ photos: {{ directory: {{ path: {tmp_path}/photos }} }} }}\n")
    status, _, error = sluice("check", tmp_path / "sluice.yaml")
    return status, error


LISTENER = ", s3: { http: 127.0.0.1:9000 }"
KEYS = "s3: { keys: s3-keys }\n"


@pytest.mark.parametrize(("listen", "more", "keys", "finding"), [
    (LISTENER, "", None, "no S3 client can sign: 's3.keys' is missing, and there are no issuers"),
    ("", KEYS, "", "'s3.keys' requires 'listen.s3.http', 'listen.s3.https' or 's3.domains'"),
    (LISTENER, KEYS, None, "s3-keys can't be read: No such file or directory"),
    (LISTENER, KEYS, "\nSLUICEAAAA short alice\n", "line 2: "),
    (LISTENER, "s3: { keys: s3-keys, domains: ['https://s3.example.com'] }\n", "", "expected a host name without a port"),
    (", s3: { http: 127.0.0.1:8080 }", KEYS, "", "'listen.http' and 'listen.s3.http' listen on the same address"),
    (", s3: { https: 127.0.0.1:9443 }", KEYS, "", "'listen.https.certificate' is missing"),
    (LISTENER, KEYS + "callers: { batsh: { requests: 1 } }\n", None, "no caller is of group 'batsh'")])
def test_errors_of_the_configuration(tmp_path, listen, more, keys, finding):
    if "callers" in more:
        keys = s3_clients.Key("bob", "batch").line
    status, error = check(tmp_path, listen, more, keys)
    assert status != 0 and finding in error, error


def test_a_group_of_a_key_has_limits(tmp_path):
    keys = s3_clients.Key("bob", "batch").line
    assert check(tmp_path, LISTENER, KEYS + "callers: { batch: { requests: 1 }, s3: { requests: 1 } }\n", keys)[0] == 0


def test_rules_whose_objects_are_not_listed(tmp_path):
    (tmp_path / "rules").write_text(rules("match /{name} { allow list; allow get: if resource.size < 10; }"))
    for listing, is_found in (("readable", True), ("listed", False)):
        more = f"s3: {{ keys: s3-keys, listing: {listing} }}\n"
        status, error = check(tmp_path, LISTENER, more, "", tmp_path / "rules")
        assert status == 0 and ("lists of S3 clients lack the objects" in error) == is_found, error


def test_a_key_file_that_everybody_can_read(launch, tmp_path):
    key = s3_clients.Key("alice")
    path = s3_clients.write_keys(tmp_path / "keys", key)
    path.chmod(0o644)
    server = launch(s3=True, extra=f"s3: {{ keys: {path} }}\n")
    wait_until(lambda: str(path) in server.output(), what="the warning")
    assert key.secret not in server.output()


@pytest.mark.parametrize("uid", ["", "a b", "#a"])
def test_uids_that_no_key_can_have(uid):
    status, out, error = sluice("s3", "new-key", uid)
    assert status != 0 and not out and error


def test_the_end_of_a_busy_server_loses_nothing(launch, tmp_path):
    """SIGTERM during uploads: what was acknowledged is there after the next start."""
    key = s3_clients.Key("alice")
    server = launch(s3=True, extra=f"s3: {{ keys: {s3_clients.write_keys(tmp_path / 'keys', key)} }}\n")
    stored, enough = [], threading.Event()

    def upload(number):
        s3 = s3_clients.client(server, key)
        for index in range(10_000):
            try:
                s3.put_object(Bucket="photos", Key=f"{number}/{index}", Body=b"x" * index)
            except Exception:
                return
            stored.append((number, index))
            if len(stored) > 50:
                enough.set()

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert enough.wait(60)
    server.stop()
    for thread in threads:
        thread.join()
    server.start()
    s3 = s3_clients.client(server, key)
    for number, index in stored:
        assert s3.head_object(Bucket="photos", Key=f"{number}/{index}")["ContentLength"] == index


def test_a_part_is_copied_to_a_full_disk(launch, tmp_path, disk):
    key = s3_clients.Key("alice")
    server = launch(s3=True, extra=f"s3: {{ keys: {s3_clients.write_keys(tmp_path / 'keys', key)} }}\n", buckets=(
        f"  photos: {{ directory: {{ path: {tmp_path}/photos }} }}\n"
        f"  small: {{ directory: {{ path: {disk}/small }} }}\n"))
    s3 = s3_clients.client(server, key)
    s3.put_object(Bucket="photos", Key="a", Body=bytes(9 << 20))
    where = {"Bucket": "small", "Key": "b"}
    where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
    with s3_clients.fails(507, "InsufficientStorage"):
        s3.upload_part_copy(**where, PartNumber=1, CopySource="photos/a")
    assert "Parts" not in s3.list_parts(**where)
    s3.abort_multipart_upload(**where)
    s3.close()
