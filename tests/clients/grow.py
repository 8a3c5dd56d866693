"""A cluster of three nodes grows while clients put and get: nothing that is there moves but the metadata that must.

Objects are put. A data server joins: it gets new volumes, and no byte of an object moves. A meta server joins: it becomes a member of a
quarter of the placement groups, and clients go on meanwhile. Every put is read again at once and at the end.

With `--without-groups`, of a program built for measurement, it shows what that saves: the volumes of a placement group then lie on
the machines of its members, and data moves along with metadata.

    python3 tests/clients/grow.py [--objects N] [--small N] [--seed N] [--binary PATH] [--without-groups]
"""

import argparse
import contextlib
import random
import subprocess
import sys
import threading
import time

from devcluster import Cluster
from harness import content, default_binary, scratch_folder
from rebuild import Spare, until
from workload import Clock, Failed

BUCKET = "grow"
WRITERS = 4
# At this rate the machine is not what puts wait for.
PAUSE_SECONDS = 0.05
CALM_SECONDS = 3
JOINED_SECONDS = 60
MOVED_SECONDS = 300
INLINE_BYTES = 2048
# Of any put, while members move: the goal for any failure.
LONGEST_SECONDS = 3
SIZES = [800, 8_000, 70_000]


class Writers:
    """Threads that put objects, each new, and get each at once; every proxy has its share."""

    def __init__(self, proxies, seed):
        self.bodies, self.puts, self.faults = {}, [], []
        self._lock, self._stopping, self._seed = threading.Lock(), threading.Event(), seed
        self._threads = [threading.Thread(target=self._run, args=(proxies[at % len(proxies)].boto3(), at)) for at in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def stop(self):
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self.faults:
            raise Failed(self.faults[0])

    def between(self, since, until):
        """Seconds that puts took which began within this time: how many, the median, the longest."""
        with self._lock:
            took = sorted(ended - began for began, ended in self.puts if since <= began < until)
        if not took:
            raise Failed("no put within a phase")
        return len(took), took[len(took) // 2], took[-1]

    def _run(self, s3, at):
        turn = 0
        while not self._stopping.wait(PAUSE_SECONDS):
            turn += 1
            key, size = f"writer-{at}/{turn}", SIZES[turn % len(SIZES)]
            body, began = content(f"{self._seed}/{key}", size), time.monotonic()
            try:
                s3.put_object(Bucket=BUCKET, Key=key, Body=body)
                with self._lock:
                    self.puts.append((began, time.monotonic()))
                    self.bodies[key] = body
                if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != body:
                    raise Failed(f"{key} reads otherwise than it was just put")
            except Exception as error:
                self.faults.append(f"{key}: {error}")
                return


class Late:
    """A meta server that joins."""

    def __init__(self, cluster, scratch):
        lines = cluster.token("late-meta", "meta", 99)
        config = scratch / "late-meta.toml"
        config.write_text(f'dir = "{scratch}/late-meta"\nlisten = "127.0.0.1:0"\n{lines}')
        command = [cluster.binary, "meta", "--config", config]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


# The server that joins has metadata and, where groups are left out, data.
MACHINE = 99


def moved_bytes(status):
    return sum(it["progress"]["background"]["rebuild_bytes"] for it in status["background"])


def rests(cluster):
    """Whether no byte has moved since it was asked last, a few seconds ago."""
    seen = []

    def look():
        time.sleep(CALM_SECONDS)
        seen.append(moved_bytes(cluster.status()))
        return len(seen) > 3 and len(set(seen[-3:])) == 1 or seen[-1]

    return look


def fill(cluster, objects, small, seed):
    """Objects of some sizes, and many that are rows of the index alone."""
    bodies = {f"old/{number}": content(f"{seed}/{number}", SIZES[number % len(SIZES)]) for number in range(objects)}
    bodies |= {f"small/{number}": f"{seed}/{number}".encode() for number in range(small)}
    left = list(bodies.items())

    def put(s3):
        with contextlib.suppress(IndexError):
            while True:
                key, body = left.pop()
                s3.put_object(Bucket=BUCKET, Key=key, Body=body)

    threads = [threading.Thread(target=put, args=(proxy.boto3(),)) for proxy in cluster.proxies for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return bodies


def grow(cluster, scratch, writers, clock, has_groups):
    """Returns what it saw of puts in each phase, the late server's share, and the bytes that moved."""
    began = time.monotonic()
    time.sleep(CALM_SECONDS)
    calm, before = time.monotonic(), moved_bytes(cluster.status())
    data = Spare(cluster, scratch, "late-data", 98 if has_groups else MACHINE)
    late = None
    try:
        named = lambda name: {server["name"]: server for server in cluster.status()["servers"]}[name]
        until(JOINED_SECONDS, "the data server is there", lambda: named("late-data")["volumes_free"] > 0 or named("late-data"))
        joined = time.monotonic()
        time.sleep(CALM_SECONDS)
        moved = moved_bytes(cluster.status()) - before
        if moved != 0:
            raise Failed(f"a data server joined, and {moved} bytes moved")
        clock.tell("a data server has joined")
        grows = time.monotonic()
        late = Late(cluster, scratch)

        def is_settled():
            status = cluster.status()
            share = next((it["member_of"] for it in status["servers"] if it["name"] == "late-meta"), 0)
            is_level = sum(it["member_of"] for it in status["servers"]) == 3 * status["pgs"]["total"]
            return share > 0 and is_level and status["pgs"]["clean"] == status["pgs"]["total"] or (share, status["pgs"])

        until(JOINED_SECONDS, "the placement groups are clean", is_settled)
        time.sleep(CALM_SECONDS)
        grown, status = time.monotonic(), cluster.status()
        if not has_groups:
            until(MOVED_SECONDS, "no volume moves any more", rests(cluster))
            status = cluster.status()
        moved = moved_bytes(status) - before
        if has_groups and moved != 0:
            raise Failed(f"a meta server joined, and {moved} bytes of objects moved")
        share, slots = named("late-meta")["member_of"], 3 * status["pgs"]["total"]
        if not slots / 8 < share < 3 * slots / 8:
            raise Failed(f"the fourth meta server is one of {share} of {slots} members")
        writers.stop()
        phases = {"before": (began, calm), "a data server joins": (calm, joined), "a meta server joins": (grows, grown)}
        return {name: writers.between(*phase) for name, phase in phases.items()}, share, slots, moved
    finally:
        data.stop()
        if late:
            late.stop()


def run(cluster, arguments, scratch):
    clock = Clock()
    cluster.start()
    cluster.proxies[0].boto3().create_bucket(Bucket=BUCKET)
    bodies = fill(cluster, arguments.objects, arguments.small, arguments.seed)
    clock.tell("filled")
    writers = Writers(cluster.proxies, arguments.seed)
    try:
        seen = grow(cluster, scratch, writers, clock, not arguments.without_groups)
    finally:
        with contextlib.suppress(Failed):
            writers.stop()
    # The servers that joined are gone again: two of three copies are left of everything.
    return seen, bodies | writers.bodies


def verify(cluster, bodies, clock):
    for number, (key, body) in enumerate(bodies.items()):
        s3 = cluster.proxies[number % cluster.nodes].boto3() if number < cluster.nodes else s3
        if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != body:
            raise Failed(f"{key} reads otherwise than it was put")
        clock.tell(f"{number} objects verified")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--objects", type=int, default=150, help="objects with data that are put first")
    parser.add_argument("--small", type=int, default=0, help="as many more that lie in METAX alone")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--without-groups", action="store_true", help="of a program in which volumes follow the members of their group (cargo xtask ablation without-groups): puts may take long")
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"grow: seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        cluster = Cluster(arguments.binary, scratch / "cluster", 3)
        try:
            (phases, share, slots, moved), bodies = run(cluster, arguments, scratch)
            verify(cluster, bodies, Clock())
            longest = max(longest for _, _, longest in phases.values())
            if longest > LONGEST_SECONDS and not arguments.without_groups:
                raise Failed(f"a put took {longest:.1f} s: {phases}")
        except (Failed, AssertionError) as failure:
            print(f"FAIL grow: {failure}\n{cluster.log_tail()}\n0 passed, 1 failed")
            return 1
        finally:
            cluster.kill_all()
    told = "; ".join(f"{name}: {puts} puts, median {median * 1000:.0f} ms, longest {longest * 1000:.0f} ms"
                     for name, (puts, median, longest) in phases.items())
    held = sum(len(body) for body in bodies.values() if len(body) > INLINE_BYTES)
    told_of_bytes = f"{moved / 1e6:.1f} MB of {held / 1e6:.1f} MB of objects moved" if moved else "no byte moved"
    print(f"grow: {len(bodies)} objects, none lost, {told_of_bytes}; {share} of {slots} members moved; {told}")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
