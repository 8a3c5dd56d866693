"""A full cluster takes puts again soon after an empty machine joins, loses nothing of what it has, and evens out.

Three data servers on block devices of a few volumes are filled until puts are refused for want of space; none of them drains then. A
fourth joins under puts and gets: puts must succeed within 10 seconds of its joining. Paused, nothing more moves. A data server is killed at a moment at which volumes move, and started
again. In the end disks are evenly used, and every object that was acknowledged has three copies: it reads as it was put whichever two
of the four data servers are dead.

The devices are loop devices over files. Needs root.

    python3 tests/clients/rebalance.py [--seed N] [--binary PATH]
"""

import argparse
import itertools
import json
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

from devcluster import Proxy, log_tails
from disk import sh
from harness import ACCESS, COMMAND_SECONDS, SECRET, content, default_binary, free_port, scratch_folder
from workload import Clock, Failed

BUCKET = "rebalance"
VOLUME_MIB = 64
# A range more is for headers.
DEVICE_MIB = 9 * VOLUME_MIB
OBJECT_BYTES = 3 << 20
OBJECTS_MAX = 400
READY_SECONDS = 30
JOINED_SECONDS = 10
EVEN_SECONDS = 120
PAUSE_SECONDS = 0.2
# Longer than the managers take between two plans.
PAUSED_SECONDS = 8
KILLS_MAX = 5


class Roles:
    """A cluster of a manager, three meta servers, a proxy, and data servers on devices, each a process."""

    def __init__(self, binary, scratch):
        self.binary, self.scratch = binary, scratch
        self.processes, self.devices, self.proxy = {}, [], None

    def start(self):
        scratch, listen = self.scratch, f'listen = "127.0.0.1:{free_port()}"'
        found = f'\n[found]\nname = "manager"\ncopies = 3\npg_count = 2\nvolume_mib = {VOLUME_MIB}\n'
        self._start("manager", "manager", listen, found)
        until(READY_SECONDS, "a manager", lambda: (scratch / "manager" / "authority.pem").exists())
        for machine in range(3):
            self.join(f"meta-{machine}", "meta", machine)
            self.data(machine)
        port = free_port()
        credentials = scratch / "credentials.toml"
        credentials.write_text(f'access_key = "{ACCESS}"\nsecret_key = "{SECRET}"\n')
        credentials.chmod(0o600)
        self.join("proxy", "proxy", 0, f's3_listen = "127.0.0.1:{port}"\ncredentials = "{credentials}"')
        self.proxy = Proxy(f"http://127.0.0.1:{port}")

    def config(self, name):
        return self.scratch / f"{name}.toml"

    def _start(self, name, role, head, tail=""):
        lines = f'dir = "{self.scratch}/{name}"\nmetrics_listen = "off"\n{head}\n{tail}'
        self.config(name).write_text(lines)
        self.run(name, role)

    def run(self, name, role):
        with open(self.scratch / f"{name}.log", "ab") as log:
            command = [self.binary, role, "--config", self.config(name)]
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def join(self, name, role, machine, more=""):
        words = ["token", "--config", self.config("manager"), "--name", name, "--role", role, "--machine", str(machine)]
        lines = until(READY_SECONDS, f"a token for {name}", lambda: self.command(*words, fails=True))
        self._start(name, role, f'listen = "127.0.0.1:{free_port()}"\n{more}', lines)

    def data(self, machine):
        file = self.scratch / f"device-{machine}"
        with file.open("wb") as made:
            made.truncate(DEVICE_MIB << 20)
        done = subprocess.run(["losetup", "--find", "--show", file], check=True, capture_output=True, text=True)
        device = done.stdout.strip()
        self.devices.append(device)
        self.join(f"data-{machine}", "data", machine, f'data = "{device}"')

    def command(self, *words, fails=False):
        command = [self.binary, *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS)
        if done.returncode == 0:
            return done.stdout
        if fails:
            return None
        raise Failed(f"larder {' '.join(map(str, words))}: {done.returncode}, {done.stderr}")

    def refused(self, *words):
        """What a command that must fail says."""
        done = subprocess.run([self.binary, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS)
        if done.returncode == 0:
            raise Failed(f"larder {' '.join(map(str, words))} was done: {done.stdout}")
        return done.stderr

    def status(self):
        words = [self.binary, "status", "--json", "--config", self.config("proxy")]
        return json.loads(subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS).stdout)

    def plan(self):
        return self.command("rebalance", "plan", "--config", self.config("manager"), fails=True)

    def used(self):
        servers = self.status()["servers"]
        return [server["volumes"] for server in servers if server["name"].startswith("data-")]

    def kill(self, name):
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        for device in self.devices:
            sh("losetup", "--detach", device)


