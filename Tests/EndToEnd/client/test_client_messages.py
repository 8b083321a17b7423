"""What errors say: the right side, what could be typed again, what to do, and no secrets."""

import json
import os
import resource
import signal
import subprocess

import pytest

from faults import Status
from program import BINARY, free_port

HIDDEN = "hidden-secret"


def rules(tmp_path, name):
    path = tmp_path / "storage.rules"
    path.write_text("rules_version = '2';\nservice firebase.storage { match /b/{b}/o {\n"
                    f"  match /open/{{n=**}} {{ allow read, write; }} match /{name} {{ allow read; }} }} }}\n")
    return str(path)


@pytest.mark.parametrize("source, target, denied", [
    ("photos/closed", "sluice://photos/open", "sluice://photos/closed"),
    ("photos/open", "sluice://photos/closed", "sluice://photos/closed"),
    ("absent/x", "./local", "sluice://absent/x"), ("photos/closed", "./local", "sluice://photos/closed")])
def test_sync_names_the_side_that_failed(client, launch, tmp_path, source, target, denied):
    gateway = launch(rules=rules(tmp_path, "x"))
    status, out, err = client.run("sync", "--json", source, target, environment={"SLUICE_URL": gateway.url("")})
    first = json.loads(out.splitlines()[0])
    assert status in (3, 4) and first["source"] == denied and err.startswith(f"sluice: {denied}: ")


def test_objects_of_another_gateway_are_urls(client, launch):
    second = launch()
    client.fine("put", "-", "photos/far/a b%", given="1")
    target = f"{second.url('')}/b/photos/o/"
    [line] = client.lines("cp", "photos/far/a b%", target)
    assert line["source"] == "sluice://photos/far/a b%" and line["target"] == f"{target}a%20b%25"
    assert client.fine("cat", line["target"]) == "1"
    lines = client.lines("sync", target, "sluice://photos/near")
    assert lines[0]["source"] == f"{target}a%20b%25" and lines[0]["target"] == "sluice://photos/near/a b%"
    status, _, err = client.run("sync", target, target)
    assert status == 1 and f"{second.url('')}/b/photos/o/ and " in err


