"""The schema of the chart's value `config`, made from config/reference.yaml, which lists every key and what it takes.
`python Tests/EndToEnd/operation/config_schema.py` writes it into deploy/chart/values.schema.json; a test compares them."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCHEMA = ROOT / "deploy" / "chart" / "values.schema.json"
REFERENCE = ROOT / "config" / "reference.yaml"
#: Sections of entries that have names of their own.
NAMED = ("issuers", "tokens", "callers", "events", "buckets")
#: The keys of `listen` that are the user's. The others are addresses and files that the chart's manifests name.
LISTEN = {"listen.http", "listen.operatorToken", "listen.socketMode", "listen.trustedProxies", "listen.forwardedField"}
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def number(text):
    digits, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", text).groups()
    return int(digits) * UNITS[unit]


def value(takes):
    """The schema of a value, from its type in words. Helm writes text that looks like a number in quotes, which the program
    does not take for one, so a number is a number here too."""
    if takes == "true or false":
        return {"type": "boolean"}
    if takes == "true, false, or null":
        return {"type": ["boolean", "null"]}
    if found := re.fullmatch(r"a whole number from (\d+) to (\d+)", takes):
        return {"type": "integer", "minimum": int(found[1]), "maximum": int(found[2])}
    if found := re.fullmatch(r"a number from (\d+) to (\d+)", takes):
        return {"type": "number", "minimum": int(found[1]), "maximum": int(found[2])}
    if found := re.fullmatch(r"one of (.*)", takes):
        return {"enum": found[1].split(", ")}
    if found := re.fullmatch(r"bytes such as .*, from (\w+) to (\w+)", takes):
        return {"type": ["string", "integer"], "pattern": "^[0-9]{1,16}(B|KiB|MiB|GiB|TiB)$", "minimum": number(found[1]),
                "maximum": number(found[2])}
    if found := re.fullmatch(r"a duration such as .*, from (\w+) to \w+", takes):
        words = {"type": "string", "pattern": "^[0-9]{1,9}(ms|s|m|h)$"}
        # The only number without a unit is 0.
        return {**words, "type": ["string", "integer"], "minimum": 0, "maximum": 0} if found[1] == "0" else words
    if takes.startswith("validate, a duration from "):
        return {"type": ["string", "null"], "pattern": "^(validate|[0-9]{1,9}(ms|s|m|h)|forever)$"}
    if takes.startswith("a list of "):
        return {"type": "array", "items": {"type": "string", "minLength": 1}}
    if takes.startswith("permissions in octal digits"):
        return {"type": "string", "pattern": "^[0-7]{1,4}$"}
    if takes == "64 hexadecimal digits, or null":
        return {"type": ["string", "null"], "pattern": "^[0-9a-fA-F]{64}$"}
    if takes == "default, anonymous, or a path":
        return {"type": "string", "minLength": 1}
    assert takes.endswith(", or null") or takes.endswith(", or null for off"), takes
    return {"type": ["string", "null"], "minLength": 1}


def keys():
    """Each key of the reference with its type in words; NAME stands for the name of an entry."""
    comment, parents, found = [], [], {}
    for line in REFERENCE.read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            comment.append(text.removeprefix("#").strip())
            continue
        if not text:
            comment = []
            continue
        name, given = re.fullmatch(r"([\w-]+):(.*)", text).groups()
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [name]
        words = " ".join(comment)
        comment = []
        if not given:
            continue
        path = [*parents]
        if path[0] in NAMED:
            path[1] = "NAME"
        takes = re.search(r"Takes (.*?)\.( The default is .*)?$", words)
        # A key of buckets is explained once.
        assert takes or ".".join(path) in found, path
        if takes:
            found[".".join(path)] = takes[1]
    return found


def schema():
    root = {"description": "config/reference.yaml without what the chart sets. Made by config_schema.py of its tests.",
            **mapping()}
    for path, takes in keys().items():
        if path == "rules" or path.startswith("listen.") and path not in LISTEN and ".clients." not in path:
            continue
        here = root
        *parents, name = path.split(".")
        for parent in parents:
            if parent == "NAME":
                here = here.setdefault("additionalProperties", mapping())
            else:
                here = here["properties"].setdefault(parent, {"type": "object"} if parent in NAMED else mapping())
        here["properties"][name] = value(takes)
    # A shape's own address; in a sidecar it may be a socket.
    root["properties"]["listen"]["properties"]["http"] = {"type": "string", "pattern": "^unix:/."}
    buckets = root["properties"]["buckets"]
    buckets["minProperties"] = 1
    buckets["additionalProperties"]["oneOf"] = [{"required": [store]} for store in ("directory", "gcs", "s3")]
    root["required"] = ["buckets"]
    return root


def mapping():
    return {"type": "object", "additionalProperties": False, "properties": {}}


def text(part, indentation=""):
    """JSON in which a mapping or list that fits in a line is one line."""
    line = json.dumps(part)
    if len(indentation) + len(line) <= 118 or not isinstance(part, (dict, list)):
        return line
    inner = indentation + "  "
    if isinstance(part, list):
        lines = [inner + text(one, inner) for one in part]
        return "[\n" + ",\n".join(lines) + f"\n{indentation}]"
    lines = [f"{inner}{json.dumps(name)}: {text(one, inner)}" for name, one in part.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indentation}}}"


if __name__ == "__main__":
    whole = json.loads(SCHEMA.read_text())
    whole["properties"]["config"] = schema()
    SCHEMA.write_text(text(whole) + "\n")
