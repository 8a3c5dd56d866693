"""A network of its own: every process in a network namespace, with an address, behind one router that can drop what goes
from one to another.

Nothing of the machine's own network is touched. The namespaces are named in a mount namespace of this process alone: two
runs never meet, and all is gone with the process and its children, however they end.

```
  host ── eth0 ─┐
  host ── eth0 ─┼─ router: a blackhole rule for each pair (from, to) that is cut off
  host ── eth0 ─┘
```

A dropped packet is dropped in silence: its sender hears of it as little as of a cable that was pulled. Rules have a
direction, so a cut can be one way.
"""

import ctypes
import itertools
import os
import signal
import subprocess

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
PR_SET_PDEATHSIG = 1
ROUTER, GATEWAY = "router", "169.254.1.1"
EVERYWHERE = "0.0.0.0/0"
NEEDED = "network namespaces are needed: root (CAP_SYS_ADMIN, CAP_NET_ADMIN), `ip` of iproute2, and veth in the kernel"

libc = ctypes.CDLL(None, use_errno=True)


class Impossible(Exception):
    """This machine cannot make networks."""


def call(function, *arguments):
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise Impossible(f"{NEEDED}: {function.__name__}: {os.strerror(number)}")


def ip(*words):
    done = subprocess.run(["ip", *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Impossible(f"{NEEDED}: ip {' '.join(map(str, words))}: {done.stderr.strip()}")


def die_with_parent():
    """For a child: it is killed when the thread that started it ends."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Network:
    """Made once in a process, before it has threads: this process's mounts are its own from then on."""

    def __init__(self):
        try:
            call(libc.unshare, CLONE_NEWNS)
            self._command("mount", "--make-rprivate", "/")
            os.makedirs("/run/netns", exist_ok=True)
            self._command("mount", "-t", "tmpfs", "netns", "/run/netns")
        except (OSError, subprocess.CalledProcessError) as error:
            raise Impossible(f"{NEEDED}: {error}") from error
        self._numbers = itertools.count(1)
        ip("netns", "add", ROUTER)
        self._command(*self.inside(ROUTER, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]))
        self._addresses = {}

    @staticmethod
    def _command(*words):
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def host(self, name, address):
        """A namespace with one address, which all others reach."""
        ip("netns", "add", name)
        port = f"port{next(self._numbers)}"
        ip("link", "add", "name", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", ROUTER)
        ip("-n", name, "link", "set", "dev", "lo", "up")
        ip("-n", name, "addr", "add", f"{address}/32", "dev", "eth0")
        ip("-n", name, "link", "set", "dev", "eth0", "up")
        ip("-n", ROUTER, "addr", "add", f"{GATEWAY}/32", "dev", port)
        ip("-n", ROUTER, "link", "set", "dev", port, "up")
        ip("-n", ROUTER, "route", "add", f"{address}/32", "dev", port)
        ip("-n", name, "route", "add", GATEWAY, "dev", "eth0", "scope", "link")
        ip("-n", name, "route", "add", "default", "via", GATEWAY)
        self._addresses[name] = (address, port)

    @staticmethod
    def inside(name, line):
        """The command line that runs another one in a namespace, as the same process."""
        return ["ip", "netns", "exec", name, *line]

    @staticmethod
    def enter(name):
        """This thread, and all that it starts, is in the namespace from now on."""
        handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            call(libc.setns, handle, CLONE_NEWNET)
        finally:
            os.close(handle)

    def drop(self, source, target):
        """Drops what goes from one address or network to another; what ends that."""
        rule = ("from", source, "to", target, "priority", str(100 + next(self._numbers)), "blackhole")
        ip("-n", ROUTER, "rule", "add", *rule)
        return lambda: ip("-n", ROUTER, "rule", "del", *rule)

    def slow(self, name, rate):
        """Bounds what goes to and from a namespace, such as `1mbit`; what ends that."""
        ends = [(name, "eth0"), (ROUTER, self._addresses[name][1])]
        for where, device in ends:
            self._command("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf",
                          "rate", rate, "burst", "16kb", "latency", "200ms")
        return lambda: [self._command("tc", "-n", where, "qdisc", "del", "dev", device, "root") for where, device in ends]
