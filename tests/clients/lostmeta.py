"""A meta server is lost with all that it had, and another takes its place while clients put and get.

A cluster of three nodes keeps three copies of metadata. One meta server is killed, its directory is removed, and it is removed for good; a new one joins. All
placement groups have three members again, whose indexes are equal: the groups that the new one takes share walks over the index of each server that it
takes them from. No put waits long, and every object reads as it was put.

    python3 tests/clients/lostmeta.py [--small N] [--seed N] [--binary PATH] [--within SECONDS]
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
import urllib.request

from cluster import operate
from devcluster import Cluster, inspect_of, unsound
from grow import BUCKET, CALM_SECONDS, Late, Writers, fill, verify
from harness import ACCESS, SECRET, default_binary, scratch_folder
from rebuild import until, with_metrics
from workload import Clock, Failed

LOST_NODE = 2
GONE_SECONDS, WHOLE_SECONDS = 30, 600
# The bound for any single failure.
RESUMED_SECONDS = 10
OBJECTS = 150
BALLAST_BYTES = 1024
# Ops of a group that its primary remembers at least: with so many puts for each group none is followed by them alone.
REMEMBERED_OPS, GROUPS = 256, 32
# Groups that share a walk, in the mean: the first walk begins with the first group that asks.
SHARED_LEAST = 3


def ballast(cluster, objects, size=BALLAST_BYTES):
    """Objects that are rows of the index alone, of which nobody here remembers the content: the benchmark's client puts them fastest."""
    environment = os.environ | {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    command = [cluster.binary, "bench", "get", "--endpoint", cluster.proxies[0].endpoint, "--objects", str(objects),
               "--size", str(size), "--duration", "1s", "--json"]
    ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    if ended.returncode != 0 or json.loads(ended.stdout).get("errors"):
        raise Failed(f"the objects that were to be there cannot be put or read: {ended.stdout}{ended.stderr}")


def count(ports):
    """What the meta servers that answer have counted of snapshots, in all."""
    total = {"begun": 0, "walks": 0, "pieces_alone": 0}
    for port in ports:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                for name in total:
                    metric = f"larder_snapshots_{name}_total" if name == "begun" else f"larder_snapshot_{name}_total"
                    if line.startswith(f"{metric} "):
                        total[name] += int(float(line.split()[1]))
    return total


def is_level(cluster):
    status = cluster.status()
    groups = status["pgs"]
    members = sum(it["member_of"] for it in status["servers"])
    return groups["clean"] == groups["total"] and members == 3 * groups["total"] or (members, groups)


def replace(cluster, scratch, writers, clock):
    """Loses a meta server and waits for another to be what it was; how long each took, and the puts meanwhile."""
    time.sleep(CALM_SECONDS)
    lost = time.monotonic()
    cluster.signal(LOST_NODE, "meta", 9)
    shutil.rmtree(cluster.folder(LOST_NODE, "meta"))
    name = f"node-{LOST_NODE + 1}-meta"
    gone = lambda: next((it["state"] for it in cluster.status()["servers"] if it["name"] == name), None) != "up" or "up"
    until(GONE_SECONDS, "it is found down", gone)
    operate(cluster, 0, "removed for good", "remove", name, "--yes")
    clock.tell("a meta server is lost")
    begun = time.monotonic()
    late = Late(cluster, scratch)
    try:
        until(GONE_SECONDS, "another has joined", lambda: any(it["name"] == "late-meta" for it in cluster.status()["servers"]))
        until(WHOLE_SECONDS, "all groups have their members", lambda: is_level(cluster))
        took = time.monotonic() - begun
        clock.tell("another has all of it")
        time.sleep(CALM_SECONDS)
        writers.stop()
        return late, took, writers.between(lost, time.monotonic())
    except BaseException:
        late.stop()
        raise


def run(cluster, arguments, scratch):
    clock = Clock()
    ports = with_metrics(cluster)
    cluster.proxies[0].boto3().create_bucket(Bucket=BUCKET)
    bodies = fill(cluster, OBJECTS, 0, arguments.seed)
    ballast(cluster, arguments.small)
    clock.tell("filled")
    writers = Writers(cluster.proxies, arguments.seed)
    late = None
    try:
        late, took, puts = replace(cluster, scratch, writers, clock)
        counted = count(ports)
        bodies |= writers.bodies
        verify(cluster, bodies, Clock())
        cluster.stop()
    finally:
        with contextlib.suppress(Failed):
            writers.stop()
        if late:
            late.stop()
    return bodies, took, puts, counted


def check(cluster, arguments, scratch, took, puts, counted):
    left = [fault for fault in unsound(cluster) if f"the meta of node {LOST_NODE + 1}" not in fault]
    code, report = inspect_of(cluster.binary, scratch / "late-meta")
    if left or code != 0 or "\nsound: " not in report:
        raise Failed("\n".join([*left, f"the new one: {code}\n{report}"]))
    if counted["begun"] < GROUPS or counted["walks"] * SHARED_LEAST > counted["begun"]:
        raise Failed(f"each group walked over the index alone: {counted}")
    if took > arguments.within:
        raise Failed(f"it took {took:.1f} s")
    if puts[2] > RESUMED_SECONDS:
        raise Failed(f"a put took {puts[2]:.1f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--small", type=int, default=2 * REMEMBERED_OPS * GROUPS, help="objects that lie in METAX alone")
    parser.add_argument("--within", type=float, default=60, help="seconds in which all must be well again after the new one's start")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"lostmeta: seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        cluster = Cluster(arguments.binary, scratch / "cluster", 3, ["--no-restart"])
        try:
            bodies, took, puts, counted = run(cluster, arguments, scratch)
            print(f"lostmeta: {len(bodies) + arguments.small} objects; all groups have their members {took:.1f} s after the new one's start; "
                  f"{counted['begun']} snapshots by {counted['walks']} walks, {counted['pieces_alone']} pieces alone; "
                  f"meanwhile {puts[0]} puts, median {puts[1] * 1000:.0f} ms, longest {puts[2] * 1000:.0f} ms", flush=True)
            check(cluster, arguments, scratch, took, puts, counted)
        except (Failed, AssertionError) as failure:
            print(f"FAIL lostmeta: {failure}\n{cluster.log_tail()}\n0 passed, 1 failed")
            return 1
        finally:
            cluster.kill_all()
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
