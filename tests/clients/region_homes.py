"""A bucket whose home moves between regions while these are killed and cut off from each other. A part of regions.py and
regions_of_clusters.py.

Clients in all regions make locks, each only if it is not there, and count up a number, each time only if it is as they read it. A
lock is made at most once, and no two count to the same number: so conditions hold in all regions, wherever the home is. They append
records to one object, too."""

import statistics
import subprocess
import threading
import time

import region_appends
from botocore.exceptions import BotoCoreError, ClientError
from workload import Failed

BUCKET = "homed"
AGREED_SECONDS = 60
FAILED = "PreconditionFailed"
# Some lie in the index, some on data servers.
LOCK_SIZES = 1, 20_000


def client(place):
    """Asks once: what is asked again may have been done before."""
    return place.boto3(connect_timeout=2, read_timeout=30, retries={"total_max_attempts": 1})


def is_certain(error):
    """True if the change was not made."""
    return isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] < 500


class Locker(threading.Thread):
    """Makes locks, and counts, through places chosen at random."""

    def __init__(self, number, places, rng, until):
        super().__init__()
        self.number, self.places, self.rng, self.ends = number, places, rng, until
        self.failure = None
        # By lock, and by number: who was answered that it made it, and who may have.
        self.made, self.may_have_made, self.tries = {}, {}, 0
        self.records = region_appends.Records(number)

    def run(self):
        try:
            while time.monotonic() < self.ends:
                place = self.rng.choice(self.places)
                self.lock(place, f"lock/{self.rng.randrange(int(self.ends - time.monotonic() + 1) * 4 + 4)}")
                self.count(place)
                self.records.append(self.rng.choice(self.places), self.rng)
        except Failed as failure:
            self.failure = failure

    def tried(self, what, put):
        self.tries += 1
        try:
            put(f"{self.number} {self.tries}")
            self.made.setdefault(what, []).append(f"{self.number} {self.tries}")
        except (ClientError, BotoCoreError) as error:
            if not is_certain(error):
                self.may_have_made.setdefault(what, []).append(f"{self.number} {self.tries}")
                time.sleep(0.05)
            elif error.response["Error"]["Code"] not in (FAILED, "NoSuchBucket", "NoSuchKey"):
                raise Failed(f"a put with a condition is answered with {error}") from error

    def lock(self, place, key):
        s3, size = client(place), self.rng.choice(LOCK_SIZES)
        self.tried(key, lambda who: s3.put_object(Bucket=BUCKET, Key=key, Body=who.ljust(size).encode(), IfNoneMatch="*"))

    def count(self, place):
        s3 = client(place)
        try:
            read = s3.get_object(Bucket=BUCKET, Key="number")
            number = int(read["Body"].read().split()[0])
        except (ClientError, BotoCoreError):
            return
        self.tried(number + 1, lambda who: s3.put_object(
            Bucket=BUCKET, Key="number", Body=f"{number + 1} {who}".encode(), IfMatch=read["ETag"]))


