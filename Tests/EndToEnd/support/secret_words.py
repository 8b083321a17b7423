"""Collects the secrets that the tests of a run make or send, and finds them in the servers' logs."""

import re
import urllib.parse

#: Long enough not to occur by chance. Shorter secrets need a test of their own.
WORD = re.compile(r"[A-Za-z0-9_-]{16,}")
WORDS = set()


def secret(text):
    """Records a secret; returns it. The header of a JSON Web Token is not secret."""
    parts = text.split(".")
    WORDS.update(WORD.findall(".".join(parts[1:]) if len(parts) == 3 else text))
    return text


def link(path):
    """Records the signature of a link; returns the link."""
    for signature in urllib.parse.parse_qs(urllib.parse.urlsplit(path).query).get("link-signature", []):
        secret(signature)
    return path


def sent(name, value):
    """Records the secrets in a request field."""
    if name.lower() in ("authorization", "cookie", "proxy-authorization"):
        secret(value.split(" ")[-1])


def leaks(text):
    """The lines with secrets, each with its secrets."""
    found = []
    for line in text.splitlines():
        # Search both the line itself and its percent-decoded form.
        words = {word for form in {line, urllib.parse.unquote(line)} for word in WORD.findall(form)} & WORDS
        if words:
            found.append((line[:600], words))
    return found
