"""`sluice serve` without a configuration file."""

import os
import pty
import signal
import subprocess

import pytest

from program import BINARY, curl, free_port, sluice, status, wait_until

RULES = """rules_version = '2';
service firebase.storage { match /b/site/o { match /{name=**} { allow read; } } }
"""


@pytest.fixture
def serve(tmp_path):
    """Runs `sluice serve` in a directory, on a terminal; returns the URL, and a function that returns what it printed."""
    started = []

    def start(*arguments):
        address = f"127.0.0.1:{free_port()}"
        terminal, other = pty.openpty()
        process = subprocess.Popen(
            [BINARY, "serve", *map(str, arguments), "--listen", address, "--set", "listen.operator=null"],
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=other, stderr=other)
        os.close(other)
        os.set_blocking(terminal, False)
        started.append((process, terminal))
        printed = bytearray()

        def output():
            try:
                printed.extend(os.read(terminal, 65536))
            except (BlockingIOError, OSError):
                pass
            return printed.decode()

        wait_until(lambda: "listening" in output() or process.poll() is not None, what="the listener")
        assert process.poll() is None, output()
        return f"http://{address}", output
    yield start
    for process, terminal in started:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        os.close(terminal)


def test_a_directory_is_a_bucket(serve, tmp_path):
    url, output = serve("photos/", "--open")
    file = tmp_path / "a.txt"
    file.write_text("hello")
    # The commands of the banner.
    wait_until(lambda: " -T FILE " in output(), what="the banner")
    banner = output()
    assert f"{url}/b/photos/o/" in banner and "none: everybody" in banner
    line = next(line for line in banner.splitlines() if " -T FILE " in line)
    curl("--fail", *line.split("curl ")[1].replace("FILE", str(file)).split())
    assert b'"a.txt"' in curl("--fail", f"{url}/b/photos/o/")
    assert curl("--fail", f"{url}/b/photos/o/a.txt") == b"hello"


def test_a_directory_with_rules_and_a_name(serve, tmp_path):
    (tmp_path / "My Files").mkdir()
    (tmp_path / "site.rules").write_text(RULES)
    url, output = serve("My Files", "--bucket", "site", "--rules", "site.rules")
    wait_until(lambda: f"Rules:   {tmp_path}/site.rules" in output(), what="the banner")
    assert status(f"{url}/b/site/o/a") == 404
    assert status("-X", "PUT", "-d", "x", f"{url}/b/site/o/a") in (401, 403)


def test_a_file_is_a_configuration(serve, tmp_path):
    (tmp_path / "sluice.yaml").write_text("rules: none\nbuckets: { a: { directory: { path: data } } }\n")
    url, output = serve("sluice.yaml")
    assert status(f"{url}/b/a/o/x") == 404 and "Try:" not in output()


def test_flags_are_enough(serve, tmp_path):
    url, _ = serve("--open", "--set", f"buckets.a.directory.path={tmp_path}/data")
    assert status(f"{url}/b/a/o/x") == 404


@pytest.mark.parametrize("arguments, text", [
    (["{0}/photos/"], "--open"),
    (["{0}/Photos/", "--open"], "give --bucket NAME"),
    (["{0}/photos/", "--open", "--rules", "x"], "exclude each other"),
    (["--bucket", "x", "--config", "y"], "requires a directory"),
    ([], "No configuration"),
])
def test_wrong_usage(tmp_path, arguments, text):
    code, _, error = sluice("serve", *[argument.format(tmp_path) for argument in arguments])
    assert code == 64 and text in error
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_there(tmp_path):
    code, _, error = sluice("serve", tmp_path / "absent.yaml")
    assert code == 1 and "absent.yaml: error: can't be opened" in error


def test_a_directory_is_served_without_a_configuration_file(serve, tmp_path, monkeypatch):
    """--open does not open the buckets of another configuration."""
    (tmp_path / "closed.rules").write_text("rules_version = '2';\nservice firebase.storage { }\n")
    other = tmp_path / "other.yaml"
    other.write_text("rules: closed.rules\nbuckets: { other: { directory: { path: other } } }\n")
    monkeypatch.setenv("SLUICE_CONFIG", str(other))
    url, output = serve("photos/", "--open")
    assert status(f"{url}/b/photos/o/x") == 404
    wait_until(lambda: "Rules:   none: everybody" in output(), what="the banner")
    assert status(f"{url}/b/other/o/x") == 404 and not (tmp_path / "other").exists()
    code, _, error = sluice("serve", f"{tmp_path}/photos/", "--open", "--config", other)
    assert code == 64 and "without a configuration file: leave out --config" in error
    code, _, error = sluice("serve", other, "--config", other)
    assert code == 64 and "Give one configuration" in error


def test_files_that_would_not_be_served_are_not_hidden(serve, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "a.txt").write_text("hello")
    code, _, error = sluice("serve", full, "--open")
    assert code == 64 and "has files, but is not a bucket's directory" in error and "put -R" in error
    assert [path.name for path in full.iterdir()] == ["a.txt"]
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    (tmp_path / "disk" / ".DS_Store").write_text("hidden")
    url, _ = serve("disk", "--open")
    assert status(f"{url}/b/disk/o/x") == 404


def test_a_missing_configuration_names_the_ways():
    code, _, error = sluice("serve")
    assert code == 64 and all(way in error for way in ("--config FILE", "SLUICE_CONFIG", "serve DIR", "--set buckets."))


def test_findings_have_lines_of_their_own_on_a_terminal(serve, tmp_path):
    (tmp_path / "s.rules").write_text(RULES.replace("/b/site/", "/b/another/"))
    _, output = serve("site/", "--rules", "s.rules")
    wait_until(lambda: "  finding:" in output() and "warning: " in output(), what="the finding")
    lines = output().replace("\r", "").splitlines()
    place = lines.index("  finding:")
    assert lines[place + 1].startswith("    ") and "warning: " in lines[place + 1], lines
    assert "\\n" not in output()
