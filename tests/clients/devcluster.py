"""One `larder dev-cluster`: its processes can be found, killed, paused; each of its proxies is an S3 endpoint."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.request

from harness import ACCESS, COMMAND_SECONDS, SECRET, Server

READY_SECONDS = 120
STOP_SECONDS = 30
INSPECT_SECONDS = 120


class Proxy:
    """A node's S3 endpoint; what `Load` and `verify` want of a server."""

    boto3 = Server.boto3

    def __init__(self, endpoint):
        self.endpoint, self.port = endpoint, int(endpoint.rsplit(":", 1)[1])


class Cluster:
    """A cluster of processes on this machine."""

    def __init__(self, binary, directory, nodes, options=(), environment=None):
        self.binary, self.directory, self.nodes = binary, pathlib.Path(directory), nodes
        self.options, self.environment = options, environment or {}
        self.supervisor, self.proxies = None, []

    def start(self):
        """Starts it; returns what it printed when it was ready."""
        assert self.supervisor is None, "the cluster runs already"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "LARDER_"))}
        environment |= {"LARDER_ROOT_ACCESS_KEY": ACCESS, "LARDER_ROOT_SECRET_KEY": SECRET}
        environment |= {"LARDER_LOG": os.environ.get("LARDER_LOG", "info"), **self.environment}
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{self.directory}.log", "ab") as log:
            self.supervisor = subprocess.Popen(
                [self.binary, "dev-cluster", self.directory, "--nodes", str(self.nodes), "--json", *self.options],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )
        line = self.supervisor.stdout.readline()
        if not line:
            raise AssertionError(f"dev-cluster ended with {self.supervisor.wait()}:\n{self.log_tail()}")
        report = json.loads(line)
        self.proxies = [Proxy(node["endpoint"]) for node in report["nodes"]]
        return report

    def pids(self):
        """The processes as they are now: (node, role) to pid."""
        found, root = {}, f"{self.directory.resolve()}/"
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                if words[2] == "--config" and words[3].startswith(root):
                    node, role, _ = words[3][len(root):].split("/")
                    found[int(node.removeprefix("node-")) - 1, role] = int(entry.name)
        return found

    def signal(self, node, role, number):
        os.kill(self.pids()[node, role], number)

    def kill_all(self):
        """`kill -9` of the supervisor; all of its processes must be gone soon."""
        if self.supervisor:
            for pid in self.pids().values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self.supervisor.kill()
            self.supervisor.wait()
            self.supervisor = None
        deadline = time.monotonic() + STOP_SECONDS
        while self.pids():
            if time.monotonic() > deadline:
                raise AssertionError(f"left behind: {self.pids()}")
            time.sleep(0.05)

    def stop(self):
        """SIGTERM; the exit code."""
        self.supervisor.terminate()
        code = self.supervisor.wait(STOP_SECONDS)
        self.supervisor = None
        assert not self.pids(), f"left behind: {self.pids()}"
        return code

    def status(self):
        return status_of(self.binary, self.directory / "node-1" / "proxy" / "role.toml")

    def set_policy(self, bucket, policy):
        set_policy_of(self.binary, self.directory / "node-1" / "manager" / "role.toml", bucket, policy)

    def token(self, name, role, machine=99):
        """Lines for the configuration of another server, on a machine of its own."""
        config = self.directory / "node-1" / "manager" / "role.toml"
        done = subprocess.run(
            [self.binary, "token", "--config", config, "--name", name, "--role", role, "--machine", str(machine)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS,
        )
        assert done.returncode == 0, f"token ended with {done.returncode}: {done.stderr}"
        return done.stdout

    def config(self, node, role):
        """The configuration of a server, in its directory."""
        return self.folder(node, role) / "role.toml"

    def folder(self, node, role):
        """Where a server keeps what it has."""
        return self.directory / f"node-{node + 1}" / role

    def log_tail(self, lines=8):
        return log_tails([pathlib.Path(f"{self.directory}.log"), *self.directory.glob("node-*/*/process.log")], lines)


def status_of(binary, config):
    """What `larder status` says."""
    done = subprocess.run(
        [binary, "status", "--config", config, "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS,
    )
    assert done.returncode in (0, 1), f"status ended with {done.returncode}: {done.stderr}"
    return json.loads(done.stdout)


def set_policy_of(binary, config, bucket, policy):
    """How many copies the puts of a bucket wait for."""
    done = subprocess.run(
        [binary, "bucket", "policy", "--config", config, bucket, policy],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS,
    )
    assert done.returncode == 0 and f"({policy})" in done.stdout, f"{done.returncode}: {done.stdout}{done.stderr}"


def inspect_of(binary, directory):
    """`larder inspect` of a server's directory: exit code, and what it printed."""
    ended = subprocess.run([binary, "inspect", directory], capture_output=True, text=True, timeout=INSPECT_SECONDS)
    return ended.returncode, ended.stdout + ended.stderr


def unsound(cluster):
    """What `larder inspect` says of each stopped server that keeps something and is not sound."""
    faults = []
    for node in range(cluster.nodes):
        for role in ("manager", "meta", "data"):
            code, report = inspect_of(cluster.binary, cluster.folder(node, role))
            if code != 0 or "\nsound: " not in report:
                faults.append(f"the {role} of node {node + 1}: {code}\n{report}")
    return faults


def log_tails(paths, lines):
    """The ends of log files, each under its name."""
    tails = ((path, path.read_text(errors="replace").splitlines()[-lines:]) for path in sorted(paths))
    return "\n".join("\n".join([f"--- {path}", *last]) for path, last in tails)


def is_ready(endpoint):
    with contextlib.suppress(OSError):
        with urllib.request.urlopen(f"{endpoint}/readyz", timeout=2) as answer:
            return answer.status == 200
    return False
