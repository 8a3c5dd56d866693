"""Kills a packed store at random moments under load, again and again; then takes its directory away.

No acknowledged put is lost by a kill, and none is torn. In the end everything is uploaded, every blob verifies by itself, and a
new directory, rebuilt from the footers of the blobs alone, shows the same objects, uploads and bytes.

Before that, of a store with many small objects three tenths are deleted, two tenths overwritten and one tenth renamed while
others read: repacking brings the blobs back to at most 1.3 times what is live, and every object is what it was, also after the
directory is lost. That is 16 MiB of objects; --objects 320000 makes it 2.5 GiB.

With --packing size, or prefix, what goes together is decided by size, or by the beginning of the key, so that blobs have bundles.
With --s3 the blobs go into a bucket of a `larder server` instead of a directory.

    python3 tests/clients/pack.py [--rounds 50] [--objects 2000] [--seed N] [--binary PATH] [--packing POLICY] [--s3]
"""

import argparse
import concurrent.futures
import random
import shutil
import sys
import threading
import time

from harness import PackServer, Server, content, default_binary, scratch_folder
from kills import killed_under_load, rounds_of_kills
from workload import BUCKET, Failed, read, verify

# How often the index is lost as well, but not the log.
INDEX_LOST = 0.1


def one_round(server, journal, uploads, rng, seed, number):
    if rng.random() < INDEX_LOST:
        shutil.rmtree(server.directory / "kv")
    killed_under_load(server, journal, uploads, rng, seed, number)


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


