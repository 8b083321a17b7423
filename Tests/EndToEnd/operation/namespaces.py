"""Network namespaces for processes that stand for pods: each has an address that this process, the node, reaches."""

import os
import random
import shutil
import subprocess

from program import wait_until

#: Whether this process may make them.
POSSIBLE = (os.geteuid() == 0 and shutil.which("ip") is not None
            and subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0)


def run(*arguments):
    subprocess.run(arguments, check=True)


class Network:
    """A bridge on the node; `address` is the node's own in it."""

    def __init__(self):
        self.name, self.net, self.pods = f"sl{random.randrange(10**8)}", f"169.254.{random.randrange(1, 255)}", 1
        self.address = f"{self.net}.1"
        # With an address of its own. Otherwise it has that of one of its pods, and changes it when the pod ends.
        run("ip", "link", "add", self.name, "address", f"02:00:{random.randbytes(4).hex(':')}", "type", "bridge")
        run("ip", "address", "add", f"{self.address}/24", "dev", self.name)
        run("ip", "link", "set", self.name, "up")

    def close(self):
        run("ip", "link", "delete", self.name)


class Namespace:
    """A namespace in a network. It ends with `close`, and its address with it."""

    def __init__(self, network):
        network.pods += 1
        self.address = f"{network.net}.{network.pods}"
        self.pause = subprocess.Popen(["unshare", "-n", "sleep", "600"])
        # unshare has the new namespace when it has become sleep.
        wait_until(lambda: os.readlink(f"/proc/{self.pause.pid}/exe").endswith("sleep"), what="the namespace")
        link = f"{network.name}.{network.pods}"
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(self.pause.pid))
        run("ip", "link", "set", link, "master", network.name, "up")
        for line in [f"address add {self.address}/24 dev eth0", "link set eth0 up", "link set lo up"]:
            run(*self.inside("ip", *line.split()))

    def inside(self, *arguments):
        """A command in the namespace."""
        return ["nsenter", "-t", str(self.pause.pid), "-n", *arguments]

    def close(self):
        self.pause.kill()
        self.pause.wait()