def until(seconds, what, look):
    """Looks until there is something to see, and returns it."""
    begun = time.monotonic()
    while not (seen := look()):
        if time.monotonic() > begun + seconds:
            raise Failed(f"{what}: not so after {seconds} s: {seen}")
        time.sleep(0.2)
    return seen


class Objects:
    """Objects that were acknowledged."""

    def __init__(self, proxy):
        self.s3, self.sizes, self.number = proxy.boto3(connect_timeout=2, read_timeout=10), {}, 0

    def put(self):
        """Whether a put was acknowledged."""
        from botocore.exceptions import BotoCoreError, ClientError

        self.number += 1
        key = f"o/{self.number}"
        try:
            self.s3.put_object(Bucket=BUCKET, Key=key, Body=content(key, OBJECT_BYTES))
        except (BotoCoreError, ClientError):
            return False
        self.sizes[key] = OBJECT_BYTES
        return True

    def fill(self):
        refused = 0
        while refused < 6:
            refused = 0 if self.put() else refused + 1
            if self.number > OBJECTS_MAX:
                raise Failed("the cluster is never full")

    def verify(self, keys, when):
        for key in keys:
            if self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != content(key, self.sizes[key]):
                raise Failed(f"{when}: {key} reads otherwise than it was put")


class Reads:
    """Gets of what is there, while volumes move."""

    def __init__(self, objects, proxy, rng):
        self._reader, self._rng = Objects(proxy), rng
        self._reader.sizes = dict(objects.sizes)
        self.count, self.fault, self._ends = 0, None, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            while not self._ends.wait(PAUSE_SECONDS):
                self._reader.verify([self._rng.choice(list(self._reader.sizes))], "while volumes move")
                self.count += 1
        except Exception as fault:
            self.fault = fault

    def stop(self):
        self._ends.set()
        self._thread.join()
        if self.fault:
            raise Failed(f"a get while volumes move: {self.fault}")


def run(cluster, rng, clock):
    s3 = cluster.proxy.boto3(connect_timeout=2, read_timeout=10)
    until(READY_SECONDS, "a bucket", lambda: made(s3))
    objects = Objects(cluster.proxy)
    until(READY_SECONDS, "a first put", objects.put)
    objects.fill()
    before = cluster.used()
    clock.tell(f"full with {len(objects.sizes)} objects, volumes {before}")
    refused = cluster.refused("drain", "--config", cluster.config("manager"), "data-0")
    if "would find no place" not in refused or any(server["draining"] for server in cluster.status()["servers"]):
        raise Failed(f"a full cluster lets a machine drain: {refused}")
    reads = Reads(objects, cluster.proxy, rng)
    try:
        cluster.data(3)
        until(READY_SECONDS, "another data server joins", lambda: len(cluster.status()["servers"]) == 9 and len(cluster.used()) == 4)
        joined = time.monotonic()
        until(60, "puts after an empty machine joined", objects.put)
        took = time.monotonic() - joined
        clock.tell(f"puts go on {took:.1f} s after another joined, volumes {cluster.used()}")
        pause(cluster, clock)
    finally:
        reads.stop()
    victim, moving = kill_while_volumes_move(cluster, rng)
    clock.tell(f"{victim} was killed while {moving} volumes moved, volumes {cluster.used()}")
    time.sleep(rng.uniform(0.5, 3))
    cluster.run(victim, "data")
    until(EVEN_SECONDS, "disks are evenly used", lambda: is_even(cluster))
    clock.tell(f"volumes {before} became {cluster.used()}, {reads.count} gets meanwhile")
    objects.verify(objects.sizes, "after the end")
    for pair in itertools.combinations([f"data-{machine}" for machine in range(4)], 2):
        for name in pair:
            cluster.kill(name)
        objects.verify(objects.sizes, f"while {' and '.join(pair)} are dead")
        for name in pair:
            cluster.run(name, "data")
        until(READY_SECONDS, "data servers that were killed are up", lambda: all_up(cluster))
    clock.tell("all objects read without any two of the data servers")
    if took > JOINED_SECONDS:
        raise Failed(f"puts went on only {took:.1f} s after an empty machine had joined")
    return took, len(objects.sizes)