def size_of(file):
    """Its bytes; 0 if it has just gone, or got its name."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


class Churn:
    """Objects of 8 KiB of which most are changed while they are read."""

    SIZE = 8 * 1024
    AMPLIFICATION_MAX = 1.3
    # Repacking is to be seen, not waited for.
    FLAGS = ["--grace-s", "0", "--background-mib-s", "1024", "--backup-s", "2"]
    REPACK_SECONDS = 600

    def __init__(self, server, objects, seed):
        self.server, self.objects, self.seed = server, objects, seed
        self.pool = concurrent.futures.ThreadPoolExecutor(16)
        self.clients = threading.local()
        # What may be read of each key: seeds of contents; None stands for no object.
        self.allowed = {f"c/{number:07}": {None} for number in range(objects)}
        self.stop = threading.Event()

    def s3(self):
        if not hasattr(self.clients, "s3"):
            self.clients.s3 = self.server.boto3(read_timeout=60, retries={"total_max_attempts": 10})
        return self.clients.s3

    def put(self, key, generation):
        value = f"{self.seed} {generation} {key}"
        self.allowed[key] = self.allowed[key] | {value}
        self.s3().put_object(Bucket=BUCKET, Key=key, Body=content(value, self.SIZE))
        self.allowed[key] = {value}

    def delete(self, key):
        self.allowed[key] = self.allowed[key] | {None}
        self.s3().delete_object(Bucket=BUCKET, Key=key)
        self.allowed[key] = {None}

    def rename(self, key):
        new, values = f"renamed/{key}", self.allowed[key]
        self.allowed[new] = values | {None}
        self.s3().copy_object(Bucket=BUCKET, Key=new, CopySource={"Bucket": BUCKET, "Key": key})
        self.allowed[new] = values
        self.delete(key)

    def check(self, key):
        before = self.allowed[key]
        try:
            found = self.s3().get_object(Bucket=BUCKET, Key=key)["Body"].read()
        except self.s3().exceptions.NoSuchKey:
            found = None
        expected = before | self.allowed[key]
        if not any(found == (value and content(value, self.SIZE)) for value in expected):
            raise Failed(f"{key} is not what it was: {'no object' if found is None else f'{len(found)} other bytes'}")

    def read_on(self, seed):
        rng = random.Random(seed)
        while not self.stop.is_set():
            self.check(rng.choice(list(self.allowed)) if rng.random() < 0.01 else f"c/{rng.randrange(self.objects):07}")

    def change(self):
        keys = list(self.allowed)
        random.Random(self.seed).shuffle(keys)
        tenth = self.objects // 10
        changes = [(self.delete, (key,)) for key in keys[: 3 * tenth]]
        changes += [(self.put, (key, 1)) for key in keys[3 * tenth : 5 * tenth]]
        changes += [(self.rename, (key,)) for key in keys[5 * tenth : 6 * tenth]]
        random.Random(self.seed + 1).shuffle(changes)
        for done in [self.pool.submit(act, *what) for act, what in changes]:
            done.result()

    def stored(self):
        """Bytes in the backend, and bytes of the objects that there are."""
        if self.server.backend:
            pages = self.server.backend.boto3().get_paginator("list_objects_v2").paginate(Bucket="blobs", Prefix=f"{self.server.prefix}/")
            blobs = (blob for page in pages for blob in page.get("Contents", []))
            stored = sum(blob["Size"] for blob in blobs if blob["Key"].split("/")[1] in ("blobs", "objects"))
        else:
            stored = sum(size_of(blob) for part in ("blobs", "objects") for blob in self.server.blobs.glob(f"{part}/*"))
        return stored, self.SIZE * sum(None not in values for values in self.allowed.values())

    def wait_until_repacked(self):
        deadline = time.monotonic() + self.REPACK_SECONDS
        while True:
            stored, live = self.stored()
            if stored <= self.AMPLIFICATION_MAX * live:
                return stored / live
            if time.monotonic() > deadline:
                raise Failed(f"{stored} bytes in the backend for {live} bytes of objects")
            time.sleep(0.1)

    def check_all(self):
        for done in [self.pool.submit(self.check, key) for key in list(self.allowed)]:
            done.result()

    def run(self):
        for done in [self.pool.submit(self.put, key, 0) for key in list(self.allowed)]:
            done.result()
        self.server.wait_until_uploaded()
        readers = [threading.Thread(target=self.guarded, args=(number,)) for number in range(2)]
        self.failures = []
        for reader in readers:
            reader.start()
        try:
            self.change()
            self.server.wait_until_uploaded()
            amplification = self.wait_until_repacked()
        finally:
            self.stop.set()
            for reader in readers:
                reader.join()
        if self.failures:
            raise Failed(f"while it was repacked: {self.failures[0]}")
        self.check_all()
        return amplification

    def guarded(self, number):
        try:
            self.read_on(self.seed + number)
        except Exception as failure:
            self.failures.append(failure)


def churn(binary, scratch, objects, seed, backend=None):
    """The amplification after repacking."""
    server = PackServer(binary, scratch / "churn", scratch / "churned", Churn.FLAGS, backend=backend)
    try:
        server.start()
        server.boto3().create_bucket(Bucket=BUCKET)
        load = Churn(server, objects, seed)
        amplification = load.run()
        server.wait_until_uploaded()
        before = everything(server)
        server.kill()
        shutil.rmtree(server.directory)
        server.extra.append("--take-over")
        server.start()
        load.check_all()
        if everything(server) != before:
            raise Failed("rebuilt after repacking, not everything is what it was")
        if server.stop() != 0:
            raise Failed("the stop after repacking was not clean")
    except (Failed, AssertionError) as failure:
        raise Failed(f"{failure}\n{server.log_tail()}") from failure
    finally:
        server.kill()
    return amplification


def run(server, rounds, seed):
    journal, uploads = rounds_of_kills(server, rounds, seed, one_round)
    lose_directory(server, journal, uploads)
    return journal.acknowledged


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--objects", type=int, default=2000, help="objects of the store that is repacked; 0 for none")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--packing", default="arrival", choices=["arrival", "prefix", "size"])
    parser.add_argument("--s3", action="store_true", help="blobs in a bucket of a `larder server`")
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    Churn.FLAGS += ["--packing", arguments.packing]
    print(f"pack: {arguments.objects} objects changed and repacked, {arguments.rounds} kills, seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        backend = None
        if arguments.s3:
            backend = Server(arguments.binary, scratch / "server").start()
            backend.boto3().create_bucket(Bucket="blobs")
        # Repacking, removing and backups go on under the kills too.
        server = PackServer(arguments.binary, scratch / "store", scratch / "backend", Churn.FLAGS, backend=backend)
        try:
            if arguments.objects:
                amplification = churn(arguments.binary, scratch, arguments.objects, arguments.seed, backend)
                print(f"pack: every object is what it was, {amplification:.2f} times its size is stored", flush=True)
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
