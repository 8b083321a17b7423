"""docs/install.md: the commands of the sections "Rules and callers" and "TLS", as they are written, on a machine that has
nothing but the package. Without systemd and root, `systemctl` and `chown` are stand-ins, and files and ports are elsewhere."""

import os
import re
import signal
import subprocess

import pytest

import secret_words
from program import BINARY, ROOT, Server, free_port, wait_until

PAGE = (ROOT / "docs/install.md").read_text()
REPORT = '\\n%{stderr}status %{http_code}\\n'


def section(title):
    """The text below a heading."""
    return re.search(rf"(?ms)^## {title}\n(.*?)(?=^## )", PAGE)[1]


def code(text, language):
    return re.search(rf"(?ms)^```{language}\n(.*?)^```", text)[1]


def commands(text):
    """The indented lines outside of blocks of code."""
    plain = re.sub(r"(?ms)^```.*?^```", "", text)
    return "\n".join(line[4:] for line in plain.splitlines() if line.startswith("    "))


class Machine(Server):
    """A service with the files of the package, and a shell of its administrator."""

    def __init__(self, directory):
        self.directory, self.environment, self.first, self.process = directory, {}, 200, None
        self.arguments = ()
        self.http, self.https, self.operator = free_port(), free_port(), free_port()
        self.etc, self.home = directory / "etc", directory / "home"
        for folder in (self.etc, self.home, directory / "bin"):
            folder.mkdir()
        self.config = self.etc / "sluice.yaml"
        for name in ("sluice.yaml", "storage.rules"):
            (self.etc / name).write_text(self.local((ROOT / "deploy" / name).read_text()))
        (directory / "bin/sluice").symlink_to(BINARY.resolve())
        for name, does in {"chown": "", "systemctl": f'echo "$1" >>{directory}/asked; exit'}.items():
            (directory / f"bin/{name}").write_text(f"#!/bin/sh\n{does}\n")
            (directory / f"bin/{name}").chmod(0o755)
        (self.home / ".curlrc").write_text(f'silent\nmax-time = 20\nwrite-out = "{REPORT}"\n')
        self.start()

    def local(self, text):
        for public, own in {"/var/lib/sluice": self.directory / "data", "/etc/sluice": self.etc,
                            "127.0.0.1:8080": f"127.0.0.1:{self.http}", "127.0.0.1:8443": f"127.0.0.1:{self.https}",
                            "localhost:8443": f"localhost:{self.https}",
                            "127.0.0.1:9090": f"127.0.0.1:{self.operator}"}.items():
            text = text.replace(public, str(own))
        return text

    def run(self, text):
        """Runs commands; returns their output and the statuses that curl received."""
        environment = {"PATH": f"{self.directory}/bin:{os.environ['PATH']}", "HOME": str(self.home), "CURL_HOME": str(self.home)}
        done = subprocess.run(["bash", "-e", "-c", self.local(text)], cwd=self.home, env=environment,
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr, [int(number) for number in re.findall(r"^status (\d+)$", done.stderr, re.M)]

    def asked(self):
        """What systemctl was asked for since the last call."""
        file = self.directory / "asked"
        words = file.read_text().split()
        file.unlink()
        return words


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    machine.stop()


def test_the_commands_of_the_installation(machine):
    assert machine.run(commands(section("Install")).splitlines()[-1])[1] == [403]
    rules = section("Rules and callers")
    new, *rest = commands(rules).splitlines()
    output, _ = machine.run(f'{new}; echo "token $token"')
    token = secret_words.secret(re.search(r"^token (\S+)$", output, re.M)[1])
    digest = re.search(r'sha256: "?([0-9a-f]{64})', output)[1]
    machine.config.write_text(machine.local(re.sub("0{64}", digest, code(rules, "yaml"))))
    (machine.etc / "storage.rules").write_text(code(rules, "rules"))
    check, reload, *uploads = rest
    machine.run(f"{check}\n{reload}")
    assert machine.asked() == ["reload"]
    os.kill(machine.process.pid, signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in machine.output(), what="the reload")
    output, statuses = machine.run(f"token={token}\n" + "\n".join(uploads))
    assert statuses == [201, 200] and "forest.jpg" in output, output

    tls = section("TLS")
    *make, restart, download = commands(tls).splitlines()
    text = machine.config.read_text()
    at = text.index("listen:\n") + len("listen:\n")
    machine.config.write_text(text[:at] + machine.local(code(tls, "yaml")) + text[at:])
    machine.run("\n".join([*make, restart]))
    assert machine.asked() == ["restart"]
    assert (machine.etc / "tls/key.pem").stat().st_mode & 0o777 == 0o640
    machine.stop()
    machine.start()
    output, statuses = machine.run(download)
    assert statuses == [200] and "forest.jpg" in output, output
