"""A volume whose free space lies in small pieces is compacted while clients go on and a machine is killed.

Three machines with a single placement group fill a volume with objects of 32 KiB and delete every other: a chunk of 8 MiB finds no
room there, and another volume is drawn. Then chunks move, slowly, while objects are read, put and deleted; the machine that moves
them is killed and comes back. All objects must read as they were put, on every machine; at the end a large chunk finds room in what was there.

    python3 tests/clients/compact.py [--seed N] [--binary PATH]
"""

import argparse
import concurrent.futures
import json
import pathlib
import random
import subprocess
import sys
import threading
import time

from harness import COMMAND_SECONDS, content, default_binary, scratch_folder
from peers import Machine, equal_machines, ready, run, secret_file, until, whole
from workload import KIB, MIB, Clock, Failed

BUCKET = "compact"
SMALL = 32 * KIB
OBJECTS = 1700  # 53 of the 64 MiB of a volume, which takes 54
COMPACTED_SECONDS = 120
ASKED_AGAIN_SECONDS = 12  # Twice the pause between two looks for volumes to compact, and some.


class OneGroup(Machine):
    def flags(self):
        flags = super().flags()
        flags[-1].write_text("pg_count = 1\nvolume_mib = 64\nlog_segment_mib = 4\nbackground_mib_per_s = 2\n")
        return flags


def status(machine):
    done = subprocess.run([machine.binary, "status", "--config", machine.directory, "--json"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=COMMAND_SECONDS)
    if done.returncode not in (0, 1):
        raise Failed(f"status: {done.returncode}, {done.stderr}")
    return json.loads(done.stdout)


def compaction(machine):
    """Of each meta server that answers: how far its compaction is."""
    told = status(machine)["background"]
    return {it["name"].split("/")[0]: it["progress"]["compaction"] for it in told if it["progress"]}


def total(machine, what):
    return sum(it[what] for it in compaction(machine).values())


class Clients:
    """Read, put and delete while chunks move; objects that only they touch, and those that stay."""

    def __init__(self, machines, bodies, seed):
        self.machines, self.bodies, self.rng = machines, bodies, random.Random(seed)
        self.is_over, self.failures, self.reads = threading.Event(), [], 0
        self.threads = [threading.Thread(target=self.go_on, args=(n,)) for n in range(3)]
        for thread in self.threads:
            thread.start()

    def go_on(self, n):
        rng, number = random.Random(self.rng.random()), 0
        s3 = [machine.boto3() for machine in self.machines]
        keys = sorted(self.bodies)
        while not self.is_over.is_set():
            key, client = rng.choice(keys), rng.choice(s3)
            try:
                if client.get_object(Bucket=BUCKET, Key=key)["Body"].read() != self.bodies[key]:
                    self.failures.append(f"{key} reads otherwise than it was put")
                self.reads += 1
                client.put_object(Bucket=BUCKET, Key=f"brief/{n}/{number % 8}", Body=rng.randbytes(rng.randrange(4000, 90_000)))
                client.delete_object(Bucket=BUCKET, Key=f"brief/{n}/{rng.randrange(8)}")
                number += 1
            except Exception as error:  # A machine is killed meanwhile: only wrong bytes count.
                if "otherwise" in str(error):
                    raise
                time.sleep(0.2)

    def end(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()
        if self.failures:
            raise Failed("\n".join(self.failures[:5]))


def side_by_side(machine, calls):
    s3 = machine.boto3()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda call: call(s3), calls))


def scatter(machine, seed):
    """Fills a volume and deletes every other object; what stays."""
    bodies = {f"small/{n:04}": content(seed * OBJECTS + n, SMALL) for n in range(OBJECTS)}
    s3 = machine.boto3()
    for key, body in bodies.items():  # One after the other, so that they lie in this order.
        s3.put_object(Bucket=BUCKET, Key=key, Body=body)
    gone = [key for n, key in enumerate(sorted(bodies)) if n % 2]
    side_by_side(machine, [lambda s3, key=key: s3.delete_object(Bucket=BUCKET, Key=key) for key in gone])
    return {key: body for key, body in bodies.items() if key not in set(gone)}


