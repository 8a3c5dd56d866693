"""Managers of three machines are put back from an older copy, as by an operator who has lost them.

The servers that hold data know how far the map was, and serve nothing with managers that lack what they have heard of: these would give
volumes and ids a second time, over what was acknowledged since. They say so, with the remedy. With the latest directories put back everything
acknowledged is there.

    python3 tests/clients/stale.py [--binary PATH]
"""

import argparse
import pathlib
import shutil
import sys
import time

from botocore.exceptions import BotoCoreError, ClientError
from harness import content, default_binary, scratch_folder
from peers import Machine, equal_machines, ready, secret_file, until, whole
from workload import Failed

BUCKETS, KEYS = ("before", "since"), 40
SERVERS = 12
# A server says so 5 s after it was told the older map.
SAID_SECONDS, STAYS_SECONDS = 30, 3
SAYS = "put back the managers' latest directories"


class LastingMachine(Machine):
    """One whose certificates outlast the copy of them."""

    certificate_life = "30d"


def put_all(machine, bucket):
    """Puts objects in volumes of many groups."""
    s3 = machine.boto3()
    s3.create_bucket(Bucket=bucket)
    for number in range(KEYS):
        s3.put_object(Bucket=bucket, Key=str(number), Body=content(f"{bucket}/{number}", 9_000))


def check_all(machine, bucket):
    s3 = machine.boto3()
    for number in range(KEYS):
        if s3.get_object(Bucket=bucket, Key=str(number))["Body"].read() != content(f"{bucket}/{number}", 9_000):
            raise Failed(f"{bucket}/{number} reads otherwise than it was put")


def refused(machine):
    """Neither a put nor a get is served."""
    s3 = machine.boto3(read_timeout=5)
    for what, ask in (("put", lambda: s3.put_object(Bucket=BUCKETS[0], Key="new", Body=b"x")),
                      ("get", lambda: s3.get_object(Bucket=BUCKETS[0], Key="0"))):
        try:
            ask()
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
                raise Failed(f"a {what} with managers of an older copy: {error}") from error
        except BotoCoreError:
            # It waits for its placement group.
            pass
        else:
            raise Failed(f"a {what} was served with managers of an older copy")


def stop_all(machines):
    codes = [machine.stop() for machine in machines]
    if any(codes):
        raise Failed(f"stops that were not clean: {codes}")


def start_all(machines):
    for machine in machines:
        machine.spawn()


def swap(machines, name, kept):
    """Puts the managers' directories of this name in place; those that were there are kept under another."""
    for machine in machines:
        (machine.directory / "manager").rename(machine.directory.with_name(f"{machine.directory.name}-{kept}"))
        shutil.copytree(machine.directory.with_name(f"{machine.directory.name}-{name}"), machine.directory / "manager")


def test(binary, scratch):
    secret = secret_file(binary, scratch / "secret")
    machines = equal_machines(LastingMachine, binary, scratch, secret)
    try:
        start_all(machines)
        ready(machines)
        put_all(machines[0], BUCKETS[0])
        whole(machines[0], machines, SERVERS)
        stop_all(machines)
        for machine in machines:
            shutil.copytree(machine.directory / "manager", machine.directory.with_name(f"{machine.directory.name}-old"))
        start_all(machines)
        ready(machines)
        put_all(machines[1], BUCKETS[1])
        whole(machines[0], machines, SERVERS)
        stop_all(machines)
        swap(machines, "old", "latest")
        start_all(machines)
        # Of each machine its meta server and its data server.
        until("said", SAID_SECONDS, lambda: all(machine.log.read_text().count(SAYS) >= 2 for machine in machines), machines)
        time.sleep(STAYS_SECONDS)
        for machine in machines:
            refused(machine)
        stop_all(machines)
        swap(machines, "latest", "older")
        start_all(machines)
        ready(machines)
        for bucket in BUCKETS:
            check_all(machines[2], bucket)
        whole(machines[0], machines, SERVERS)
        stop_all(machines)
    finally:
        for machine in machines:
            machine.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    with scratch_folder(arguments.keep) as scratch:
        try:
            test(arguments.binary, pathlib.Path(scratch))
        except (Failed, AssertionError) as failure:
            print(f"FAIL stale: {failure}\n0 passed, 1 failed")
            return 1
    print("stale: managers of an older copy were refused, and nothing was lost")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