def shell(client, command):
    done = subprocess.run(command.replace("sluice", f"'{BINARY}'", 1), shell=True, cwd=client.home, capture_output=True,
                          text=True, env=client.environment(), timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_closed_standard_streams(client):
    # What an event descriptor accepts, if that gets the number of a stream.
    client.fine("put", "-", "photos/closed/a", given="\x01" + "\x00" * 7)
    for closed in (">&-", "<&- >&-"):
        for verb in ("cat photos/closed/a", "ls photos/closed", "stat photos/closed/a"):
            status, _, err = shell(client, f"sluice {verb} {closed}")
            assert status == 2 and "standard output: Bad file descriptor" in err
        assert shell(client, f"sluice cat photos/closed/a {closed} 2>&-")[0] == 2
    assert shell(client, "sluice cat photos/closed/a photos/closed/none 2>&-")[0] == 3
    for closed in ("<&-", "<&- >&-"):
        status, _, err = shell(client, f"sluice put - photos/closed/b {closed}")
        assert status == 2 and "Standard input can't be read: Bad file descriptor" in err
    assert client.run("stat", "photos/closed/b")[0] == 3
    (client.home / "file").write_text("y")
    assert shell(client, "sluice put file photos/closed/b <&- >&- 2>&-") == (0, "", "")
    assert client.fine("cat", "photos/closed/b") == "y"


@pytest.mark.parametrize("verb", [["cat"], ["stat", "--json"], ["ls", "--json"], ["rm", "--json"], ["get", "--json"]])
def test_secrets_of_urls_are_not_printed(client, verb):
    for url in (f"{client.url}/b/photos/o/a?X-Signature={HIDDEN}", f"http://user:{HIDDEN}@127.0.0.1:1/b/photos/o/a",
                f"{client.url}/b/photos/o/a#{HIDDEN}"):
        status, out, err = client.run(*verb, url)
        assert status == 64 and "/b/photos/o/a" in err and HIDDEN not in out + err
    status, out, err = client.run("put", "--json", f"https://host/x?token={HIDDEN}", "photos/a")
    assert status == 2 and "https://host/x" in err and HIDDEN not in out + err
    status, out, err = client.run("sync", "a", "b", f"https://host/x?token={HIDDEN}")
    assert status == 64 and "https://host/x?…" in err and HIDDEN not in out + err
    status, out, err = client.run("cp", f"https://host/x?token={HIDDEN}", "./a")
    assert status == 64 and HIDDEN not in out + err


def test_files_that_say_they_are_empty(client):
    client.fine("put", "/proc/self/status", "photos/proc/status.txt")
    assert client.fine("cat", "photos/proc/status.txt").startswith("Name:\tsluice")
    (client.home / "empty.json").write_bytes(b"")
    client.fine("put", "empty.json", "photos/proc/empty")
    [found] = client.lines("stat", "photos/proc/empty")
    assert (found["size"], found["contentType"]) == (0, "application/json")


def test_names_do_not_break_lines(client):
    for name in ("a\nsluice: all is well", "b\x1b[2J"):
        status, _, err = client.run("put", name, "photos/lines/")
        assert status == 2 and len(err.splitlines()) == 1 and "\x1b" not in err
    status, _, err = client.run("get", "photos/lines/none", "x\ny/")
    assert status == 3 and len(err.splitlines()) == 1


def test_names_that_are_not_utf8(client):
    (client.home / "tree").mkdir()
    for name in (b"tree/fine", b"tree/n\xff"):
        with open(os.path.join(os.fsencode(client.home), name), "w") as file:
            file.write("1")
    running = subprocess.run([os.fsencode(BINARY), b"put", b"tree/n\xff", b"photos/utf8/"], cwd=client.home,
                             env=client.environment(), capture_output=True, timeout=60)
    assert running.returncode == 64 and b"not UTF-8" in running.stderr
    status, _, err = client.run("put", "-R", "tree", "photos/utf8")
    assert status == 2 and "UTF-8" in err and client.fine("ls", "photos/utf8") == "fine\n"


@pytest.mark.parametrize("status, code, advice", [
    (302, 6, "check the URL"), (429, 6, "fewer --jobs"), (503, 6, "try again later"), (500, 6, "again later")])
def test_responses_without_a_problem(through, proxy, status, code, advice):
    proxy.fault(Status(status, {"location": "http://127.0.0.1:1/"}), method="GET", times=None)
    found, _, err = through.run("cat", "photos/x", "--retry-time", "0")
    assert found == code and advice in err and str(status) in err


def test_a_refused_connection(client):
    port = free_port()
    status, _, err = client.run("ls", "photos", "--retry-time", "0", "--url", f"http://127.0.0.1:{port}")
    assert status == 6 and f"http://127.0.0.1:{port}" in err and "refused" in err and "SLUICE_URL" in err


@pytest.mark.parametrize("url", ["http://[bad", "ftp://host", "127.0.0.1:8080", "http://host/?x=1"])
def test_invalid_urls_are_wrong_usage(client, url):
    status, _, err = client.run("ls", "photos", "--url", url)
    assert status == 64 and "SLUICE_URL" in err and "?x" not in err


def test_errors_name_the_file(client, gateway):
    absent = str(client.home / "absent.pem")
    for option in ("--cacert", "--cert"):
        status, _, err = client.run("ls", "photos", option, absent, "--url", f"https://127.0.0.1:{gateway.https}")
        assert status == 2 and err == f"sluice: {option} {absent}: No such file or directory.\n"
    status, _, err = client.run("ls", "photos", "--token-file", absent)
    assert status == 4 and absent in err and "No such file" in err
    (client.home / "token").write_text("two words\n")
    status, _, err = client.run("ls", "photos", "--token-file", "token")
    assert status == 4 and "token" in err and "two words" not in err and "has no token" in err


def test_a_full_disk_names_the_file(client):
    client.fine("put", "-", "photos/full", given="x" * 100_000)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    for target in ("back.bin", "out/"):
        running = client.start("get", "photos/full", target, stderr=-1, preexec_fn=limit)
        err = running.communicate(timeout=60)[1].decode()
        shown = "back.bin" if target == "back.bin" else "out/full"
        assert running.returncode == 2 and f"{shown} can't be written" in err
        assert ".part" not in err and "/proc" not in err


@pytest.mark.parametrize("verb", ["put", "get", "cp", "mv"])
def test_the_usage_shows_the_target(client, verb):
    usage = [line for line in client.fine(verb, "--help").splitlines() if line.startswith("USAGE:")]
    assert usage and "target>" in usage[0]
    status, _, err = client.run(verb)
    assert status == 64 and "target>" in err
