"""A cluster whose every process has an address of its own, so that it can be cut off by itself: founded and joined by
configuration files and tokens, as an operator would."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time

from devcluster import READY_SECONDS, STOP_SECONDS, Proxy, is_ready, log_tails, set_policy_of, status_of
from disk import Disk
from harness import ACCESS, COMMAND_SECONDS, SECRET
from netspace import die_with_parent

CLIENTS, CLIENTS_ADDRESS = "clients", "10.77.250.1"
ROLES = ("manager", "meta", "data", "proxy")
PORT, S3_PORT = 7000, 9000
PG_COUNT, VOLUME_MIB = 16, 64
DISK_BYTES = 3 << 30


def address(node, role):
    return f"10.77.{node + 1}.{ROLES.index(role) + 1}"


def node_network(node):
    return f"10.77.{node + 1}.0/24"


class NetCluster:
    """Its nodes are numbers from 0, its processes (node, role). All of them have all roles."""

    def __init__(self, binary, directory, nodes, network):
        self.binary, self.directory, self.nodes, self.network = binary, pathlib.Path(directory), nodes, network
        self._disks, self._running = [], {}
        self.proxies = [Proxy(f"http://{address(node, 'proxy')}:{S3_PORT}") for node in range(nodes)]
        for node, role in self.all():
            network.host(self.name(node, role), address(node, role))
        for node in range(nodes):
            self._mount_disk(node)
        network.host(CLIENTS, CLIENTS_ADDRESS)
        network.enter(CLIENTS)

    def _mount_disk(self, node):
        """A data server's directory is on a file system of its own, so that it can be full."""
        folder = self.directory / f"disk-{node + 1}"
        folder.mkdir(parents=True)
        self._disks.append(Disk(folder, DISK_BYTES))

    def unmount(self):
        for disk in self._disks:
            disk.unmount()

    def all(self):
        return [(node, role) for role in ROLES for node in range(self.nodes)]

    @staticmethod
    def name(node, role):
        return f"{role}-{node + 1}"

    def config(self, node, role):
        return self.directory / self.name(node, role) / "role.toml"

    def folder(self, node, role):
        """Where a server keeps what it has."""
        return self._disks[node].mount_point / "data" if role == "data" else self.config(node, role).parent

    def make(self):
        """Founds the cluster and has everybody join."""
        self.write(0, "manager", f'[found]\nname = "manager-1"\ncopies = {min(3, self.nodes)}\n'
                   f"pg_count = {PG_COUNT}\nvolume_mib = {VOLUME_MIB}\n")
        self.spawn(0, "manager")
        for node, role in self.all()[1:]:
            self.write(node, role, self.token(node, role))
        for node, role in self.all()[1:]:
            self.spawn(node, role)
        self.wait_until_ready()

    def write(self, node, role, lines):
        """A role's configuration. Of the managers it names all, as one may be down at a start."""
        settings = [f'dir = "{self.folder(node, role)}"', f'listen = "{address(node, role)}:{PORT}"']
        if role == "proxy":
            settings.append(f's3_listen = "{address(node, role)}:{S3_PORT}"')
            settings.append(f'metrics_listen = "{address(node, role)}:{S3_PORT + 1}"')
        managers = ", ".join(f'"{at}@{address(at, "manager")}:{PORT}"' for at in range(self.nodes))
        lines = re.sub(r"managers = .*", f"managers = [{managers}]", lines)
        self.config(node, role).parent.mkdir(parents=True, exist_ok=True)
        self.config(node, role).write_text("\n".join(settings) + "\n" + lines)

    def token(self, node, role):
        """Lines for the configuration of a server that is to join. The founder may still be starting."""
        line = [self.binary, "token", "--config", self.config(0, "manager"), "--name", self.name(node, role),
                "--role", role, "--machine", str(node + 1)]
        deadline = time.monotonic() + READY_SECONDS
        while True:
            done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=COMMAND_SECONDS)
            if done.returncode == 0:
                return done.stdout
            assert time.monotonic() < deadline, f"token ended with {done.returncode}: {done.stderr}"
            time.sleep(0.1)

    def spawn(self, node, role):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "LARDER_"))}
        environment |= {"LARDER_ROOT_ACCESS_KEY": ACCESS, "LARDER_ROOT_SECRET_KEY": SECRET}
        environment |= {"LARDER_LOG": os.environ.get("LARDER_LOG", "info")}
        name = self.name(node, role)
        line = self.network.inside(name, [self.binary, role, "--config", self.config(node, role)])
        with (self.directory / name / "process.log").open("ab") as log:
            self._running[node, role] = subprocess.Popen(
                line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while not all(is_ready(proxy.endpoint) for proxy in self.proxies):
            self.check_running()
            assert time.monotonic() < deadline, f"not ready within {READY_SECONDS} s"
            time.sleep(0.1)

    def signal(self, node, role, number):
        self._running[node, role].send_signal(number)

    def kill_all(self):
        """`kill -9` of every process."""
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self._running.values():
            process.wait(STOP_SECONDS)
        self._running = {}

    def stop(self):
        """SIGTERM; the exit codes of those that did not end well."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        codes = {self.name(*at): process.wait(STOP_SECONDS) for at, process in self._running.items()}
        self._running = {}
        return {name: code for name, code in codes.items() if code != 0}

    def restart(self):
        """Starts all processes on what they have."""
        for node, role in self.all():
            self.spawn(node, role)
        self.wait_until_ready()

    def fill_disk(self, node):
        """Leaves no room on the disk of a node's data server; what makes room again."""
        ballast = self._disks[node].mount_point / "ballast"
        with ballast.open("wb") as file:
            free = os.statvfs(ballast)
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
        return ballast.unlink

    def slow_disk(self, node, writes_per_second):
        """Lets the disk of a node's data server take few writes; what ends that."""
        return self._disks[node].slow(self._running[node, "data"].pid, writes_per_second)

    def check_running(self):
        ended = {self.name(*at): process.returncode for at, process in self._running.items()
                 if process.poll() is not None}
        assert not ended, f"ended by themselves: {ended}"

    def status(self):
        return status_of(self.binary, self.config(0, "proxy"))

    def set_policy(self, bucket, policy):
        set_policy_of(self.binary, self.config(0, "manager"), bucket, policy)

    def log_tail(self, lines=8):
        return log_tails(self.directory.glob("*/process.log"), lines)
