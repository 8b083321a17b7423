"""A gateway with a console, its rules and callers."""

import hashlib
import http.client
import json
import secrets
import socket

from program import free_port, new_token, wait_until
from secret_words import secret

RULES = """rules_version = '2';
service firebase.storage {
  match /b/{bucket}/o {
    match /users/{uid}/{file=**} {
      allow get: if true;
      allow create: if request.auth.uid == uid && request.resource.size < 1000;
    }
    match /public/{file=**} { allow read, write: if true; }
  }
}
"""


class Console:
    """A gateway with a console."""

    def __init__(self, launch, tmp_path, extra="", console="", **options):
        self.token = secret(secrets.token_urlsafe(24))
        self.rules = tmp_path / "storage.rules"
        self.rules.write_text(RULES)
        self.caller, entry = new_token("alice")
        self.port = free_port()
        digest = hashlib.sha256(self.token.encode()).hexdigest()
        self.server = launch(
            rules=self.rules, arguments=("--set", f"listen.console=127.0.0.1:{self.port}"),
            extra=f'console: {{ token: "{digest}"{console} }}\ntokens:\n{entry}\n{extra}', **options)
        self.url = f"http://127.0.0.1:{self.port}"
        # The other listeners may open before it.
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", self.port)) == 0, what="the console")

    def raw(self, method, target, body=None, fields=(), token=True):
        """The status, the fields and the body of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        shown = {"X-Console-Token": self.token} if token else {}
        connection.request(method, target, body, {**shown, **dict(fields)})
        answer = connection.getresponse()
        found = answer.status, answer.headers, answer.read()
        connection.close()
        return found

    def get(self, target, status=200):
        found = self.raw("GET", target)
        assert found[0] == status, found
        return json.loads(found[2])

    def post(self, target, status=200, **body):
        found = self.raw("POST", target, json.dumps(body), {"Content-Type": "application/json"})
        assert found[0] == status, found
        return json.loads(found[2])
