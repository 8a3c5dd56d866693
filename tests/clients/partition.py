"""A cluster of processes in network namespaces under S3 clients, while its network is cut: around a node, around one role,
between two roles, both ways or one way; and while a process stands still or runs only now and then, a data server's link is
slow, or its disk is slow or full.

Nothing that was acknowledged may be lost, nothing may be seen that was never put, and reads and writes of every key must go
on within 10 seconds of each cut and of its end; after that the cluster must become whole by itself. Clients use proxies that
are not cut off themselves. At the end it is killed as a whole, and must start again with all of it; `larder inspect` must find every server sound.

Needs root, and a kernel with network namespaces and veth: it fails where they are missing.

    python3 tests/clients/partition.py [--nodes 3] [--kind cut] [--role meta] [--pairs] [--turns N] [--seed N]
"""

import argparse
import datetime
import pathlib
import random
import signal
import sys
import threading
import time

from devcluster import is_ready, unsound
from harness import default_binary, scratch_folder
from netcluster import CLIENTS_ADDRESS, ROLES, NetCluster, address, node_network
from netspace import EVERYWHERE, Impossible, Network
from probers import BUCKET as PROBE_BUCKET, Probers
from workload import BUCKET, Clock, Failed, Journal, Load, Uploads, verify

RESUMED_SECONDS = 10
WHOLE_SECONDS = 60
HELD_SECONDS = 5
CALM_SECONDS = 1
SLOW_RATE = "10mbit"
# A disk with moving parts, at its worst.
SLOW_DISK_WRITES_PER_SECOND = 60
# Roles that speak to each other, the one that calls first.
TALKING = [("meta", "meta"), ("meta", "manager"), ("meta", "data"), ("data", "manager"), ("proxy", "meta"),
           ("proxy", "data"), ("proxy", "manager"), ("manager", "manager")]
KINDS = ("cut", "mute", "deaf", "node", "apart", "toward", "pause", "slow", "stutter", "full", "slow-disk")
# All but that which puts have to wait for by the write policy `all` (docs/cluster.md), and that which not every kernel can.
SURVIVED = tuple(kind for kind in KINDS if kind not in ("slow", "slow-disk"))
# A process that stutters stands still for the first and runs for the second.
STUTTER_SECONDS = (0.4, 0.02)


class Failure:
    """Something that can be begun and ended."""

    def __init__(self, kind, places, what):
        self.kind, self.places, self.what = kind, places, what

    def __str__(self):
        return f"{self.what} at {', '.join(str(node + 1) for node, _ in self.places)}"

    def lost_proxies(self):
        """Proxies that are no use to clients meanwhile."""
        return {node for node, role in self.places if role in ("proxy", "all")}

    def begin(self, cluster):
        """Begins it; what ends it."""
        if self.kind == "pause":
            node, role = self.places[0]
            cluster.signal(node, role, signal.SIGSTOP)
            return lambda: cluster.signal(node, role, signal.SIGCONT)
        if self.kind == "stutter":
            return stutter(cluster, *self.places[0])
        if self.kind == "full":
            return cluster.fill_disk(self.places[0][0])
        if self.kind == "slow-disk":
            return cluster.slow_disk(self.places[0][0], SLOW_DISK_WRITES_PER_SECOND)
        if self.kind == "slow":
            return cluster.network.slow(cluster.name(*self.places[0]), SLOW_RATE)
        ends = [cluster.network.drop(source, target) for source, target in self.dropped(cluster.nodes)]
        return lambda: [end() for end in ends]

    def dropped(self, nodes):
        """What is dropped: pairs of addresses or networks, from and to."""
        first = self.places[0]
        if self.kind == "node":
            here = node_network(first[0])
            others = [node_network(node) for node in range(nodes) if node != first[0]] + [CLIENTS_ADDRESS]
            return [pair for other in others for pair in ((here, other), (other, here))]
        one = address(*first)
        other = EVERYWHERE if len(self.places) == 1 else address(*self.places[1])
        ways = {"cut": "both", "apart": "both", "mute": "from", "toward": "from", "deaf": "to"}[self.kind]
        return [pair for pair in ((one, other) if ways != "to" else None, (other, one) if ways != "from" else None)
                if pair]


