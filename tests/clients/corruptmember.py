"""Plants corruptions in the indexes of meta servers of a cluster: each sets its index aside, and has all of it again.

A cluster of three nodes keeps three copies of metadata, and the indexes of its meta servers are on disk, with the log behind them freed. Then

- a block of one index rots, and it starts. It meets the rot, ends, and its next start sets index and log aside;
- a table of another is gone, so that it does not even open;
- the same of the third while the two others stand still: groups need it. It stays out, says so, and keeps what it has, until they go on.

Each time all groups have three members again, and every object reads as it was put. Every server is sound at the end.

    python3 tests/clients/corruptmember.py [--seed N] [--binary PATH] [--keep]
"""

import argparse
import contextlib
import random
import shutil
import signal
import sys
import time
import urllib.request

from devcluster import Cluster, unsound
from grow import BUCKET, fill, verify
from harness import default_binary, scratch_folder
from lostmeta import ballast, is_level
from rebuild import with_metrics
from workload import Clock, Failed

ROTTEN, MISSING = 0, 1
NEEDED, STANDING = 2, (0, 1)
WELL_SECONDS, LOOK_SECONDS = 240, 2
# As long as a start waits for its groups, and some more.
OUT_SECONDS = 45
# Few rows that fill the index in memory: it is flushed.
OBJECTS, SMALL, BALLAST, BALLAST_BYTES = 90, 500, 18_000, 2000


def wait(seconds, what, look):
    """Looks until it is true, seldom: each look asks all servers. How long that took."""
    begun = time.monotonic()
    while (seen := look()) is not True:
        if time.monotonic() > begun + seconds:
            raise Failed(f"{what}: not so after {seconds} s: {seen}")
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - begun


def tables(cluster, node):
    return sorted((cluster.folder(node, "meta") / "kv" / "tables").glob("*"))


def aside(cluster, node):
    return sorted(cluster.folder(node, "meta").glob("index-set-aside-*"))


def gauge(port, name):
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"larder_{name} "):
                return float(line.split()[1])
    return None


def rot(cluster, node):
    """Flips a bit in the middle of each table, where rows are."""
    for path in tables(cluster, node):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 8]))


def is_well(cluster, ports, node):
    """Its index is aside, it has met no damage since, and all groups have their members."""
    kept = aside(cluster, node)
    if len(kept) != 1 or not all((kept[0] / part).is_dir() for part in ("kv", "log")):
        return f"set aside: {kept}"
    seen = [gauge(ports[node], name) for name in ("index_damaged", "index_set_aside")]
    return is_level(cluster) if seen == [0, 1] else f"index_damaged, index_set_aside: {seen}"


def rotten_block(cluster, ports):
    cluster.stop()
    rot(cluster, ROTTEN)
    cluster.start()
    return wait(WELL_SECONDS, "the member with a rotten index is well", lambda: is_well(cluster, ports, ROTTEN))


def kill_without_tables(cluster, node):
    cluster.signal(node, "meta", signal.SIGKILL)
    for path in tables(cluster, node):
        path.unlink()


def missing_table(cluster, ports):
    kill_without_tables(cluster, MISSING)
    return wait(WELL_SECONDS, "the member without a table is well", lambda: is_well(cluster, ports, MISSING))


def is_needed(cluster, ports):
    """While the others stand still, groups need one whose table is gone: it stays out, and keeps what it has, until they go on."""
    before = len(tables(cluster, NEEDED))
    if not before:
        raise Failed("the index that is to be damaged has no table")
    for node in STANDING:
        cluster.signal(node, "meta", signal.SIGSTOP)
    try:
        names = {f"node-{node + 1}-meta" for node in STANDING}
        wait(60, "those that stand still are found down", lambda: all(it["state"] == "down" for it in cluster.status()["servers"] if it["name"] in names))
        kill_without_tables(cluster, NEEDED)
        log = cluster.folder(NEEDED, "meta") / "process.log"
        wait(OUT_SECONDS, "it says that groups need it", lambda: "cannot go on without this server" in log.read_text(errors="replace"))
        if aside(cluster, NEEDED) or not all((cluster.folder(NEEDED, "meta") / part).is_dir() for part in ("kv", "log")):
            raise Failed("it forgot what its groups needed")
    finally:
        for node in STANDING:
            cluster.signal(node, "meta", signal.SIGCONT)
    return wait(WELL_SECONDS, "the one that was needed is well", lambda: is_well(cluster, ports, NEEDED))


def run(cluster, arguments):
    clock = Clock()
    ports = with_metrics(cluster)
    cluster.proxies[0].boto3().create_bucket(Bucket=BUCKET)
    bodies = fill(cluster, OBJECTS, SMALL, arguments.seed)
    ballast(cluster, BALLAST, BALLAST_BYTES)
    for node in (ROTTEN, MISSING, NEEDED):
        wait(60, "the index is in tables", lambda node=node: bool(tables(cluster, node)))
    clock.tell("filled")
    took = rotten_block(cluster, ports)
    verify(cluster, bodies, Clock())
    shutil.rmtree(aside(cluster, ROTTEN)[0])
    then = missing_table(cluster, ports)
    verify(cluster, bodies, Clock())
    if gauge(ports[ROTTEN], "index_set_aside") != 0:
        raise Failed("an index that was removed counts as kept")
    last = is_needed(cluster, ports)
    verify(cluster, bodies, Clock())
    for node in (MISSING, NEEDED):
        for kept in aside(cluster, node):
            shutil.rmtree(kept)
    cluster.stop()
    faults = unsound(cluster)
    if faults:
        raise Failed("\n".join(faults))
    return len(bodies), took, then, last


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"corruptmember: seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        cluster = Cluster(arguments.binary, scratch / "cluster", 3)
        try:
            objects, took, then, last = run(cluster, arguments)
        except (Failed, AssertionError) as failure:
            print(f"FAIL corruptmember: {failure}\n{cluster.log_tail()}\n0 passed, 1 failed")
            return 1
        finally:
            cluster.kill_all()
    print(f"corruptmember: {objects} objects; a rotten block was mended {took:.1f} s after the start, a missing table {then:.1f} s after, and one that was needed {last:.1f} s after the others went on")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
