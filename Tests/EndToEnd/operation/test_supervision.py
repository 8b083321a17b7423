"""What a service manager sees: state messages on NOTIFY_SOCKET, the watchdog, and listening sockets that it passes."""

import os
import signal
import socket
import subprocess
import time

import pytest

from program import BINARY, Server, curl, free_port, wait_until


class Manager:
    """Receives the messages of sd_notify(3)."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path.replace("@", "\0", 1) if path.startswith("@") else path)
        self.socket.settimeout(20)

    def next(self):
        """The next message as a dictionary, besides the watchdog's."""
        while True:
            message = self.any()
            if message != {"WATCHDOG": "1"}:
                return message

    def any(self):
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())


@pytest.mark.parametrize("abstract", [False, True])
def test_a_manager_is_told_of_start_reload_and_end(tmp_path, abstract):
    path = f"@sluice-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    manager = Manager(path)
    server = Server(tmp_path, environment={"NOTIFY_SOCKET": path})
    try:
        assert manager.next() == {"READY": "1"}
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        server.process.send_signal(signal.SIGHUP)
        reloading = manager.next()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert reloading.pop("RELOADING") == "1"
        assert before <= int(reloading.pop("MONOTONIC_USEC")) <= after and not reloading
        assert manager.next() == {"READY": "1"}
        wait_until(lambda: "configuration reloaded" in server.output(), what="the reload")
    finally:
        assert server.stop() == 0
    assert manager.next() == {"STOPPING": "1"}


def test_the_watchdog_hears_only_of_loops_that_run(tmp_path):
    manager = Manager(str(tmp_path / "notify"))
    server = Server(tmp_path, threads=2, environment={"NOTIFY_SOCKET": str(tmp_path / "notify"),
                                                      "WATCHDOG_USEC": "200000"})
    try:
        assert manager.next() == {"READY": "1"}
        for _ in range(3):
            assert manager.any() == {"WATCHDOG": "1"}
    finally:
        server.stop()
    other = tmp_path / "other"
    other.mkdir()
    manager = Manager(str(other / "notify"))
    server = Server(other, environment={"NOTIFY_SOCKET": str(other / "notify"), "WATCHDOG_USEC": "10000",
                                        "WATCHDOG_PID": "1"})
    server.stop()
    assert [manager.any(), manager.any()] == [{"READY": "1"}, {"STOPPING": "1"}], "the watchdog is another process's"


def test_a_manager_that_is_gone_does_no_harm(tmp_path):
    server = Server(tmp_path, environment={"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    assert server.stop() == 0


def activated(tmp_path, listener, http, process="$$"):
    """Starts a gateway whose manager passes `listener` as descriptor 3."""
    config = tmp_path / "sluice.yaml"
    config.write_text(f"listen: {{ http: '{http}' }}\nthreads: 2\nrules: none\n"
                      f"buckets: {{ photos: {{ directory: {{ path: {tmp_path}/photos }} }} }}\n")
    script = (f'export LISTEN_PID={process} LISTEN_FDS=1; exec "$0" serve --config "$1" '
              f'3<&{listener.fileno()}')
    return subprocess.Popen(["bash", "-c", script, str(BINARY), str(config)], stderr=subprocess.PIPE, text=True,
                            pass_fds=[listener.fileno()])


def test_a_socket_of_the_manager_is_served_and_outlives_the_program(tmp_path):
    """Connections that arrive before the start or after the end wait in the socket, which stays open."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{port}/b/photos/o"
        for _ in range(2):
            early = subprocess.Popen(["curl", "-sS", "--max-time", "30", "-o", "/dev/null", "-w", "%{http_code}",
                                      f"{url}/none"], stdout=subprocess.PIPE, text=True)
            server = activated(tmp_path, listener, f"127.0.0.1:{port}")
            try:
                assert early.communicate()[0] == "404"
                for number in range(20):
                    curl("--fail", "-X", "PUT", "-d", "x", f"{url}/{number}")
            finally:
                server.send_signal(signal.SIGTERM)
                assert server.wait(30) == 0, server.stderr.read()


def test_a_socket_that_no_listener_has_is_an_error(tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        server = activated(tmp_path, listener, f"127.0.0.1:{free_port()}")
        _, error = server.communicate(timeout=30)
        port = listener.getsockname()[1]
        assert server.returncode == 2 and f"127.0.0.1:{port} is the address of no listener" in error
    with socket.socket() as idle:
        server = activated(tmp_path, idle, f"127.0.0.1:{free_port()}")
        _, error = server.communicate(timeout=30)
        assert server.returncode == 2 and "inherited descriptor 3: not listening" in error


def test_sockets_for_another_process_are_ignored(tmp_path):
    port = free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        server = activated(tmp_path, listener, f"127.0.0.1:{port}", process="1")
        try:
            wait_until(lambda: subprocess.run(["curl", "-s", f"http://127.0.0.1:{port}/"],
                                              capture_output=True).returncode == 0, what="the server")
        finally:
            server.terminate()
            assert server.wait(30) == 0
