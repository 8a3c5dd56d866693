"""Buckets that one region has alone for a while and then shares, while regions are killed and cut off from each other. A part of
regions.py and regions_of_clusters.py.

Nobody else has a local bucket. Once it is shared all regions have what was put into it and was not deleted: what nobody was told."""

import subprocess
import threading
import time

from botocore.exceptions import BotoCoreError, ClientError
from region_homes import client
from workload import Failed

SHARED_SECONDS = 90


class Owner(threading.Thread):
    """Has buckets alone, one after the other, and shares each. Most commands that share are killed before it is so."""

    def __init__(self, number, region, places, others, rng, until):
        super().__init__()
        self.number, self.region, self.places, self.others = number, region, places, others
        self.rng, self.ends = rng, until
        self.failure = None
        # By bucket, by key: the contents that it may have; None: it may not be there.
        self.buckets = {}

    def run(self):
        try:
            while time.monotonic() < self.ends - 1:
                self.have(f"local-{self.number}-{len(self.buckets)}")
        except Failed as failure:
            self.failure = failure

    def order(self, name, scope, patience):
        ordering = subprocess.Popen(
            [self.region.binary, "region", "bucket", self.region.directory, name, scope],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return ordering.wait(timeout=patience) == 0
        except subprocess.TimeoutExpired:
            ordering.kill()
            ordering.wait()
            return False

    def have(self, name):
        while not self.order(name, "local", 5):
            if time.monotonic() > self.ends:
                return
        keys = self.buckets[name] = {}
        for number in range(self.rng.randrange(1, 12)):
            self.put(name, keys, f"key/{number}", f"{name} {number} " * self.rng.choice([1, 5000]))
        for key in self.rng.sample(sorted(keys), len(keys) // 3):
            self.delete(name, keys, key)
        for other in self.others:
            try:
                if name in [one["Name"] for one in client(other).list_buckets()["Buckets"]]:
                    raise Failed(f"{other.name} has {name}, which is local")
            except (ClientError, BotoCoreError):
                pass  # It is down.
        self.order(name, "shared", self.rng.uniform(0.1, 3))
        # Told as all changes are, or renewed meanwhile.
        self.put(name, keys, "key/last", f"{name} last")

    def put(self, name, keys, key, text):
        keys.setdefault(key, {None}).add(text)
        try:
            client(self.rng.choice(self.places)).put_object(Bucket=name, Key=key, Body=text.encode())
            keys[key] = {text}
        except (ClientError, BotoCoreError):
            time.sleep(0.1)

    def delete(self, name, keys, key):
        keys[key].add(None)
        try:
            client(self.rng.choice(self.places)).delete_object(Bucket=name, Key=key)
            keys[key] = {None}
        except (ClientError, BotoCoreError):
            time.sleep(0.1)


def refused(here, there, clock):
    """While another region has a bucket of the name, a local one is not shared; a shared one becomes local only on a second word."""
    name = "taken"
    here.region("bucket", here.directory, name, "local")
    client(there).create_bucket(Bucket=name)
    said = here.region("bucket", here.directory, name, "shared", expect=1)
    # A third one may have been told of it, and answer first.
    if " has a bucket of this name" not in said:
        raise Failed(f"a local bucket of a name that another region has: {said}")
    client(there).delete_bucket(Bucket=name)
    here.region("bucket", here.directory, name, "shared")
    until = time.monotonic() + SHARED_SECONDS
    while "is shared with the other regions" not in here.region("bucket", here.directory, name, expect=None):
        if time.monotonic() > until:
            raise Failed(f"{name} is not shared")
        time.sleep(0.2)
    here.region("bucket", here.directory, name, "local", expect=2)
    here.region("bucket", here.directory, name, "local", "--yes")
    if "is local" not in (said := here.region("bucket", here.directory, name)):
        raise Failed(f"a bucket that was to become local: {said}")
    clock.tell("a bucket was not shared while another region had one of its name")


def owners(regions, places_of, rng, until, new_rng):
    """`places_of`: of each region the places where clients reach it."""
    started = []
    for number, region in enumerate(regions):
        others = [place for other in regions if other is not region for place in places_of(other)]
        started.append(Owner(number, region, places_of(region), others, new_rng(rng), until))
    for one in started:
        one.start()
    return started


def shared_by_all(started, places, clock):
    """Waits for these to end, shares what is not yet, and looks whether all regions have it."""
    for one in started:
        one.join()
    count = 0
    for one in started:
        if one.failure:
            raise one.failure
        for name, keys in one.buckets.items():
            until = time.monotonic() + SHARED_SECONDS
            while "is shared with the other regions" not in (said := one.region.region("bucket", one.region.directory, name, expect=None)):
                if time.monotonic() > until:
                    raise Failed(f"{name} is not shared by {one.region.name}: {said}")
                one.region.region("bucket", one.region.directory, name, "shared", expect=None)
            for place in places:
                while wrong := differs(client(place), name, keys):
                    if time.monotonic() > until:
                        raise Failed(f"{place.name} does not have {name} as it was made: {wrong}")
                    time.sleep(0.2)
            count += 1
    clock.tell(f"{count} buckets were local first, then shared: the same everywhere")


def differs(s3, name, keys):
    """What is there that may not be, or is not as it may be."""
    try:
        there = {one["Key"]: s3.get_object(Bucket=name, Key=one["Key"])["Body"].read().decode()
                 for one in s3.list_objects_v2(Bucket=name).get("Contents", [])}
    except (ClientError, BotoCoreError) as error:
        return str(error)
    wrong = {key: there.get(key) for key, may in keys.items() if there.get(key) not in may}
    return {**wrong, **{key: text for key, text in there.items() if key not in keys}}
