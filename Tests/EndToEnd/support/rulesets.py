"""Security Rules that several tests use."""

HEADER = "rules_version = '2';\nservice firebase.storage {\n  match /b/photos/o {\n"
FINE = """rules_version = '2';

service firebase.storage {
  match /b/{bucket}/o/{name} {
    allow get: if request.auth.uid == 'alice' && request.params.x == '1';
    allow create: if request.resource.size < 10 && resource == null;
    allow update: if firestore.get(/databases/(default)/documents/users/a).data.ok;
    allow delete: if request.time > timestamp.date(2026, 1, 1);
  }
}
"""
BROKEN = """rules_version = '2';
service firebase.storage {
  match /b/{bucket}/o {
    allow read: true;
    allow write: if 'a\\.b' == 'x';
  }
}
"""


def rules(*statements):
    """Rules for the bucket `photos` with these statements."""
    return HEADER + "".join(f"    {line}\n" for line in statements) + "  }\n}\n"