def stutter(cluster, node, role):
    """The process runs a little now and then; what ends that."""
    ended = threading.Event()

    def turns():
        while not ended.is_set():
            cluster.signal(node, role, signal.SIGSTOP)
            ended.wait(STUTTER_SECONDS[0])
            cluster.signal(node, role, signal.SIGCONT)
            ended.wait(STUTTER_SECONDS[1])

    thread = threading.Thread(target=turns)
    thread.start()
    return lambda: (ended.set(), thread.join())


def failures(nodes, kinds, roles):
    """All single failures of these kinds with these roles."""
    found, all_nodes = [], range(nodes)
    for kind in ("cut", "mute", "deaf", "pause"):
        found += [Failure(kind, [(node, role)], f"{kind} {role}") for role in ROLES for node in all_nodes]
    found += [Failure("node", [(node, "all")], "node") for node in all_nodes]
    for kind in ("slow", "stutter", "full", "slow-disk"):
        found += [Failure(kind, [(node, "data")], f"{kind} data") for node in all_nodes]
    for kind in ("apart", "toward"):
        for one, other in TALKING:
            pairs = [(a, b) for a in all_nodes for b in all_nodes
                     if a != b and (one != other or kind == "toward" or a < b)]
            found += [Failure(kind, [(a, one), (b, other)], f"{kind} {one}-{other}") for a, b in pairs]
    return [failure for failure in found if failure.kind in kinds
            and (not roles or any(role in roles for _, role in failure.places))]


def in_turns(found, rng):
    """Random, but each sort once before any comes again."""
    sorts = {}
    for failure in rng.sample(found, len(found)):
        sorts.setdefault(failure.what, []).append(failure)
    turns = []
    while any(sorts.values()):
        names = [name for name, left in sorts.items() if left]
        turns += [sorts[name].pop() for name in rng.sample(names, len(names))]
    return turns


def in_pairs(turns):
    """Two at a time, of different roles on different nodes: what one failure leaves, the other does not take."""
    left, pairs = [failure for failure in turns if len(failure.places) == 1 and failure.kind != "node"], []
    while left:
        first = left.pop(0)
        apart = (at for at, other in enumerate(left)
                 if all(one != two for one, two in zip(first.places[0], other.places[0])))
        second = next(apart, None)
        if second is not None:
            pairs.append([first, left.pop(second)])
    return pairs


def one_turn(cluster, journal, uploads, turn, struck, held_seconds):
    """The failures begin, are held, and end; the longest times for which a key did not work, from each on,
    and the time of day."""
    lost = set().union(*(failure.lost_proxies() for failure in struck))
    others = [proxy for node, proxy in enumerate(cluster.proxies) if node not in lost]
    loads = [Load(proxy, journal, uploads, f"{turn}", writers=2, round_number=f"{turn}-{at}")
             for at, proxy in enumerate(others)]
    probers = Probers(others, turn).start()
    for load in loads:
        load.start()
    try:
        probers.wait_for_all(time.monotonic(), RESUMED_SECONDS)
        wall = datetime.datetime.now(datetime.UTC).time()
        began, ends = time.monotonic(), [failure.begin(cluster) for failure in struck]
        try:
            probers.wait_for_all(began, RESUMED_SECONDS)
            time.sleep(max(0, began + held_seconds - time.monotonic()))
        finally:
            ended = time.monotonic()
            for end in ends:
                end()
        probers.wait_for_all(ended, RESUMED_SECONDS)
        wait_until_whole(cluster)
        time.sleep(CALM_SECONDS)
    finally:
        probers.stop()
        for load in loads:
            load.join()
    whole = time.monotonic()
    cluster.check_running()
    verify(others[-1], journal, uploads, whole=True)
    took = probers.longest(began, ended), probers.longest(ended, whole)
    for seconds, why in took:
        if seconds > RESUMED_SECONDS:
            raise Failed(f"a key did not work for {seconds:.1f} s: {why}")
    return [seconds for seconds, _ in took], wall


