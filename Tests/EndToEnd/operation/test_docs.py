"""The pages: their commands run as they are written, their rules compile, their links lead somewhere.

A block ```console is run in every page: lines after `$ ` are commands (`> ` goes on with one), the others are what they
print, where `…` stands for anything. A block ```sh is run in the pages of SCRIPTS. A curl command whose comment has a
status must get that status, any other one below 400. `sluice serve …` serves what follows it on the page.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

from program import BINARY, ROOT, Server, free_port, sluice

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(ROOT.glob("docs/*.md")),
         ROOT / "deploy" / "README.md"]
#: Pages whose blocks ```sh are run too.
SCRIPTS = ["README.md", "docs/http-api.md", "docs/uploads.md", "docs/firebase.md", "docs/s3.md"]
#: Commands that install, build or test; the gateway of the quickstart is started instead.
NOT_RUN = re.compile(r"(make|git|apt-get|sudo) ")
#: The addresses of the pages, and the listener that is behind each.
PORTS = {"127.0.0.1:8080": "http", "127.0.0.1:8443": "https", "127.0.0.1:9090": "operator",
         "127.0.0.1:9000": "s3"}
STATEMENT = re.compile(r"\s*(allow|match|function)\b")


def name(page):
    return str(page.relative_to(ROOT))


def blocks(page, *languages):
    """The code of a page in these languages, in order: the number of its first line, its language and its lines."""
    found, start = [], None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if start is None and line.startswith("```"):
            start, language, lines = number + 1, line[3:].strip(), []
        elif start is not None and line.startswith("```"):
            if language in languages:
                found.append((start, language, lines))
            start = None
        elif start is not None:
            lines.append(line)
    assert start is None, f"{name(page)}: the block of line {start} has no end"
    return found


def commands(language, first, lines):
    """The commands of a block, in order: line number, text and expected output (None: not shown)."""
    found, number = [], first
    for number, line in enumerate(lines, first):
        if language == "console":
            if line.startswith("$ "):
                found.append([number, line[2:], []])
            elif line.startswith("> ") and not found[-1][2]:
                found[-1][1] += "\n" + line[2:]
            else:
                found[-1][2].append(line)
        elif found and found[-1][1].endswith("\\"):
            found[-1][1] += "\n" + line
        elif line.strip() and not line.startswith("#"):
            found.append([number, line, None])
    return found


def pattern(lines):
    """The regular expression for the output of a console block."""
    # On a separate line it stands for any lines.
    parts = [r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*?") + r"\n" for line in lines]
    return re.compile("".join(parts) + r"\n*")


class Page:
    """The environment of a page: a copy of config/ with free ports, and a running gateway."""

    def __init__(self, directory):
        self.directory = directory
        self.ports = {listener: free_port() for listener in PORTS.values()}
        shutil.copytree(ROOT / "config", directory / "config")
        for file in (directory / "config").glob("*.yaml"):
            file.write_text(self.local(file.read_text()))
        programs = directory / "bin"
        programs.mkdir()
        (programs / "sluice").symlink_to(BINARY.resolve())
        (directory / ".curlrc").write_text('silent\nmax-time = 60\nwrite-out = "%{stderr}\\nstatus %{http_code}\\n"\n')
        self.environment = {**os.environ, "CURL_HOME": str(directory), "PATH": f"{programs}:{os.environ['PATH']}"}
        self.gateway = None

    def local(self, text):
        for address, listener in PORTS.items():
            text = text.replace(address, f"127.0.0.1:{self.ports[listener]}")
        return text

    def public(self, text):
        for address, listener in PORTS.items():
            text = text.replace(f"127.0.0.1:{self.ports[listener]}", address)
        return text

    def serve(self, *arguments):
        self.stop()
        self.gateway = Quickstart(self, arguments)

    def stop(self):
        if self.gateway:
            assert self.gateway.stop() == 0, self.gateway.output()
            self.gateway = None

    def run(self, texts):
        """Runs commands in one shell; returns the output of each and the statuses that its curl received."""
        script = "".join(f"{self.local(text)}\nend=$?; printf '\\36%d\\36' $end; printf '\\36%d\\36' $end >&2\n" for text in texts)
        done = subprocess.run(["bash", "-c", script], cwd=self.directory, env=self.environment, capture_output=True,
                              text=True, timeout=120, stdin=subprocess.DEVNULL)
        out, err = done.stdout.split("\36"), done.stderr.split("\36")
        assert len(out) == len(err) == 2 * len(texts) + 1, done.stdout + done.stderr
        for index in range(len(texts)):
            shown = self.public(out[2 * index]).replace("\r", "")
            statuses = [int(number) for number in re.findall(r"^status (\d+)$", err[2 * index], re.M)]
            errors = re.sub(r"\n?status \d+\n", "", err[2 * index])
            yield int(out[2 * index + 1]), shown, errors, statuses


class Quickstart(Server):
    """`sluice serve` as a page has it."""

    def __init__(self, page, arguments):
        self.directory, self.config = page.directory, page.directory / "config" / "quickstart.yaml"
        self.http, self.https, self.operator = (page.ports[listener] for listener in ("http", "https", "operator"))
        self.environment, self.first, self.process = {}, 200, None
        given = [str(page.directory / word) if word == "config/quickstart.yaml" else word for word in arguments]
        if "--config" in given:
            at = given.index("--config")
            self.config = pathlib.Path(given[at + 1])
            del given[at:at + 2]
        self.arguments = [page.local(word) for word in given]
        before = os.getcwd()
        # Paths of flags are relative to where the program starts.
        os.chdir(page.directory)
        try:
            self.start()
        finally:
            os.chdir(before)


def check(location, text, shown, result):
    """Compares the result of a command with the page."""
    status, out, err, statuses = result
    said = f"{location}: {text}\nexit status {status}, HTTP {statuses}\n{out}{err}"
    if shown:
        assert pattern(shown).fullmatch(out.rstrip("\n") + "\n"), f"{said}\nthe page shows\n" + "\n".join(shown)
        return
    wanted = re.search(r"\s# (?:.*\b)?([1-5]\d\d)\b", text)
    if statuses and wanted:
        assert statuses[-1] == int(wanted[1]), said
    else:
        assert all(number < 400 for number in statuses), said
    assert status == 0, said


def runnable():
    """The pages with commands."""
    for page in PAGES:
        languages = ["console"] + ["sh"] * (name(page) in SCRIPTS)
        if blocks(page, *languages):
            yield pytest.param(page, languages, id=name(page))


@pytest.mark.parametrize("page,languages", list(runnable()))
def test_the_commands_of_a_page(tmp_path, page, languages):
    where = Page(tmp_path)
    where.serve()
    ran = 0
    try:
        for first, language, lines in blocks(page, *languages):
            waiting = []
            for number, text, shown in [*commands(language, first, lines), (0, "sluice serve", None)]:
                # A shell for all of the block's commands up to one that serves.
                words = shlex.split(text.replace("\\\n", " "), comments=True) if text.startswith("sluice serve") else []
                if not words and not NOT_RUN.match(text):
                    waiting.append((number, text, shown))
                if not words:
                    continue
                results = where.run([text for _, text, _ in waiting])
                for (at, text, shown), result in zip(waiting, results, strict=True):
                    check(f"{name(page)}:{at}", text, shown, result)
                    ran += 1
                waiting = []
                if number:
                    where.serve(*words[2:])
                    ran += 1
    finally:
        where.stop()
    assert ran


def complete(rules):
    """A fragment of rules as the ruleset that it is a part of."""
    if "service " in rules:
        return rules
    body = rules if re.match(r"\s*(match|function)", rules) else f"match /{{name=**}} {{\n{rules}}}\n"
    return f"rules_version = '2';\nservice firebase.storage {{\nmatch /b/{{bucket}}/o {{\n{body}}}\n}}\n"


def rules():
    """Each block of rules with the suite that follows it, if there is one."""
    for page in PAGES:
        found = blocks(page, "rules", "yaml")
        for (first, language, lines), (_, following, suite) in zip(found, found[1:] + [(0, "", [])]):
            if language == "rules":
                is_suite = following == "yaml" and any(line.startswith("cases:") for line in suite)
                yield pytest.param("\n".join(lines) + "\n", "\n".join(suite) + "\n" if is_suite else None,
                                   id=f"{name(page)}:{first}")


@pytest.mark.parametrize("text,suite", list(rules()))
def test_the_rules_of_a_page(tmp_path, text, suite):
    file = tmp_path / "storage.rules"
    file.write_text(complete(text))
    status, _, err = sluice("rules", "check", file)
    assert status == 0, err
    assert "Invalid" not in err and "Unused" not in err, err
    if complete(text) == text:
        assert sluice("rules", "fmt", "--check", file) == (0, "", "")
    if suite:
        cases = tmp_path / "suite.yaml"
        cases.write_text(suite)
        status, out, err = sluice("rules", "test", file, "--suite", cases)
        assert status == 0, out + err
        assert "FAIL" not in out and " 0 failed" in out


def test_rules_are_marked_as_rules():
    """So that no example is left out: no other block looks like one."""
    for page in PAGES:
        for first, language, lines in blocks(page, "", "text", "js", "javascript"):
            assert not (lines and STATEMENT.match(lines[0])), f"{name(page)}:{first}"


def test_the_guide_has_examples_with_suites():
    found = [suite for _, suite in (example.values for example in rules()) if suite]
    assert len(found) >= 6


def anchors(page):
    """The link anchors of the headings of a page."""
    lines, code = [], False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            code = not code
        if line.startswith("#") and not code:
            lines.append(line)
    return {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page(page):
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{name(page)}: {target}"
        assert not anchor or anchor in anchors(file), f"{name(page)}: {target}"
