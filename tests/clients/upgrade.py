"""Three equal machines, or more, are upgraded from an earlier release, one after the other, while clients with ordinary retries work
with the others.

No request of theirs fails. The cluster's version rises by itself once all are upgraded, and not before.
A machine that goes back to the earlier release is refused and told what to install, while the others serve. Where both releases speak
the same version it may go back.
Nothing that was acknowledged is lost.

The earlier release is built from `--from`, unless `--old` names its program.

    python3 tests/clients/upgrade.py [--from REVISION | --old PATH] [--machines 3] [--seed N] [--binary PATH]
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from botocore.exceptions import BotoCoreError, ClientError
from devcluster import is_ready
from harness import ROOT, STOP_SECONDS, content, default_binary, scratch_folder
from peers import Machine, equal_machines, ready, secret_file, until, whole
from workload import Clock, Failed

BUCKET = "upgraded"
CLIENTS, KEYS_OF_CLIENT = 4, 20
# Of a machine.
ROLES = 4
SIZES = [100, 9_000, 300_000]
# Before a machine stops, while it is away, and once it is back.
WORK_SECONDS = 1.5
# A proxy coalesces pieces after each 127th append.
RECORDS = 2 * 256 + 44
RAISED_SECONDS, SPARED_SECONDS, REFUSED_SECONDS, STAYS_SECONDS = 30, 60, 30, 3


class Clients:
    """Threads that put, get and delete keys of their own through some machines, each with boto3's own retries."""

    def __init__(self, machines, bodies, seed):
        self.bodies, self.faults, self.done, self._stopping = bodies, [], 0, threading.Event()
        retries = {"mode": "standard", "total_max_attempts": 5}
        clients = [machines[at % len(machines)].boto3(retries=retries) for at in range(CLIENTS)]
        self._threads = [threading.Thread(target=self._run, args=(s3, at, f"{seed}/{at}")) for at, s3 in enumerate(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure):
        self._stopping.set()
        for thread in self._threads:
            thread.join(STOP_SECONDS)
        if self.faults and not any(failure):
            raise Failed(f"a client with ordinary retries failed: {self.faults[0]}")

    def _run(self, s3, at, seed):
        rng = random.Random(seed)
        while not self._stopping.is_set():
            key = f"{at}/{rng.randrange(KEYS_OF_CLIENT)}"
            try:
                self._one(s3, key, rng)
                self.done += 1
            except (BotoCoreError, ClientError, Failed) as error:
                self.faults.append(f"{key}: {error}")
                return

    def _one(self, s3, key, rng):
        if key in self.bodies:
            if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != self.bodies[key]:
                raise Failed("it reads otherwise than it was put")
            if rng.random() < 0.2:
                s3.delete_object(Bucket=BUCKET, Key=key)
                del self.bodies[key]
                return
        body = content(str(rng.random()), rng.choice(SIZES))
        s3.put_object(Bucket=BUCKET, Key=key, Body=body)
        self.bodies[key] = body


def earlier(revision):
    """The program of an earlier release, built beside this one."""
    folder = ROOT / "target" / "earlier"
    subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, capture_output=True)
    subprocess.run(["git", "worktree", "add", "--detach", "--force", folder, revision], cwd=ROOT, check=True, capture_output=True)
    environment = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target" / "earlier-target")}
    subprocess.run(["cargo", "build", "--locked", "--quiet", "--package", "larder"], cwd=folder, env=environment, check=True)
    return ROOT / "target" / "earlier-target" / "debug" / "larder"


def metric(machine, name):
    """The metric's value; 0 if the release does not have it."""
    try:
        return Machine.metric(machine, name)
    except TypeError:
        return 0


def spared(machine, machines):
    """A machine may be stopped: the cluster can do without it."""
    def is_spared():
        try:
            with urllib.request.urlopen(f"{machine.endpoint}/healthz/cluster?maintenance=true", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False
    until("spared", SPARED_SECONDS, is_spared, machines)


def replace(machine, binary):
    """Another program runs in its place."""
    if code := machine.stop():
        raise Failed(f"a stop ended with {code}:\n{machine.log_tail()}")
    time.sleep(WORK_SECONDS)
    machine.binary = binary
    machine.spawn()


def append_and_delete(s3, key):
    """Appends to an object, behind which pieces are coalesced, and leaves nothing of it that the bucket lists."""
    for at in range(RECORDS):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"x", WriteOffsetBytes=at)
    s3.delete_object(Bucket=BUCKET, Key=key)


