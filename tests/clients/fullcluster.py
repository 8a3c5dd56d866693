"""A cluster of three machines on small file systems is filled until puts get 507, and an empty fourth machine joins.

`larder status` says that the file systems are full, with exit code 1. Once the fourth is there, volumes move to it, their space goes
back to the other file systems, and puts succeed again without another deed. Everything acknowledged is read at the end.

Needs root, for mounting.

    python3 tests/clients/fullcluster.py [--binary PATH] [--seed N]
"""

import argparse
import contextlib
import pathlib
import random
import subprocess
import sys
import time

from botocore.exceptions import ClientError
from disk import Disk
from harness import COMMAND_SECONDS, content, default_binary, scratch_folder
from peers import Machine, form, ready, secret_file, until
from workload import Clock, Failed

BUCKET = "filled"
DISK_BYTES = 450 << 20
OBJECT_BYTES = 1_000_000
# So many puts in a row that are refused: no group takes any.
REFUSED_IN_A_ROW = 40
PUTS_MAX = 2_000
TOLD_SECONDS = 30
# From the fourth machine's first answer on: until a put succeeds, and until so many have. It has room for a third of what the others
# have, with three copies of each object.
AGAIN_SECONDS = 10
MORE = 40
MORE_SECONDS = 120


class Small(Machine):
    """A machine on a file system of its own."""

    certificate_life = "1d"

    def __init__(self, binary, folder, secret):
        folder.mkdir()
        self.disk = Disk(folder, DISK_BYTES)
        super().__init__(binary, self.disk.mount_point / "machine", secret)
        self.log = folder / "log"


def put(s3, key, acknowledged):
    """True if it was taken; it may only be refused for want of space."""
    try:
        s3.put_object(Bucket=BUCKET, Key=key, Body=content(key, OBJECT_BYTES))
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status not in (503, 507):
            raise Failed(f"a put is answered with {status} {error}") from error
        return False
    acknowledged.append(key)
    return True


def fill(machines, acknowledged):
    clients, refused = [machine.boto3() for machine in machines], 0
    clients[0].create_bucket(Bucket=BUCKET)
    for number in range(PUTS_MAX):
        refused = 0 if put(clients[number % len(clients)], f"old/{number}", acknowledged) else refused + 1
        if refused == REFUSED_IN_A_ROW:
            return
    raise Failed("the file systems are never full")


def status(machine):
    done = subprocess.run([machine.binary, "status", machine.directory], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=COMMAND_SECONDS)
    return done.returncode, (done.stdout.splitlines() or [done.stderr])[0]


def takes_puts(machines, acknowledged):
    """Seconds until a put was taken, and until some were."""
    s3, began, first, taken, number = machines[-1].boto3(), time.monotonic(), None, 0, 0
    while taken < MORE:
        number += 1
        taken += put(s3, f"new/{number}", acknowledged)
        took = time.monotonic() - began
        if taken == 1 and first is None:
            first = took
        if took > (AGAIN_SECONDS if first is None else MORE_SECONDS):
            raise Failed(f"{taken} puts are taken {took:.1f} s after an empty machine is there: {status(machines[0])}")
    return first, took


def read_all(machines, acknowledged):
    clients = [machine.boto3() for machine in machines]
    for number, key in enumerate(acknowledged):
        if clients[number % len(clients)].get_object(Bucket=BUCKET, Key=key)["Body"].read() != content(key, OBJECT_BYTES):
            raise Failed(f"{key} reads otherwise than it was put")


def test(machines, fourth, rng, clock):
    acknowledged = []
    form(machines, rng, clock)
    fill(machines, acknowledged)
    filled = len(acknowledged)
    clock.tell(f"{filled} objects until all puts were refused")
    says_so = lambda: status(machines[0])[0] == 1 and status(machines[0])[1].startswith("NOT WELL: new volumes find no room")
    until("the status says it", TOLD_SECONDS, says_so, machines, lambda: status(machines[0]))
    fourth.peers = [*machines[0].peers, fourth.name]
    fourth.spawn()
    ready([fourth])
    first, took = takes_puts([*machines, fourth], acknowledged)
    clock.tell(f"a fourth machine is there: a put was taken after {first:.1f} s, {MORE} after {took:.1f} s")
    freed = sum(machine.metric("data_freed_bytes_total") for machine in machines)
    if not freed:
        raise Failed("no space went back to the file systems")
    read_all([*machines, fourth], acknowledged)
    return filled, first, took, freed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"fullcluster: seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch, contextlib.ExitStack() as ends:
        scratch = pathlib.Path(scratch)
        secret, machines = secret_file(arguments.binary, scratch / "secret"), []
        for number in range(1, 5):
            machines.append(Small(arguments.binary, scratch / f"machine-{number}", secret))
            ends.callback(machines[-1].disk.unmount)
            ends.callback(machines[-1].kill)
        for machine in machines[:3]:
            machine.peers = [one.name for one in machines[:3]]
        try:
            filled, first, took, freed = test(machines[:3], machines[3], random.Random(arguments.seed), Clock())
        except (Failed, AssertionError) as failure:
            print(f"FAIL fullcluster: {failure}\n0 passed, 1 failed")
            return 1
    print(f"fullcluster: {filled} objects until it was full, none lost; with a fourth machine a put was taken after {first:.1f} s, {MORE}"
          f" after {took:.1f} s; {freed / 1e6:.0f} MB went back to full file systems")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