class Mover(threading.Thread):
    """Moves the home to regions chosen at random. Most commands are killed before it has moved: the server goes on."""

    def __init__(self, regions, rng, until):
        super().__init__()
        self.regions, self.rng, self.ends = regions, rng, until
        self.ordered = 0

    def run(self):
        while time.monotonic() < self.ends - 1:
            region = self.rng.choice(self.regions)
            scope = ["--all-writes"] if self.rng.random() < 0.3 else []
            ordering = subprocess.Popen(
                [region.binary, "region", "home", region.directory, BUCKET, "here", *scope],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                ordering.wait(timeout=self.rng.uniform(0.2, 3))
            except subprocess.TimeoutExpired:
                ordering.kill()
                ordering.wait()
            self.ordered += 1


def at_rest(regions):
    """Waits until no order is left."""
    until = time.monotonic() + AGREED_SECONDS
    while any("ordered" in region.region("home", region.directory, BUCKET, expect=None) for region in regions):
        if time.monotonic() > until:
            raise Failed(f"orders are left: {[region.region('home', region.directory, BUCKET, expect=None) for region in regions]}")
        time.sleep(0.2)


def move(region, place="here"):
    """Waits until a region is the home, or has given it up."""
    until = time.monotonic() + AGREED_SECONDS
    wanted = "this region is the home" if place == "here" else "has no home"
    while True:
        said = region.region("home", region.directory, BUCKET, place, expect=None)
        if wanted in said and "ordered" not in said:
            return said
        if time.monotonic() > until:
            raise Failed(f"the home of {BUCKET} is not {place} at {region.name}: {said}")


def begin(regions, places, clock):
    """Makes the bucket, and its first home."""
    client(places[0]).create_bucket(Bucket=BUCKET)
    until = time.monotonic() + AGREED_SECONDS
    for place in places:
        while BUCKET not in [one["Name"] for one in client(place).list_buckets()["Buckets"]]:
            if time.monotonic() > until:
                raise Failed(f"{BUCKET} is not in {place.name}")
            time.sleep(0.05)
    region_appends.refused(places[-1], BUCKET)
    move(regions[0])
    home, other = client(places[0]), client(places[-1])
    home.put_object(Bucket=BUCKET, Key="number", Body=b"0 at the start", IfNoneMatch="*")
    times = {"home": [], "other": []}
    for number in range(20):
        for name, s3 in (("home", home), ("other", other)):
            began = time.monotonic()
            s3.put_object(Bucket=BUCKET, Key=f"timed/{name}/{number}", Body=bytes(1000), IfNoneMatch="*")
            times[name].append(time.monotonic() - began)
            try:
                (other if name == "home" else home).put_object(Bucket=BUCKET, Key=f"timed/{name}/{number}", Body=b"", IfNoneMatch="*")
                raise Failed("a lock that one region made is made in another")
            except ClientError as error:
                if error.response["Error"]["Code"] != FAILED:
                    raise Failed(f"a second lock is answered with {error}") from error
    median = {name: 1000 * statistics.median(taken) for name, taken in times.items()}
    try:
        client(places[0]).delete_bucket(Bucket=BUCKET)
        raise Failed("a bucket with a home is deleted")
    except ClientError as error:
        if error.response["Error"]["Code"] != "InvalidBucketState":
            raise Failed(f"the deletion of a bucket with a home is answered with {error}") from error
    moves = []
    for region in [*regions[1:], regions[0]]:
        began = time.monotonic()
        move(region)
        moves.append(time.monotonic() - began)
    clock.tell(f"a put with a condition takes {median['home']:.0f} ms at the home and {median['other']:.0f} ms elsewhere; a home moves "
               f"within {statistics.median(moves):.1f} s")


def lockers(regions, places, rng, until, new_rng):
    started = [Locker(number, places, new_rng(rng), until) for number in range(4)]
    started.append(Mover(regions, new_rng(rng), until))
    for one in started:
        one.start()
    return started


def held(started, regions, places, clock):
    """Waits for these to end, and looks whether a lock was made twice, and whether all regions have the same."""
    for one in started:
        one.join()
    *locking, mover = started
    for one in locking:
        if one.failure:
            raise one.failure
    made, may_have_made = {}, {}
    for one in locking:
        for all_of, of in ((made, one.made), (may_have_made, one.may_have_made)):
            for what, who in of.items():
                all_of.setdefault(what, []).extend(who)
    twice = {what: who for what, who in made.items() if len(who) > 1}
    if twice:
        raise Failed(f"made more than once: {twice}")
    at_rest(regions)
    move(regions[0])
    wanted = {what: {*made.get(what, ())} or {*may_have_made[what]} for what in made | may_have_made if isinstance(what, str)}
    for place in places:
        # One look at all of them takes long where there are many.
        s3, lacking, until = client(place), wanted, None
        while lacking := {key: who for key, who in lacking.items() if not has(s3, key, who, key in made)}:
            until = until or time.monotonic() + AGREED_SECONDS
            if time.monotonic() > until:
                raise Failed(f"{place.name} has others than those who made these: {lacking}")
            time.sleep(0.1)
    region_appends.held([one.records for one in locking], places, clock)
    number = int(client(places[0]).get_object(Bucket=BUCKET, Key="number")["Body"].read().split()[0])
    counted = [what for what in made if isinstance(what, int)]
    if counted and number < max(counted):
        raise Failed(f"somebody was answered that the number is {max(counted)}, and it is {number}")
    clock.tell(f"{len([what for what in made if isinstance(what, str)])} locks were made once each and {len(counted)} numbers counted once each, "
               f"with {mover.ordered} orders to move the home")
    move(regions[0], "none")


def has(s3, key, who, is_certain):
    """True if a lock has the content of one of these; or there is none, and nobody was answered that it made it."""
    try:
        return s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode().strip() in who
    except ClientError as error:
        return error.response["Error"]["Code"] == "NoSuchKey" and not is_certain
    except BotoCoreError:
        return False