def put_large(machine, name, seed):
    body = content(seed, 8 * MIB)
    machine.boto3().put_object(Bucket=BUCKET, Key=name, Body=body)
    return {name: body}


def resumed(machine, machines):
    """Puts large objects until volumes are compacted again: a primary hears of large chunks when one is put, and the group
    may get another one after it has."""
    put = {}

    def walks():
        put.update(put_large(machine, "large/during", 2))
        put_at = time.monotonic()
        while time.monotonic() - put_at < ASKED_AGAIN_SECONDS:
            if total(machine, "walks") > 0:
                return True
            time.sleep(0.2)
        return False

    until("compacts again", COMPACTED_SECONDS, walks, machines, lambda: json.dumps(compaction(machine)))
    return put


def compact(arguments, scratch):
    clock = Clock(every=0)
    secret = secret_file(arguments.binary, scratch / "secret")
    machines = equal_machines(OneGroup, arguments.binary, scratch, secret)
    try:
        for machine in machines:
            machine.spawn()
        ready(machines)
        whole(machines[0], machines, 3)
        machines[0].boto3().create_bucket(Bucket=BUCKET)
        bodies = scatter(machines[0], arguments.seed)
        bodies |= put_large(machines[0], "large/behind", 0)  # Where nothing was yet there is room for one.
        volumes = status(machines[0])["volumes"]["total"]
        bodies |= put_large(machines[1], "large/before", 1)
        drawn = status(machines[0])["volumes"]["total"]
        if (volumes, drawn) != (1, 2):
            raise Failed(f"{volumes} volumes, and {drawn} with a large object: nothing was fragmented")
        clients = Clients(machines, bodies, arguments.seed)
        try:
            until("chunks move", COMPACTED_SECONDS, lambda: total(machines[0], "chunks") > 20, machines)
            text = run(arguments.binary, "status", "--config", machines[0].directory)
            line = next((line for line in text.splitlines() if line.lstrip().startswith("compact ")), None)
            clock.tell(f"status: {line}")
            moving = next(machine for machine in machines if compaction(machines[0])[machine.name]["chunks"] > 0)
            moving.kill()
            clock.tell(f"{moving.name} killed while it moved chunks")
            moving.spawn()
            ready(machines)
            others = [machine for machine in machines if machine is not moving]
            bodies |= resumed(others[0], machines)

            def is_compacted():
                told = compaction(others[0])
                return all(it["fragmented"] == 0 and it["under_way"] == 0 for it in told.values())

            until("compacted", COMPACTED_SECONDS, is_compacted, machines, lambda: json.dumps(compaction(others[0])))
            moved = total(others[0], "bytes")
        finally:
            clients.end()
        whole(machines[0], machines, 3)
        drawn = status(machines[0])["volumes"]["total"]
        bodies |= put_large(machines[2], "large/after", 3)
        if status(machines[0])["volumes"]["total"] != drawn:
            raise Failed("another volume was drawn, though there is room")
        clock.tell(f"{moved / MIB:.1f} MiB moved since, {clients.reads} reads meanwhile; {drawn} volumes")
        for machine in machines:
            s3 = machine.boto3()
            for key, body in bodies.items():
                if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != body:
                    raise Failed(f"{machine.name}: {key} reads otherwise than it was put")
        clock.tell(f"{len(bodies)} objects read as they were put, on each machine")
    finally:
        for machine in machines:
            machine.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--binary", default=default_binary())
    arguments = parser.parse_args()
    with scratch_folder() as folder:
        try:
            compact(arguments, pathlib.Path(folder))
        except Failed as failure:
            print(f"FAIL compact: {failure}\n0 passed, 1 failed")
            return 1
    print("compact: compacted, and nothing lost\n1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
