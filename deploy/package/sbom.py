"""sbom.py VERSION PROGRAM…: prints a CycloneDX 1.5 bill of materials of the programs: the Swift packages, the runtime and the
libraries in them, and the Debian packages of the shared libraries that they use."""

import json
import os
import pathlib
import re
import subprocess
import sys
import uuid
from datetime import datetime, timezone

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Packages that only tests use.
TESTS_ONLY = {"yams"}
#: Loaded by the program itself, so the linker does not know it (Sources/HTTPClient/Curl/CurlLibrary.swift).
LOADED = ["libcurl.so.4"]
#: Linked statically (SLUICE_RE2 in the Makefile): the Debian package that has the library, and its licence.
RE2 = "libre2-dev", "BSD-3-Clause"


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def library(name, version, purl, licence=None, **more):
    component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, **more}
    if licence:
        component["licenses"] = [{"license": {"id": licence}}]
    return component


def swift_packages():
    for pin in json.loads((ROOT / "Package.resolved").read_text())["pins"]:
        if pin["identity"] in TESTS_ONLY:
            continue
        place = pin["location"].removeprefix("https://").removesuffix(".git")
        version = pin["state"]["version"]
        yield library(pin["identity"], version, f"pkg:swift/{place}@{version}", "Apache-2.0",
                      properties=[{"name": "commit", "value": pin["state"]["revision"]}])


def swift_runtime():
    version = re.search(r"Swift version (\S+)", run("swift", "--version")).group(1)
    return library("swift", version, f"pkg:generic/swift@{version}", "Apache-2.0",
                   description="The Swift runtime and standard library, linked statically. The client also has Foundation, "
                               "with ICU.")


def shared_libraries(names):
    cache = run("/sbin/ldconfig", "-p")
    packages = {}
    for name in names:
        path = re.search(rf"^\s*{re.escape(name)} .*=> (\S+)$", cache, re.M).group(1)
        packages.setdefault(owner(path), []).append(name)
    for package, found in sorted(packages.items()):
        yield debian(package, "shared-library", found)


def needed(program):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-dW", program))


def debian(package, kind, files, licence=None):
    version, architecture = run("dpkg-query", "-W", "-f", "${Version} ${Architecture}", package).split()
    name = package.split(":")[0]
    return library(name, version, f"pkg:deb/debian/{name}@{version}?arch={architecture}&distro=debian-12",
                   licence, properties=[{"name": kind, "value": file} for file in files])


def owner(path):
    """The Debian package of a file, which the package may know by its path from before /lib became a link."""
    for known in (path, os.path.realpath(path), path.removeprefix("/usr"), os.path.realpath(path).removeprefix("/usr")):
        found = subprocess.run(["dpkg-query", "-S", known], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(": ")[0]
    raise SystemExit(f"{path}: no Debian package has it")


def main(version, *programs):
    time = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH") or 0), timezone.utc)
    names = sorted({*LOADED, *(name for program in programs for name in needed(program))})
    components = [*swift_packages(), swift_runtime(), *shared_libraries(names)]
    if not any(name.startswith("libre2.so") for name in names):
        package, licence = RE2
        components.append(debian(package, "static-library", ["libre2.a"], licence))
    own = f"pkg:generic/sluice@{version}"
    digest = run("sha256sum", programs[0]).split()[0]
    json.dump({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + digest)}",
        "version": 1,
        "metadata": {
            "timestamp": time.isoformat(),
            "component": {
                "type": "application", "bom-ref": own, "name": "sluice", "version": version, "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}], "hashes": [{"alg": "SHA-256", "content": digest}],
            },
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [component["bom-ref"] for component in components]}],
    }, sys.stdout, indent=2)
    print()


main(*sys.argv[1:])
