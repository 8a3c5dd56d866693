"""Cuts the power under load: what was not synced is gone, and no acknowledged put is.

The store lies on an ext4 file system in a loop-mounted file. Two kinds of cut take turns:

- copy: every thread of the server is stopped where it stands, the backing file is copied, and the copy takes its place.
  What the file system held in its page cache without a sync is not in the backing file, hence not in the copy. The
  journal of the file system commits by itself only every five minutes, so nothing orders itself during the copy.
- shutdown: the file system is told to go down at once (the ioctl that file system tests use). Syncs under way are cut in
  the middle and fail; dirty pages are thrown away. The server meets failing syncs before it is killed, and must not
  acknowledge past them.

Needs root, for mounting.

    python3 tests/clients/powercut.py [--rounds 40] [--kind copy|shutdown] [--seed N] [--binary PATH]
"""

import argparse
import pathlib
import random
import signal
import sys
import time

from disk import Disk
from harness import Server, default_binary, scratch_folder
from workload import BUCKET, Clock, Failed, Journal, Load, Uploads, verify

# A third of the uploads that a cut leaves open stays: many rounds fill a smaller one.
DISK_BYTES = 8 << 30
LOAD_SECONDS = (0.2, 2.0)
DYING_SECONDS = 0.1
STOP_SECONDS = 20
INSPECT_EVERY = 5


def stop_every_thread(server):
    """SIGSTOP, and wait until no thread runs or waits in the kernel any more."""
    server.signal(signal.SIGSTOP)
    deadline = time.monotonic() + STOP_SECONDS
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
    while time.monotonic() < deadline:
        states = {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()}
        if states == {"T"}:
            return
        time.sleep(0.005)
    raise Failed(f"threads did not stop: {states}")


def cut_by_copy(server, disk):
    stop_every_thread(server)
    old = disk.copy()
    server.kill()
    disk.unmount()
    old.unlink()


def cut_by_shutdown(server, disk):
    disk.shut_down()
    time.sleep(DYING_SECONDS)
    server.kill()
    disk.unmount()


def inspect(server):
    code, report = server.inspect()
    if code != 0:
        raise Failed(f"inspect ended with {code}:\n{report[-3000:]}")


CUTS = {"copy": cut_by_copy, "shutdown": cut_by_shutdown}


def run(server, disk, rounds, kinds, seed):
    journal, uploads, rng, clock = Journal(), Uploads(), random.Random(seed), Clock()
    server.start()
    server.boto3().create_bucket(Bucket=BUCKET)
    for number in range(1, rounds + 1):
        kind = kinds[(number - 1) % len(kinds)]
        try:
            load = Load(server, journal, uploads, seed, round_number=number)
            load.start()
            time.sleep(rng.uniform(*LOAD_SECONDS))
            load.cut.set()
            CUTS[kind](server, disk)
            load.join()
            disk.mount()
            if number % INSPECT_EVERY == 0:
                inspect(server)
            server.start()
            verify(server, journal, uploads, whole=True)
        except Failed as failure:
            raise Failed(f"round {number} ({kind}): {failure}") from failure
        clock.tell(f"round {number} of {rounds}, {journal.acknowledged} acknowledged")
    if server.stop() != 0:
        raise Failed("the last stop was not clean")
    inspect(server)
    return journal.acknowledged


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--kind", choices=CUTS, help="only this kind of cut; by turns otherwise")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"powercut: {arguments.rounds} cuts, seed {arguments.seed}", flush=True)
    kinds = [arguments.kind] if arguments.kind else list(CUTS)
    with scratch_folder() as scratch:
        disk = Disk(scratch, DISK_BYTES)
        server = Server(arguments.binary, disk.mount_point / "store", log=scratch / "server.log")
        try:
            acknowledged = run(server, disk, arguments.rounds, kinds, arguments.seed)
        except (Failed, AssertionError) as failure:
            print(f"FAIL powercut: {failure}\n{server.log_tail()}\n0 passed, 1 failed")
            return 1
        finally:
            server.kill()
            disk.unmount()
    print(f"powercut: {arguments.rounds} cuts, {acknowledged} acknowledged operations, none lost, store sound")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
