"""Objects of many bytes, which come to other regions in parts while these are killed and cut off. A part of regions.py and region_sites.py.

Each is as it was put, or is not there, wherever it is read; in the end all regions have the last."""

import threading
import time

import region_homes
from botocore.exceptions import BotoCoreError, ClientError
from harness import content
from workload import Failed

BUCKET = "large"
MIB = 1 << 20
# From 16 MiB on they come in parts, of 8 MiB at this rate.
SIZES = 17 * MIB, 30 * MIB
MIB_PER_S = 8
KEYS = 4
SAME_SECONDS = 120


def begin(regions):
    """Makes the bucket, and has each region pull from each other one so slowly that parts are small."""
    regions[0].boto3().create_bucket(Bucket=BUCKET)
    until = time.monotonic() + SAME_SECONDS
    while not all(BUCKET in {one["Name"] for one in region.boto3().list_buckets()["Buckets"]} for region in regions):
        if time.monotonic() > until:
            raise Failed("a bucket is not in all regions")
        time.sleep(0.1)
    for region in regions:
        for other in regions:
            if other is not region:
                region.region("rate", region.directory, other.name, str(MIB_PER_S))


class Putter(threading.Thread):
    """Puts and deletes objects of many bytes through places chosen at random, and reads them through others."""

    def __init__(self, places, rng, until):
        super().__init__()
        self.places, self.rng, self.ends = places, rng, until
        self.failure, self.puts, self.reads, self.broken = None, 0, 0, 0
        # By key: what was answered last, `None` for nothing, and what was not answered: that may be later.
        self.last = {f"large/{number}": None for number in range(KEYS)}
        self.unanswered = {key: set() for key in self.last}
        # All that it ever was: a place that is behind shows one of these.
        self.was = {key: set() for key in self.last}

    def run(self):
        try:
            while time.monotonic() < self.ends:
                self.change(self.rng.choice(list(self.last)))
                for _ in range(3):
                    self.read(self.rng.choice(list(self.last)))
                    time.sleep(self.rng.uniform(0, 1.5))
        except Failed as failure:
            self.failure = failure

    def change(self, key):
        name, size = f"{key} {self.puts}", self.rng.randrange(*SIZES)
        told = None if self.rng.random() < 0.2 else (name, size)
        s3 = region_homes.client(self.rng.choice(self.places))
        self.puts += 1
        self.was[key].add(told)
        try:
            if told is None:
                s3.delete_object(Bucket=BUCKET, Key=key)
            else:
                s3.put_object(Bucket=BUCKET, Key=key, Body=content(name, size))
            self.last[key] = told
        except (ClientError, BotoCoreError) as error:
            if region_homes.is_certain(error):
                raise Failed(f"a change of {key} is answered with {error}") from error
            self.broken += 1
            self.unanswered[key].add(told)

    def read(self, key):
        s3, begins = region_homes.client(self.rng.choice(self.places)), self.rng.randrange(SIZES[0] - MIB)
        try:
            read = s3.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={begins}-{begins + MIB - 1}")
            body, size = read["Body"].read(), int(read["ContentRange"].rsplit("/", 1)[1])
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey" or error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
                return
            raise Failed(f"a read of {key} is answered with {error}") from error
        except BotoCoreError:
            return
        self.reads += 1
        of_size = [told[0] for told in self.was[key] if told and told[1] == size]
        if not any(content(name, size)[begins : begins + MIB] == body for name in of_size):
            raise Failed(f"{key} has bytes that nobody put, from {begins} of {size} on")


def putter(places, rng, until, new_rng):
    started = Putter(places, new_rng(rng), until)
    started.start()
    return started


def held(putter, places, clock):
    """Waits for it to end. All places have the same of each key, and what it may have."""
    putter.join()
    if putter.failure:
        raise putter.failure
    if putter.puts > KEYS and not putter.reads:
        raise Failed("no read of a large object was answered")
    until = time.monotonic() + SAME_SECONDS
    for key, last in putter.last.items():
        may_be = {last, *putter.unanswered[key]}
        bodies = [None if told is None else content(*told) for told in may_be]
        # What is still on its way may change all of them.
        while not is_agreed(found := [whole(place, key) for place in places], bodies):
            if time.monotonic() > until:
                shown = {place.name: body and len(body) for place, body in zip(places, found)}
                raise Failed(f"of {key} there are {shown} bytes; it may be {may_be}")
            time.sleep(0.5)
    clock.tell(f"{putter.puts} changes of large objects, {putter.broken} without an answer, and {putter.reads} reads of them: all regions have the same")


def is_agreed(found, bodies):
    return all(body == found[0] for body in found) and found[0] in bodies


def whole(place, key):
    """What a place has of a key: its bytes, `None` for nothing, or what it cannot give now."""
    try:
        return place.boto3().get_object(Bucket=BUCKET, Key=key)["Body"].read()
    except ClientError as error:
        return None if error.response["Error"]["Code"] == "NoSuchKey" else b""
    except BotoCoreError:
        return b""