def pause(cluster, clock):
    """Pauses rebalancing: what moves ends, nothing follows though it would, and goes on afterwards."""
    manager = ("--config", cluster.config("manager"))
    cluster.command("rebalance", "pause", *manager)
    until(EVEN_SECONDS, "what moves has ended", lambda: cluster.status()["rebalancing"]["moving"] == 0)
    paused = cluster.used()
    time.sleep(PAUSED_SECONDS)
    rebalancing, text = cluster.status()["rebalancing"], cluster.command("status", *manager)
    if cluster.used() != paused or rebalancing["moving"] or not rebalancing["left"] or not rebalancing["paused_ms"]:
        raise Failed(f"volumes {paused} became {cluster.used()} while paused: {rebalancing}")
    if "rebalancing is paused since" not in text:
        raise Failed(f"a status that says nothing of the pause: {text}")
    clock.tell(f"paused with volumes {paused}")
    cluster.command("rebalance", "start", *manager)


def kill_while_volumes_move(cluster, rng):
    """Kills a data server that was there from the beginning when volumes move; its name, and how many do afterwards."""
    victim = f"data-{rng.randrange(3)}"
    for _ in range(KILLS_MAX):
        until(EVEN_SECONDS, "volumes move", lambda: cluster.status()["rebalancing"]["moving"] > 0)
        cluster.kill(victim)
        if moving := cluster.status()["rebalancing"]["moving"]:
            return victim, moving
        # The moves ended in between.
        cluster.run(victim, "data")
        until(READY_SECONDS, "the data server that was killed is up", lambda: all_up(cluster))
    raise Failed(f"of {KILLS_MAX} kills none met a volume that moves")


def all_up(cluster):
    return all(server["state"] == "up" for server in cluster.status()["servers"])


def made(s3):
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        s3.create_bucket(Bucket=BUCKET)
    except (BotoCoreError, ClientError):
        return False
    return True


def is_even(cluster):
    status = cluster.status()
    rests = status["rebalancing"] == {"moving": 0, "left": 0, "paused_ms": None} and status["volumes"]["degraded"] == 0
    used = cluster.used()
    return rests and max(used) - min(used) <= 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"rebalance: seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        scratch = pathlib.Path(scratch)
        cluster = Roles(arguments.binary, scratch)
        try:
            cluster.start()
            took, count = run(cluster, random.Random(arguments.seed), Clock(every=0))
        except (Failed, AssertionError) as failure:
            print(f"FAIL rebalance: {failure}\n{cluster.plan()}\n{log_tails(scratch.glob('*.log'), 8)}\n0 passed, 1 failed")
            return 1
        finally:
            cluster.stop()
    print(f"rebalance: puts went on {took:.1f} s after an empty machine joined a full cluster; {count} objects read back")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