def upgrade(machines, binary, before, bodies, seed, clock):
    """Each in turn. Returns how much the clients did."""
    done = 0
    for number, machine in enumerate(machines):
        others = [one for one in machines if one is not machine]
        spared(machine, machines)
        with Clients(others, bodies, f"{seed}/{number}") as clients:
            time.sleep(WORK_SECONDS)
            replace(machine, binary)
            ready(machines)
            time.sleep(WORK_SECONDS)
        done += clients.done
        clock.tell(f"machine {number + 1} upgraded, {clients.done} requests, none failed")
        if number == 0:
            append_and_delete(others[0].boto3(), "before")
            if metric(machine, "cluster_version") > before:
                raise Failed("the cluster's version rose before all machines were upgraded")
    return done


def raised(machines, before):
    """The version that all machines show, once they do. One that did not rise in time is that of both releases."""
    def versions():
        return {metric(machine, "cluster_version") for machine in machines}
    deadline = time.monotonic() + RAISED_SECONDS
    while min(versions()) <= before and time.monotonic() < deadline:
        time.sleep(0.2)
    until("the cluster's version", RAISED_SECONDS, lambda: len(versions()) == 1 and min(versions()) > 0, machines,
          lambda: f"they show {versions()}")
    return min(versions())


def go_back(machine, others, old, bodies, seed):
    """A machine in the earlier release is not served any more, and the others serve."""
    with Clients(others, bodies, f"{seed}/back"):
        new = machine.binary
        replace(machine, old)
        until("refused", REFUSED_SECONDS, lambda: "install its release" in machine.log_tail(400), [machine, *others],
              lambda: machine.log_tail(40))
        deadline = time.monotonic() + STAYS_SECONDS
        while time.monotonic() < deadline:
            if is_ready(machine.endpoint):
                raise Failed("a machine below the cluster's version serves")
            time.sleep(0.1)
        machine.kill()
        machine.binary = new
        machine.spawn()
        ready([machine, *others])


def test(old, new, scratch, seed, count):
    clock, secret, bodies = Clock(every=0), secret_file(old, scratch / "secret"), {}
    machines = equal_machines(Machine, old, scratch, secret, count=count)
    try:
        for machine in machines:
            machine.spawn()
        ready(machines)
        s3 = machines[0].boto3()
        s3.create_bucket(Bucket=BUCKET)
        before = metric(machines[0], "cluster_version")
        done = upgrade(machines, new, before, bodies, seed, clock)
        after = raised(machines, before)
        clock.tell(f"the cluster's version is {after:.0f}, and was {before:.0f}")
        append_and_delete(machines[1].boto3(), "after")
        if after > before:
            go_back(machines[-1], machines[:-1], old, bodies, seed)
            clock.tell("a machine that went back was refused, told what to install, and came again")
        else:
            replace(machines[-1], old)
            ready(machines)
        whole(machines[0], machines, ROLES * count)
        for machine in machines:
            s3 = machine.boto3()
            for key, body in bodies.items():
                if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != body:
                    raise Failed(f"{key} reads otherwise than it was put")
        listed = sum(page.get("KeyCount", 0) for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET))
        if listed != len(bodies):
            raise Failed(f"{listed} keys are listed, and {len(bodies)} were put")
        return done
    finally:
        for machine in machines:
            machine.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=default_binary())
    parser.add_argument("--old", type=pathlib.Path, help="the program of the earlier release")
    parser.add_argument("--from", dest="revision", default="HEAD~1", help="what to build it from")
    parser.add_argument("--machines", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"upgrade: seed {arguments.seed}", flush=True)
    old = arguments.old.absolute() if arguments.old else earlier(arguments.revision)
    with scratch_folder() as folder:
        try:
            done = test(old, arguments.binary, pathlib.Path(folder), arguments.seed, arguments.machines)
        except (Failed, AssertionError) as failure:
            print(f"FAIL upgrade: {failure}\n0 passed, 1 failed")
            return 1
    print(f"upgrade: {done} requests while machines were upgraded, none failed")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
