"""What the tests of a run make or send that must be in no log: looked for in everything that their servers printed."""

import re
import urllib.parse

#: Long enough to be nothing else. What is shorter is for a test of its own.
WORD = re.compile(r"[A-Za-z0-9_-]{16,}")
WORDS = set()


def secret(text):
    """Remembers a secret; returns it. Of a JSON Web Token the header is none."""
    parts = text.split(".")
    WORDS.update(WORD.findall(".".join(parts[1:]) if len(parts) == 3 else text))
    return text


def link(path):
    """Remembers the signature of a link; returns the link."""
    for signature in urllib.parse.parse_qs(urllib.parse.urlsplit(path).query).get("link-signature", []):
        secret(signature)
    return path


def sent(name, value):
    """Remembers what a request's field has of secrets."""
    if name.lower() in ("authorization", "cookie", "proxy-authorization"):
        secret(value.split(" ")[-1])


def leaks(text):
    """The lines with secrets, and those."""
    found = []
    for line in text.splitlines():
        # Both: as it stands, and as a client that encodes it would have written it.
        words = {word for form in {line, urllib.parse.unquote(line)} for word in WORD.findall(form)} & WORDS
        if words:
            found.append((line[:600], words))
    return found
