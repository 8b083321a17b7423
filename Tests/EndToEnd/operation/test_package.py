"""What `make install` installs, which the packages contain: links of the pages, units, man pages. systemd-analyze checks the
units where it is there."""

import configparser
import os
import re
import shutil
import subprocess
import sys

import pytest

from program import BINARY, ROOT

#: What `systemd-analyze security` may report, in tenths.
EXPOSURE = 13
analyze = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The prefix of an installation; the programs start those of the build."""
    built, prefix = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("installed") / "usr"
    for name in ("sluice", "sluice-client"):
        program = built / name
        program.write_text(f'#!/bin/sh\nexec "{BINARY.resolve().with_name(name)}" "$@"\n')
        program.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    subprocess.run(["make", "--no-print-directory", "install", f"DIST={built}", f"PREFIX={prefix}",
                    f"SYSCONFDIR={prefix.parent}/etc"], cwd=ROOT, env=environment, check=True, capture_output=True)
    return prefix


def unit(path):
    """A unit as sections of keys; of repeated keys the last."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(path)
    return parser


def test_the_links_of_the_installed_pages(installed):
    pages = installed / "share/doc/sluice"
    checker = [sys.executable, ROOT / "deploy/package/links.py", pages]
    done = subprocess.run(checker, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Nothing that is linked is left out by mistake: the pages of the repository are there.
    assert {page.name for page in ROOT.glob("docs/*.md")} <= {page.name for page in (pages / "docs").glob("*.md")}
    (pages / "docs/operations.md").rename(pages / "docs/away")
    try:
        done = subprocess.run(checker, capture_output=True, text=True)
        assert done.returncode == 1 and "README.md: docs/operations.md" in done.stderr
    finally:
        (pages / "docs/away").rename(pages / "docs/operations.md")


def test_the_examples_are_installed(installed):
    examples = installed / "share/doc/sluice/examples"
    for folder in ("chart", "kubernetes"):
        here = {file.relative_to(ROOT / "deploy") for file in (ROOT / "deploy" / folder).rglob("*") if file.is_file()}
        assert here and here <= {file.relative_to(examples) for file in examples.rglob("*")}
    for name in ("README.md", "reference.yaml", "grafana/alerts.yaml", "grafana/dashboard.json"):
        assert (examples / name).stat().st_size > 0


def test_each_program_has_a_man_page(installed):
    for program in (installed / "bin").iterdir():
        page = (installed / f"share/man/man1/{program.name}.1").read_text()
        assert re.search(rf"^\.TH {program.name.upper()} 1 ", page, re.M)
        assert re.search(rf"^{program.name} \\- ", page.replace("sluice\\-client", "sluice-client"), re.M)


def test_what_the_units_document_is_installed(installed):
    for name in ("sluice.service", "sluice.socket"):
        for document in unit(installed / f"lib/systemd/system/{name}")["Unit"]["Documentation"].split():
            if document.startswith("file://"):
                file = document.removeprefix("file://")
            else:
                page, section = re.fullmatch(r"man:([\w-]+)\((\d)\)", document).groups()
                file = installed / f"share/man/man{section}/{page}.{section}"
            assert os.path.exists(file), document


def test_the_unit_has_a_directory_for_unix_sockets(installed):
    """The one of the examples, which outlives the service. A socket of sluice.socket is elsewhere, because systemd gives what is
    there to the user of the service. The service sees the users of its peers."""
    service = unit(installed / "lib/systemd/system/sluice.service")["Service"]
    directory = f"/run/{service['RuntimeDirectory']}"
    for file in (ROOT / "docs/operations.md", ROOT / "config/reference.yaml"):
        paths = re.findall(r"  http: unix:(\S+)|as 127.*unix:(\S+?),? ", file.read_text())
        assert paths and {os.path.dirname("".join(path)) for path in paths} == {directory}, (file, paths)
    bound = re.findall(r"ListenStream=(/\S+)", (ROOT / "deploy/sluice.socket").read_text())
    assert bound and {os.path.dirname(path) for path in bound} == {"/run"}
    assert service["RuntimeDirectoryPreserve"] == "yes"
    assert service["RuntimeDirectoryMode"] == "0755"
    assert service["PrivateUsers"] == "no"


@analyze
def test_systemd_takes_the_units(installed):
    units = [installed / f"lib/systemd/system/{name}" for name in ("sluice.service", "sluice.socket")]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    findings = [line for line in done.stderr.splitlines() if "sluice." in line]
    assert done.returncode == 0 and not findings, done.stderr


@analyze
def test_the_exposure_of_the_service_has_a_bound(installed):
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}",
                           installed / "lib/systemd/system/sluice.service"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
