"""The receiver in docs/events.md, as it stands there."""

import re
import subprocess
import sys

from program import ROOT, curl, status, wait_until
from test_webhooks import key_file, new_key, put
from upstreams import free_port
from webhook_sink import subscription


def test_the_receiver_of_the_page_verifies_and_receives(launch, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "events.md").read_text(), re.S)
    script = tmp_path / "receiver.py"
    script.write_text(code)
    key, port = new_key(), free_port()
    output = tmp_path / "output"
    with open(output, "wb") as out:
        receiver = subprocess.Popen([sys.executable, str(script)], stdout=out, stderr=subprocess.DEVNULL,
                                    env={"WEBHOOK_KEY": key, "PORT": str(port)})
    try:
        url = f"http://127.0.0.1:{port}/hook"
        wait_until(lambda: curl("-o", "/dev/null", url, check=False) is not None and
                   subprocess.run(["curl", "-s", url], capture_output=True).returncode in (0, 52))
        server = launch(extra=subscription(url, keys=key_file(tmp_path, key)))
        made = put(server, "images/a")
        line = f"google.cloud.storage.object.v1.finalized images/a {made['generation']}\n"
        wait_until(lambda: output.read_text() == line, what=lambda: output.read_text())
        # Without a signature, and with one of another body.
        assert status("-d", "{}", url) == 401
        assert status("-d", "{}", "-H", "webhook-id: a", "-H", "webhook-timestamp: 1", "-H", "webhook-signature: v1,AAAA", url) == 401
    finally:
        receiver.kill()
        receiver.wait()
