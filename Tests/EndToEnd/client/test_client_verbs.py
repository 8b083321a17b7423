"""What each verb does, the forms of arguments, errors and exit statuses."""

import json
import os
import subprocess
import zlib

import pytest

from program import BINARY, free_port

ODD = ["a b.txt", "ünï.txt", "-dash", "quote'\".txt", "hash#[x]%41.txt", "日本.txt"]


def write(path, content=b"content"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_file_goes_there_and_back(client):
    write(client.home / "a.jpg", b"picture")
    assert client.fine("put", "a.jpg", "photos/images/") == ""
    assert client.fine("cat", "photos/images/a.jpg") == "picture"
    assert client.fine("get", "photos/images/a.jpg", "b.jpg") == ""
    assert (client.home / "b.jpg").read_bytes() == b"picture"
    client.fine("get", "photos/images/a.jpg", "b")
    assert (client.home / "b").read_bytes() == b"picture"
    [found] = client.lines("stat", "photos/images/a.jpg")
    assert (found["size"], found["contentType"], found["path"]) == (7, "image/jpeg", "images/a.jpg")
    client.fine("rm", "photos/images/a.jpg")
    assert client.run("cat", "photos/images/a.jpg")[0] == 3


@pytest.mark.parametrize("form", [
    "forms/a.txt", "photos/forms/a.txt", "sluice://photos/forms/a.txt", "gs://photos/forms/a.txt",
    "{url}/b/photos/o/forms/a.txt", "{url}/b/photos/o/forms%2Fa.txt"])
def test_forms_of_a_path(client, form):
    client.fine("put", "-", "sluice://photos/forms/a.txt", given="here")
    bucket = {"SLUICE_BUCKET": "photos"} if not form.startswith(("sluice", "gs", "{")) else {}
    assert client.fine("cat", form.format(url=client.url), environment=bucket) == "here"


@pytest.mark.parametrize("name", ODD)
def test_odd_names(client, name):
    write(client.home / name, name.encode())
    client.fine("put", "--", name, "sluice://photos/odd/")
    assert client.fine("cat", "--", f"sluice://photos/odd/{name}".replace("[", "\\[")) == name
    (client.home / "out").mkdir()
    client.fine("get", "--", f"sluice://photos/odd/{name}".replace("[", "\\["), "out")
    assert (client.home / "out" / name).read_text() == name
    assert name in client.fine("ls", "photos/odd").splitlines()


def test_line_breaks_in_names(client):
    write(client.home / "a\nb")
    status, _, err = client.run("put", "a\nb", "photos/broken/")
    assert status == 1 and "line break" in err
    status, _, err = client.run("put", "a\nb", "photos/broken/a\nb")
    assert status == 1 and "line break" in err
    write(client.home / "tree" / "fine.txt")
    write(client.home / "tree" / "not\nfine.txt")
    status, _, err = client.run("sync", "./tree", "photos/broken")
    assert status == 2 and "line break" in err
    assert client.fine("ls", "-R", "photos/broken") == "fine.txt\n"


def test_standard_input_and_output(client):
    body = os.urandom(20 << 20)
    assert client.run("put", "-", "photos/streams/big", given=body, text=False)[0] == 0
    assert client.fine("get", "photos/streams/big", "-", text=False) == body
    [found] = client.lines("stat", "photos/streams/big")
    assert found["size"] == len(body)
    client.fine("put", "-", "photos/streams/empty", given="")
    assert client.fine("cat", "photos/streams/empty") == ""
    # A reader that goes away ends it, quietly.
    done = subprocess.run(f"'{BINARY}' cat photos/streams/big | head -c 10 | wc -c", shell=True, capture_output=True,
                          env=client.environment(), text=True)
    assert (done.stdout.strip(), done.stderr) == ("10", "")


def test_lists(client):
    for name in ("a.txt", "b/c.txt", "b/d/e.txt", "z.txt"):
        client.fine("put", "-", f"photos/listed/{name}", given="12345")
    assert client.fine("ls", "photos/listed") == "a.txt\nb/\nz.txt\n"
    assert client.fine("ls", "-R", "photos/listed/") == "a.txt\nb/c.txt\nb/d/e.txt\nz.txt\n"
    long = client.fine("ls", "-l", "photos/listed", environment={"TZ": "UTC"}).splitlines()
    assert long[0].split()[0] == "5" and long[0].endswith("  a.txt") and long[1].endswith("  b/")
    assert client.fine("ls", "photos/listed/**.txt") == "a.txt\nb/c.txt\nb/d/e.txt\nz.txt\n"
    assert client.fine("ls", "photos/listed/[az].*") == "a.txt\nz.txt\n"
    assert client.fine("ls", "photos/listed/a.txt") == "a.txt\n"
    kinds = [(line["type"], line["path"]) for line in client.lines("ls", "photos/listed")]
    assert kinds == [("object", "listed/a.txt"), ("folder", "listed/b/"), ("object", "listed/z.txt")]
    assert client.run("ls", "photos/listed/none")[0] == 3


def test_globs_are_those_of_the_program(client):
    for name in ("a1.txt", "a2.txt", "b1.txt", "d/a3.txt"):
        client.fine("put", "-", f"photos/globs/{name}", given=name)
    client.fine("get", "photos/globs/a*.txt", "out/")
    assert sorted(os.listdir(client.home / "out")) == ["a1.txt", "a2.txt"]
    client.fine("rm", "photos/globs/?1.txt")
    assert client.fine("ls", "-R", "photos/globs") == "a2.txt\nd/a3.txt\n"
    status, _, err = client.run("rm", "photos/globs/x*")
    assert status == 3 and "no such object" in err
    client.fine("put", "-", "photos/globs/\\*", given="star")
    client.fine("rm", "photos/globs/\\*")
    assert client.fine("ls", "-R", "photos/globs") == "a2.txt\nd/a3.txt\n"


def test_copies_keep_everything(client):
    write(client.home / "a.bin", os.urandom(3 << 20))
    client.fine("put", "a.bin", "photos/kept/a", "--content-type", "text/x-odd", "--cache-control", "no-store",
                "--meta", "place=Østlandet", "--meta", "empty=")
    for verb in ("cp", "mv"):
        client.fine(verb, "photos/kept/a", f"sluice://other/kept/{verb}")
        [copy] = client.lines("stat", f"sluice://other/kept/{verb}")
        assert (copy["contentType"], copy["cacheControl"]) == ("text/x-odd", "no-store")
        assert copy["customMetadata"] == {"place": "Østlandet", "empty": ""}
        assert client.fine("cat", f"sluice://other/kept/{verb}", text=False) == (client.home / "a.bin").read_bytes()
    assert client.run("stat", "photos/kept/a")[0] == 3


def test_folders(client):
    for name in ("a", "b/c", "b/d"):
        write(client.home / "tree" / name, name.encode())
    assert client.run("put", "tree", "photos/folders")[0] == 2
    client.fine("put", "-R", "tree", "photos/folders")
    client.fine("cp", "-R", "photos/folders", "photos/copied")
    client.fine("mv", "-R", "photos/copied/b", "photos/moved/")
    assert client.fine("ls", "-R", "photos/copied") == "a\n" and client.fine("ls", "-R", "photos/moved") == "c\nd\n"
    client.fine("get", "-R", "photos/folders", "back")
    assert (client.home / "back/b/d").read_text() == "b/d"
    assert client.run("rm", "photos/folders/")[0] == 1
    client.fine("rm", "-R", "photos/folders/")
    assert client.run("ls", "photos/folders")[0] == 3


def test_metadata(client):
    client.fine("put", "-", "photos/meta", given="x")
    client.fine("meta", "set", "photos/meta", "cacheControl=a=b", "customMetadata.k=v", "customMetadata.l=w")
    client.fine("meta", "unset", "photos/meta", "customMetadata.k")
    [found] = client.lines("stat", "photos/meta")
    assert found["cacheControl"] == "a=b" and found["customMetadata"] == {"l": "w"}
    client.fine("meta", "unset", "photos/meta", "cacheControl", "customMetadata.l")
    [found] = client.lines("stat", "photos/meta")
    assert "cacheControl" not in found and "customMetadata" not in found
    status, _, err = client.run("meta", "set", "photos/meta", "size=1")
    assert status == 64 and "customMetadata.KEY" in err


def test_exit_statuses(client, launch, tmp_path):
    rules = tmp_path / "storage.rules"
    rules.write_text("rules_version = '2';\nservice firebase.storage { match /b/{b}/o {\n"
                     "  match /open { allow read; } match /x { allow read: if request.auth != null; } } }\n")
    closed = launch(rules=str(rules))
    url = {"SLUICE_URL": closed.url("")}
    status, _, err = client.run("cat", "photos/x", environment=url)
    assert status == 4 and "SLUICE_TOKEN" in err
    status, _, err = client.run("put", "-", "photos/x", given="x", environment=url)
    assert status == 4 and "rules" in err
    status, _, err = client.run("cat", "photos/open", environment=url)
    assert status == 3 and "no such object" in err
    status, _, err = client.run("ls", "absent", environment={"SLUICE_URL": client.url})
    assert status == 3 and "bucket" in err
    nobody = {"SLUICE_URL": f"http://127.0.0.1:{free_port()}"}
    status, _, err = client.run("ls", "photos", "--retry-time", "1", environment=nobody)
    assert status == 6 and "network" in err
    status, out, err = client.run("get", "photos/none", "--json")
    assert status == 3 and json.loads(out)["code"] == "object-not-found"
    assert client.run("put", "absent.txt", "photos/")[0] == 2
    assert client.run("put", "x")[0] == 64
    assert client.run("ls", "https://example.com/nothing")[0] == 64


def test_untrusted_certificates(client, gateway):
    status, _, err = client.run("ls", "photos", environment={"SLUICE_URL": f"https://127.0.0.1:{gateway.https}"})
    assert status == 6 and "not trusted" in err and "--cacert" in err
    status, _, err = client.run("ls", "photos", environment={"SLUICE_URL": "http://[bad"})
    assert status == 64 and err


def test_a_dead_gateway_has_one_status(client):
    for number in range(8):
        write(client.home / "many" / str(number))
    nobody = {"SLUICE_URL": f"http://127.0.0.1:{free_port()}"}
    status, _, err = client.run("put", "-R", "many", "photos/dead", "--retry-time", "1", environment=nobody)
    assert status == 6 and "cancelled" not in err and "was not tried" in err


def test_a_secret_without_a_colon_is_not_printed(client):
    status, _, err = client.run("ls", "photos", "--header", "hidden-secret")
    assert status == 64 and "NAME: VALUE" in err and "hidden-secret" not in err


def test_a_removed_pair_leaves_the_others_alone(through, proxy):
    through.fine("put", "-", "photos/pairs", given="x")
    through.fine("meta", "set", "photos/pairs", "customMetadata.k=v", "customMetadata.l=w", "cacheControl=no-store")
    proxy.requests.clear()
    through.fine("meta", "unset", "photos/pairs", "customMetadata.k")
    # What the object has is not read, and so not written again.
    assert [request.method for request in proxy.requests] == ["PATCH"]
    [found] = through.lines("stat", "photos/pairs")
    assert found["customMetadata"] == {"l": "w"} and found["cacheControl"] == "no-store"


def test_a_token_goes_to_its_gateway_only(client, launch, proxy):
    client.fine("put", "-", "photos/token", given="x")
    client.run("cp", "photos/token", f"{proxy.endpoint}/b/other/o/token", environment={"SLUICE_TOKEN": "hidden"})
    assert not any("authorization" in request.fields for request in proxy.requests)
    client.run("cat", f"{proxy.endpoint}/b/other/o/token",
               environment={"SLUICE_TOKEN": "shown", "SLUICE_URL": None})
    assert any(request.fields.get("authorization") == "Bearer shown" for request in proxy.requests)


def test_local_failures(client):
    client.fine("put", "-", "photos/full", given="x" * 100_000)
    status, _, err = client.run("get", "photos/full", "/dev/full/x")
    assert status == 2 and err
    done = subprocess.run(f"'{BINARY}' cat photos/full > /dev/full", shell=True, capture_output=True, text=True,
                          env=client.environment())
    assert done.returncode == 2 and "No space left" in done.stderr
    (client.home / "taken").mkdir()
    status, _, err = client.run("sync", "photos/none", "taken/../taken")
    assert status == 0
    write(client.home / "file")
    status, _, err = client.run("get", "photos/full", "file/x")
    assert status == 2 and "Not a directory" in err
    assert client.run("get", "photos/full", "/proc/none")[0] == 2


def test_without_home(client):
    write(client.home / "a.bin", os.urandom(1 << 20))
    status, out, err = client.run("put", "a.bin", "photos/homeless", environment={"HOME": None})
    assert status == 0 and "HOME" in err
    status, out, err = client.run("put", "a.bin", "photos/homeless", environment={"HOME": "/proc/none"})
    assert status == 0 and "HOME" in err
    # A download continues from its file alone.
    client.fine("get", "photos/homeless", "b.bin", environment={"HOME": "/proc/none"})
    assert (client.home / "b.bin").read_bytes() == (client.home / "a.bin").read_bytes()


@pytest.mark.parametrize("verb", [
    "put", "get", "cat", "ls", "stat", "rm", "mv", "cp", "sync", "meta", "meta set", "meta unset"])
def test_help_ends_with_examples(client, verb):
    text = client.fine(*verb.split(), "--help")
    rest, examples = text.split("EXAMPLES:\n")
    assert "USAGE:" in rest and "  -h, --help" in rest
    assert examples and all(line.startswith(f"  sluice {verb} ") or f" | sluice {verb} " in line
                            for line in examples.splitlines())
    assert client.fine("help", *verb.split()) == text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(client, shell):
    script = client.fine("completion", shell)
    assert "sync" in script and "dry-run" in script and "serve" in script
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_checksums_are_those_of_the_bytes(client):
    client.fine("put", "-", "photos/sum", given="abc")
    [found] = client.lines("stat", "photos/sum")
    assert found["md5Hash"] == "kAFQmDzST7DWlj99KOF/cg==" and zlib.crc32(b"abc")
