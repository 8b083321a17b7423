"""Makes signed links and their keys with the program."""

import subprocess

from program import BINARY
from secret_words import link, secret


def new_key(name):
    """A new key as a line of the file of keys."""
    done = subprocess.run([str(BINARY), "sign", "--new-key", name], capture_output=True, text=True, check=True)
    secret(done.stdout.split()[1])
    return done.stdout


def sign(keys, path, *options, check=True):
    """A signed link to `path`; without `check`, the finished process."""
    done = subprocess.run([str(BINARY), "sign", "--keys", str(keys), "--path", path, *options],
                          capture_output=True, text=True)
    if check:
        assert done.returncode == 0, done.stderr
        return link(done.stdout.strip())
    return done
