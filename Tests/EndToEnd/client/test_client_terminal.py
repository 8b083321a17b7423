"""What is shown on a terminal, and what is not."""

import os
import re

import pytest

CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@pytest.fixture
def files(client):
    for name in ("one.bin", "two.bin"):
        (client.home / name).write_bytes(os.urandom(12 << 20))
    return ["one.bin", "two.bin"]


@pytest.mark.parametrize("columns", [60, 40, 200])
def test_lines_fit(client, files, columns):
    status, shown = client.on_terminal("put", *files, "photos/terminal/", columns=columns)
    assert status == 0 and "\x1b[" in shown
    lines = [line for line in re.split(r"[\r\n]+", CONTROL.sub("", shown)) if line]
    assert all(len(line) < columns for line in lines), lines
    assert any(line.startswith("one.bin") and "MiB/s" in line for line in lines)
    assert any(line.startswith("Total 2/2") for line in lines)


def test_the_total_is_that_of_all_directories(client, files):
    for name in files:
        (client.home / name[:3]).mkdir()
        (client.home / name).rename(client.home / name[:3] / name)
    status, shown = client.on_terminal("put", "-R", "one", "two", "photos/total/", columns=80)
    assert status == 0 and "Total 2/2" in shown and "24.0 MiB" in shown


def test_one_file_has_one_line(client, files):
    status, shown = client.on_terminal("get", "photos/terminal/none", "back.bin")
    assert status == 3 and "no such object" in shown
    client.fine("put", "one.bin", "photos/single")
    status, shown = client.on_terminal("get", "photos/single", "back.bin")
    assert status == 0 and "Total" not in shown and "12.0 MiB" in shown


def test_a_dumb_terminal(client, files):
    status, shown = client.on_terminal("put", *files, "photos/dumb/", term="dumb")
    assert status == 0 and "\x1b" not in shown and "one.bin" in shown and "Total" in shown
    assert not re.search(r"\r(?!\n)", shown.replace("\r\r", "\r"))


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_no_progress(client, files, option):
    status, shown = client.on_terminal("put", *files, "photos/quiet/", option)
    assert status == 0 and "\x1b" not in shown and "MiB/s" not in shown


def test_names_do_not_control_the_terminal(client):
    client.fine("put", "-", "photos/evil/\x1b[31mred", given="x")
    status, shown = client.on_terminal("ls", "photos/evil")
    assert status == 0 and "\x1b" not in shown and "red" in shown
    status, shown = client.on_terminal("ls", "photos/evil/\x1b[31mnone")
    assert status == 3 and "\x1b[31m" not in shown