def wait_until_whole(cluster):
    """Until every proxy is ready, every server up, and every placement group has all its members."""
    deadline = time.monotonic() + WHOLE_SECONDS
    while True:
        status = cluster.status()
        down = [server["name"] for server in status["servers"] if server["state"] != "up"]
        unready = [proxy.endpoint for proxy in cluster.proxies if not is_ready(proxy.endpoint)]
        if not down and not unready and status["pgs"]["clean"] == status["pgs"]["total"]:
            return
        if time.monotonic() > deadline:
            raise Failed(f"not whole {WHOLE_SECONDS} s after the end: down {down}, not ready {unready}, {status['pgs']}")
        time.sleep(0.1)


def run(cluster, arguments):
    rng, clock = random.Random(arguments.seed), Clock(every=0 if arguments.verbose else 10)
    journal, uploads = Journal(), Uploads()
    cluster.make()
    s3 = cluster.proxies[0].boto3()
    s3.create_bucket(Bucket=BUCKET)
    s3.create_bucket(Bucket=PROBE_BUCKET)
    for bucket in (BUCKET, PROBE_BUCKET):
        cluster.set_policy(bucket, arguments.policy)
    wait_until_whole(cluster)
    singles = in_turns(failures(arguments.nodes, arguments.kind or SURVIVED, arguments.role), rng)
    turns = in_pairs(singles) if arguments.pairs else [[failure] for failure in singles]
    slowest = {}
    for turn, struck in enumerate(turns[: arguments.turns]):
        told = " and ".join(map(str, struck))
        try:
            took, wall = one_turn(cluster, journal, uploads, turn, struck, arguments.held)
        except (Failed, AssertionError) as failure:
            raise Failed(f"turn {turn}, {told}: {failure}") from failure
        what = " and ".join(sorted(failure.what for failure in struck))
        slowest[what] = [max(pair) for pair in zip(took, slowest.get(what, took))]
        clock.tell(f"turn {turn} at {wall:%H:%M:%S}, {told}: {took[0]:.1f} s, after its end {took[1]:.1f} s, "
                   f"{journal.acknowledged} acknowledged")
    cluster.kill_all()
    cluster.restart()
    verify(cluster.proxies[0], journal, uploads, whole=True)
    bad = cluster.stop()
    if bad:
        raise Failed(f"the last stop was not clean: {bad}")
    faults = unsound(cluster)
    if faults:
        raise Failed(f"not sound: {faults[0]}")
    return journal.acknowledged, slowest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=default_binary())
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--turns", type=int, help="so many failures; every one once if left out")
    parser.add_argument("--kind", choices=KINDS, action="append",
                        help="only failures of this kind; of all but `slow` and `slow-disk` if left out")
    parser.add_argument("--policy", default="all", help="write policy of the buckets; `slow` needs another than all")
    parser.add_argument("--role", choices=ROLES, action="append", help="only failures that this role has a part in")
    parser.add_argument("--pairs", action="store_true", help="two failures of different roles and nodes at a time")
    parser.add_argument("--held", type=float, default=HELD_SECONDS, help="seconds for which a failure lasts at least")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    parser.add_argument("--verbose", action="store_true", help="tell of each turn")
    arguments = parser.parse_args()
    print(f"partition: {arguments.nodes} nodes, seed {arguments.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with scratch_folder(arguments.keep) as scratch:
        cluster = None
        try:
            cluster = NetCluster(arguments.binary.resolve(), scratch / "cluster", arguments.nodes, Network())
            acknowledged, slowest = run(cluster, arguments)
        except (Failed, Impossible, AssertionError) as failure:
            tail = cluster.log_tail() if cluster else ""
            print(f"FAIL partition: {failure}\n{tail}\n0 passed, 1 failed")
            return 1
        finally:
            if cluster:
                cluster.kill_all()
                cluster.unmount()
    print(f"partition: {acknowledged} acknowledged operations, none lost, every server sound; all keys again after:")
    for what, (begun, ended) in sorted(slowest.items()):
        print(f"  {what}: {begun:.1f} s, after its end {ended:.1f} s")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
