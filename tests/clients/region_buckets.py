"""Buckets that are made, filled, and deleted in several regions while these are killed and cut off from each other. A part of
regions.py and regions_of_clusters.py."""

import statistics
import threading
import time

from botocore.exceptions import BotoCoreError, ClientError
from harness import content
from workload import Failed

# Until all regions have the same buckets, or a deletion succeeds that nothing disturbs.
AGREED_SECONDS = 60
MAP_SECONDS = 5
NOT_EMPTY, MADE_ALREADY = "BucketNotEmpty", ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")


def client(place):
    """Asks once: what is asked again may have been done before."""
    return place.boto3(connect_timeout=2, read_timeout=40, retries={"total_max_attempts": 1})


def is_gone(bucket, places):
    """A deletion was answered: no place has the bucket, or only for as long as it takes to hear of the newest map."""
    until = time.monotonic() + MAP_SECONDS
    for place in places:
        while True:
            try:
                client(place).head_bucket(Bucket=bucket)
                if time.monotonic() > until:
                    raise Failed(f"{bucket} was deleted, and {place.name} has it")
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                    break
            except BotoCoreError:
                # It was killed. Others are asked, and it is at the end.
                if time.monotonic() > until:
                    break
            time.sleep(0.05)


def code_of(error):
    return error.response["Error"]["Code"]


class Remaker(threading.Thread):
    """Makes one bucket, puts an object into it, tries to delete it, empties it, and deletes it, all through places chosen at random.

    A bucket with an object is never deleted. One whose deletion was answered is in no region, until it is made again."""

    def __init__(self, places, name, rng, until):
        super().__init__()
        self.places, self.bucket, self.rng, self.ends = places, name, rng, until
        self.failure, self.deleted, self.kept, self.is_gone = None, 0, 0, False

    def run(self):
        while time.monotonic() < self.ends and not self.failure:
            try:
                self.turn()
            except Failed as failure:
                self.failure = failure
            except (ClientError, BotoCoreError):
                time.sleep(0.1)

    def turn(self):
        place = self.rng.choice(self.places)
        s3 = client(place)
        self.is_gone = False
        try:
            s3.create_bucket(Bucket=self.bucket)
        except ClientError as error:
            if code_of(error) not in MADE_ALREADY:
                raise
        if self.rng.random() < 0.5:
            key = f"{self.deleted}/{self.kept}"
            s3.put_object(Bucket=self.bucket, Key=key, Body=content(key, 3000))
            self.refused()
            self.kept += 1
            self.emptied(s3, key)
        try:
            client(self.rng.choice(self.places)).delete_bucket(Bucket=self.bucket)
        except ClientError as error:
            if code_of(error) != "NoSuchBucket":
                raise
            return
        self.is_gone = True
        self.deleted += 1
        is_gone(self.bucket, self.places)

    def refused(self):
        try:
            client(self.rng.choice(self.places)).delete_bucket(Bucket=self.bucket)
        except (ClientError, BotoCoreError):
            return
        raise Failed(f"{self.bucket} was deleted with an object in it")

    def emptied(self, s3, key):
        while True:
            try:
                return s3.delete_object(Bucket=self.bucket, Key=key)
            except (ClientError, BotoCoreError):
                if time.monotonic() > self.ends + AGREED_SECONDS:
                    raise
                time.sleep(0.1)


def remakers(places, rng, until):
    started = [Remaker(places, f"remade-{number}", rng, until) for number in range(2)]
    for remaker in started:
        remaker.start()
    return started


def agreed(remakers, places):
    """Waits for these to end, and until all regions have the same of their buckets; then deletes those. How many were deleted, and
    how many tries were refused."""
    for remaker in remakers:
        remaker.join()
        if remaker.failure:
            raise remaker.failure
    names = {remaker.bucket for remaker in remakers}
    until = time.monotonic() + AGREED_SECONDS
    while True:
        found = [names & {one["Name"] for one in client(place).list_buckets()["Buckets"]} for place in places]
        if all(one == found[0] for one in found):
            break
        if time.monotonic() > until:
            raise Failed(f"regions have other buckets: {found}")
        time.sleep(0.2)
    for remaker in remakers:
        if remaker.is_gone and remaker.bucket in found[0]:
            raise Failed(f"{remaker.bucket} was deleted, and is there again")
    for name in found[0]:
        delete(places[-1], name, until)
    return sum(remaker.deleted for remaker in remakers), sum(remaker.kept for remaker in remakers)


def delete(place, name, until):
    """Empties and deletes a bucket, again until that time."""
    s3 = client(place)
    while True:
        try:
            for one in s3.list_objects_v2(Bucket=name).get("Contents", []):
                s3.delete_object(Bucket=name, Key=one["Key"])
            return s3.delete_bucket(Bucket=name)
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and code_of(error) == "NoSuchBucket":
                return None
            if time.monotonic() > until:
                raise Failed(f"{name} cannot be deleted: {error}") from error
            time.sleep(0.2)


def deletion(regions, here, there, clock):
    """A bucket goes from all regions at once, or stays."""
    name, s3, other = "to-be-deleted", client(here), client(there)
    s3.create_bucket(Bucket=name)
    until = time.monotonic() + AGREED_SECONDS
    while name not in [one["Name"] for one in other.list_buckets()["Buckets"]]:
        if time.monotonic() > until:
            raise Failed(f"{name} is not in {there.name}")
        time.sleep(0.05)
    s3.put_object(Bucket=name, Key="a", Body=b"a")
    try:
        other.delete_bucket(Bucket=name)
        raise Failed("a bucket is deleted that has an object in another region")
    except ClientError as error:
        if code_of(error) != NOT_EMPTY:
            raise Failed(f"the deletion of a bucket that has an object elsewhere is answered with {error}") from error
    s3.delete_object(Bucket=name, Key="a")
    for region in regions:
        region.relay.cut()
    try:
        s3.delete_bucket(Bucket=name)
        raise Failed("a bucket is deleted while no other region is reached")
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
            raise Failed(f"the deletion of a bucket while no region is reached is answered with {error}") from error
    s3.put_object(Bucket=name, Key="b", Body=b"b")
    for region in regions:
        region.relay.heal()
    delete(there, name, time.monotonic() + AGREED_SECONDS)
    is_gone(name, [here, there, *regions])
    times = []
    for number in range(7):
        s3.create_bucket(Bucket=f"{name}-{number}")
        began = time.monotonic()
        s3.delete_bucket(Bucket=f"{name}-{number}")
        times.append(time.monotonic() - began)
    print(f"an empty bucket is deleted in {len(regions)} regions within {1000 * statistics.median(times):.0f} ms, at most {1000 * max(times):.0f} ms")
    clock.tell("a bucket was deleted in all regions at once, and stayed while it could not be")
