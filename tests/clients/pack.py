"""Kills a packed store at random moments under load, again and again; then takes its directory away.

No acknowledged put is lost by a kill, and none is torn. In the end everything is uploaded, every blob verifies by itself, and a
new directory, rebuilt from the footers of the blobs alone, shows the same objects, uploads and bytes.

With --s3 the blobs go into a bucket of a `larder server` instead of a directory.

    python3 tests/clients/pack.py [--rounds 50] [--seed N] [--binary PATH] [--s3]
"""

import argparse
import random
import shutil
import sys
import time

from harness import PackServer, Server, default_binary, scratch_folder
from workload import BUCKET, Clock, Failed, Journal, Load, Uploads, read, verify

LOAD_SECONDS = (0.05, 1.5)
START_SECONDS = (0.0, 0.4)
KILLED_WHILE_STARTING = 0.15
WHOLE_EVERY = 10
# How often the index is lost as well, but not the log.
INDEX_LOST = 0.1


def one_round(server, journal, uploads, rng, seed, number):
    if rng.random() < INDEX_LOST:
        shutil.rmtree(server.directory / "kv")
    if rng.random() < KILLED_WHILE_STARTING:
        server.spawn()
        time.sleep(rng.uniform(*START_SECONDS))
        server.kill()
    server.start()
    verify(server, journal, uploads, whole=number % WHOLE_EVERY == 0)
    load = Load(server, journal, uploads, seed, round_number=number)
    load.start()
    time.sleep(rng.uniform(*LOAD_SECONDS))
    server.kill()
    load.join()


def everything(server):
    """What a client sees: every object with its etag, date and bytes."""
    s3 = server.boto3(read_timeout=60)
    listed = [o for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET) for o in page.get("Contents", [])]
    return {o["Key"]: (o["ETag"], o["Size"], o["LastModified"], read(s3, o["Key"])) for o in listed}


def lose_directory(server, journal, uploads):
    """Everything is uploaded; then the directory is gone."""
    server.wait_until_uploaded()
    before = everything(server)
    if server.stop() != 0:
        raise Failed("the last stop was not clean")
    if server.backend:
        server.fetch()
    code, faults = server.inspect()
    if code != 0:
        raise Failed(f"blobs that do not verify: {faults}")
    shutil.rmtree(server.directory)
    server.extra.append("--take-over")
    server.start()
    after = everything(server)
    if after != before:
        keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        raise Failed(f"rebuilt from footers, these keys are not what they were: {keys[:20]}")
    verify(server, journal, uploads, whole=True)
    if server.stop() != 0:
        raise Failed("the stop after the rebuild was not clean")


def run(server, rounds, seed):
    journal, uploads, rng, clock = Journal(), Uploads(), random.Random(seed), Clock()
    server.start()
    server.boto3().create_bucket(Bucket=BUCKET)
    server.kill()
    for number in range(1, rounds + 1):
        try:
            one_round(server, journal, uploads, rng, seed, number)
        except Failed as failure:
            raise Failed(f"round {number}: {failure}") from failure
        clock.tell(f"round {number} of {rounds}, {journal.acknowledged} acknowledged")
    server.start()
    verify(server, journal, uploads, whole=True)
    lose_directory(server, journal, uploads)
    return journal.acknowledged


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--s3", action="store_true", help="blobs in a bucket of a `larder server`")
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"pack: {arguments.rounds} kills, seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        backend = None
        if arguments.s3:
            backend = Server(arguments.binary, scratch / "server").start()
            backend.boto3().create_bucket(Bucket="blobs")
        server = PackServer(arguments.binary, scratch / "store", scratch / "backend", backend=backend)
        try:
            acknowledged = run(server, arguments.rounds, arguments.seed)
        except (Failed, AssertionError) as failure:
            print(f"FAIL pack: {failure}\n{server.log_tail()}\n0 passed, 1 failed")
            return 1
        finally:
            server.kill()
            if backend:
                backend.kill()
    print(f"pack: {arguments.rounds} kills, {acknowledged} acknowledged operations, none lost, rebuilt from footers alone")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
