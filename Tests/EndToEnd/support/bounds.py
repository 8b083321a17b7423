"""Bounds of resident memory, and transfers to measure it with."""

import os
import subprocess

MIB = 1 << 20
BOUND = 48 * 1024
FULL = os.environ.get("MEMORY_FULL") == "1"
DOWNLOAD = 1024 * MIB if FULL else 64 * MIB
UPLOAD = 1024 * MIB if FULL else 16 * MIB


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)
    return str(path)


def held(server, report, what):
    peak, now = server.status("VmHWM"), server.status("VmRSS")
    report(f"{what}: peak {peak / 1024:.1f} MiB, now {now / 1024:.1f} MiB")
    assert peak <= BOUND, f"{what}: {peak} KiB"


def many(commands):
    running = [subprocess.Popen(["curl", "-sS", "--fail", "-k", "--max-time", "900", *command, "-o", os.devnull])
               for command in commands]
    assert [process.wait() for process in running] == [0] * len(running)
