"""Three stores that are regions of each other, over relays that delay, cut, and count what passes.

The first has objects before there are regions. Writers change the same keys in all three; servers are killed with SIGKILL, and
links are cut, meanwhile; buckets are made and deleted, and the home of one moves. Afterwards all three have the same keys with the same contents, and each key has a value that could be
its last. A region that was stopped meanwhile catches up, and nothing that was deleted comes back. One that lost its disk is filled
anew as another region. How long it takes until an object is in the next region, and how many bytes pass for it, is measured.

    python3 tests/clients/regions.py [--seconds 10] [--seed N] [--binary PATH]
"""

import argparse
import contextlib
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

import region_appends
import region_homes
import region_lists
import region_local
import region_removal
import region_uploads
from botocore.exceptions import ClientError
from harness import COMMAND_SECONDS, Host, Server, content, default_binary, free_port, md5, scratch_folder
from region_buckets import agreed, deletion, remakers
from workload import Clock, Failed

BUCKET = "everywhere"
KEYS = [f"key/{number}" for number in range(12)]
# One way, for each piece that passes.
DELAY_SECONDS = 0.025
CONVERGED_SECONDS = 60
# What a relay passes on at a time, and how many of these it keeps of a connection where its link is limited.
PIECE_BYTES, QUEUED_PIECES_MAX = 64 * 1024, 16
# Two operations whose times are not further apart may be in either order: clocks have milliseconds.
SLACK_SECONDS = 0.05
ABSENT = None
# An object in the next region, beside the relays' delays: two requests, there and back.
LAG_P50_MAX, LAG_P99_MAX = 0.15 + 4 * DELAY_SECONDS, 2.0
OVERHEAD_MAX = 1.03
# Between three regions in which nothing happens.
IDLE_BYTES_MAX = 12 * 1024


class Relay:
    """Passes connections on to a port. Its own port is the region's address for the others."""

    def __init__(self, host=Host(), link=Host(), enter=lambda: None):
        """From `link`, which a thread that has called `enter` is at, to `host`."""
        self.port, self.target, self.host, self.link, self.enter = free_port(), free_port(), host, link, enter
        self.is_cut, self.bytes, self.delay = False, 0, DELAY_SECONDS
        # Bytes a second of all connections together, towards who asks; none: as many as come.
        self.limit, self.free_at = None, 0.0
        self.lock, self.open = threading.Lock(), set()
        listens = threading.Event()
        threading.Thread(target=self.accept, args=(listens,), daemon=True).start()
        listens.wait()

    def accept(self, listens):
        self.enter()
        listener = socket.create_server((self.link.address, self.port))
        listens.set()
        while True:
            try:
                there, _ = listener.accept()
            except OSError:
                return
            if self.is_cut:
                there.close()
                continue
            try:
                here = socket.create_connection((self.host.address, self.target), timeout=5)
            except OSError:
                there.close()
                continue
            here.settimeout(None)
            with self.lock:
                self.open |= {here, there}
            for one, other, limited in ((here, there, True), (there, here, False)):
                # One that was cut at once is closed by now.
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.pass_on, args=(one, other, limited), daemon=True).start()

    def its_turn(self, size):
        """When a piece has passed the link, behind all that came before it."""
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + size / self.limit
            return self.free_at

    def pass_on(self, one, other, limited):
        """Pieces leave as long after they came as the relay delays, however many come meanwhile."""
        waiting, ready = [], threading.Condition()

        def send():
            while True:
                with ready:
                    ready.wait_for(lambda: waiting)
                    due, piece = waiting.pop(0)
                    ready.notify()
                if limited and self.limit and piece:
                    due = max(due, self.its_turn(len(piece)))
                time.sleep(max(0, due - time.monotonic()))
                try:
                    if not piece:
                        other.shutdown(socket.SHUT_WR)
                        return
                    other.sendall(piece)
                except OSError:
                    return

        threading.Thread(target=send, daemon=True).start()
        while True:
            try:
                piece = one.recv(PIECE_BYTES)
            except OSError:
                piece = b""
            with self.lock:
                self.bytes += len(piece)
            with ready:
                # A link keeps little in its queue, so that who sends is held up.
                ready.wait_for(lambda: not self.limit or len(waiting) < QUEUED_PIECES_MAX)
                waiting.append((time.monotonic() + self.delay, piece))
                ready.notify()
            if not piece:
                with self.lock:
                    self.open.discard(one)
                return

    def cut(self):
        self.is_cut = True
        with self.lock:
            ends, self.open = list(self.open), set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def heal(self):
        self.is_cut = False


class Region(Server):
    """A store, and the relay by which others reach it."""

    def __init__(self, binary, directory, name, relay=None):
        self.relay = relay or Relay()
        super().__init__(binary, directory, host=self.relay.host)
        self.name = name

    def flags(self):
        config = self.directory.with_suffix(".toml")
        config.write_text("pg_count = 32\nlog_segment_mib = 4\n")
        return [*super().flags(), "--config", config]

    def region(self, *words, expect=0):
        done = subprocess.run(
            [self.binary, "region", *map(str, words)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS,
        )
        if expect is not None and done.returncode != expect:
            raise Failed(f"larder region {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def place(self):
        listen, advertise = f"{self.relay.host.address}:{self.relay.target}", f"{self.relay.link.address}:{self.relay.port}"
        return ["--name", self.name, "--listen", listen, "--advertise", advertise]

    def create(self):
        self.region("create", self.directory, *self.place())

    def join(self, first, *words):
        token = next(line for line in first.region("token", first.directory).split() if line.startswith("larder-region-"))
        self.region("join", self.directory, token, *self.place(), *words)

    def status(self):
        return json.loads(self.region("status", self.directory, "--json", expect=None))

    def is_level(self):
        told = self.status()
        return told["heard"] and all(
            not peer["unreachable"] and not peer["operations_behind"] and not peer["comparing"]
            for peer in told["status"]["peers"]
        )

    def all(self):
        """Keys with entity tag and size."""
        s3, found = self.boto3(), {}
        with contextlib.suppress(s3.exceptions.NoSuchBucket):
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
                found |= {entry["Key"]: (entry["ETag"], entry["Size"]) for entry in page.get("Contents", [])}
        return found


class History:
    """What was asked of each key anywhere, and what was acknowledged."""

    def __init__(self):
        self.lock, self.keys = threading.Lock(), {}

    def begin(self, key, value):
        operation = {"value": value, "began": time.monotonic(), "ended": None}
        with self.lock:
            self.keys.setdefault(key, []).append(operation)
        return operation

    @staticmethod
    def acknowledge(operation):
        operation["ended"] = time.monotonic()

    def allowed(self, key):
        """Values that no acknowledged operation has surely replaced."""
        done = [one for one in self.keys.get(key, []) if one["ended"]]
        last = max((one["began"] for one in done), default=0) - SLACK_SECONDS
        values = {one["value"] for one in self.keys.get(key, []) if not one["ended"] or one["ended"] >= last}
        return values if done else values | {ABSENT}


def write(region, history, rng, until):
    """Puts and deletes until then; what is cut off may have happened."""
    s3, number = region.boto3(connect_timeout=2, read_timeout=20), 0
    while time.monotonic() < until:
        key, number = rng.choice(KEYS), number + 1
        try:
            if rng.random() < 0.25:
                operation = history.begin(key, ABSENT)
                s3.delete_object(Bucket=BUCKET, Key=key)
            else:
                size = rng.choice([0, 100, 3000, 70_000, 300_000, 9_000_000 if rng.random() < 0.1 else 500])
                body = content(f"{region.name}/{number}/{rng.random()}", size)
                operation = history.begin(key, md5(body))
                s3.put_object(Bucket=BUCKET, Key=key, Body=body)
            history.acknowledge(operation)
        except Exception:
            time.sleep(0.05)


def converged(regions):
    """Waits until all have the same, and say so; what they have."""
    deadline = time.monotonic() + CONVERGED_SECONDS
    while True:
        found = [region.all() for region in regions]
        if all(one == found[0] for one in found) and all(region.is_level() for region in regions):
            return found[0]
        if time.monotonic() > deadline:
            differ = {key: [one.get(key) for one in found] for one in found for key in one
                      if len({other.get(key) for other in found}) > 1}
            raise Failed(f"not the same within {CONVERGED_SECONDS} s: {differ}, {[region.status() for region in regions]}")
        time.sleep(0.1)


def check(regions, found, history=None):
    """Contents are those of the entity tags, everywhere; keys have a value that may be their last."""
    for region in regions:
        s3 = region.boto3()
        for key, (etag, size) in found.items():
            body = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            if len(body) != size or f'"{md5(body)}"' != etag:
                raise Failed(f"{region.name}: {key} has other bytes than its entity tag says")
    for key in KEYS if history else []:
        value = found[key][0].strip('"') if key in found else ABSENT
        if value not in history.allowed(key):
            raise Failed(f"{key} has {value}, which was replaced: {history.keys[key][-6:]}")


def form(binary, scratch, clock, regions):
    one = Region(binary, scratch / "one", "one")
    regions.append(one)
    one.start()
    s3 = one.boto3()
    s3.create_bucket(Bucket=BUCKET)
    for number in range(40):
        s3.put_object(Bucket=BUCKET, Key=f"before/{number}", Body=content(number, 1000 * number))
    one.stop()
    one.create()
    one.start()
    for name in ("two", "three"):
        region = Region(binary, scratch / name, name)
        regions.append(region)
        region.start()
        region.stop()
        region.join(one)
        region.start()
    found = converged(regions)
    if len(found) != 40:
        raise Failed(f"{len(found)} of 40 objects from before are in all regions")
    check(regions, found)
    clock.tell("three regions have what one had before")


def form_two(regions):
    """The second joins the first, which has an object."""
    one, two = regions
    one.start()
    one.boto3().create_bucket(Bucket=BUCKET)
    one.boto3().put_object(Bucket=BUCKET, Key="first", Body=b"first")
    one.stop()
    one.create()
    one.start()
    two.start()
    two.stop()
    two.join(one)
    two.start()
    converged(regions)


def conflicts(regions, rng, seconds, clock):
    history, until = History(), time.monotonic() + seconds
    rngs = [random.Random(rng.random()) for _ in range(2 * len(regions) + 1)]
    writers = [threading.Thread(target=write, args=(region, history, rngs.pop(), until)) for region in regions for _ in (1, 2)]
    for writer in writers:
        writer.start()
    makers = remakers(regions, rngs.pop(), until)
    homes = region_homes.lockers(regions, regions, rng, until, lambda rng: random.Random(rng.random()))
    owners = region_local.owners(regions, lambda region: [region], rng, until, lambda rng: random.Random(rng.random()))
    kills = cuts = 0
    while time.monotonic() < until - 1:
        time.sleep(rng.uniform(0.3, 1.2))
        region = rng.choice(regions)
        if rng.random() < 0.5:
            region.kill()
            region.start()
            kills += 1
        else:
            region.relay.cut()
            time.sleep(rng.uniform(0.2, 1.0))
            region.relay.heal()
            cuts += 1
    for writer in writers:
        writer.join()
    found = converged(regions)
    check(regions, found, history)
    deleted, kept = agreed(makers, regions)
    region_homes.held(homes, regions, regions, clock)
    region_local.shared_by_all(owners, regions, clock)
    operations = sum(one["ended"] is not None for ops in history.keys.values() for one in ops)
    clock.tell(f"{operations} operations on {len(KEYS)} keys, {kills} kills, {cuts} cuts: the same everywhere; "
               f"{deleted} buckets deleted, {kept} kept as they had an object")


def away(regions, clock):
    """One is stopped while others delete and put."""
    one, two, three = regions
    two.stop()
    region_lists.needs_all(three, "two")
    s3 = one.boto3()
    for number in range(0, 40, 2):
        s3.delete_object(Bucket=BUCKET, Key=f"before/{number}")
    for number in range(30):
        three.boto3().put_object(Bucket=BUCKET, Key=f"after/{number}", Body=content(f"after/{number}", 5000))
    # Meanwhile the one that is away changes what others deleted, and what they did not.
    two.start()
    found = converged(regions)
    if any(f"before/{number}" in found for number in range(0, 40, 2)):
        raise Failed("what was deleted while a region was away is there again")
    check(regions, found)
    clock.tell("a region that was away has caught up")


def lag(here, there, way, count=60, limits=(LAG_P50_MAX, LAG_P99_MAX)):
    """How long it takes until what is put in one region can be read in another."""
    here, there, lags = here.boto3(), there.boto3(), []
    for number in range(count):
        key = f"lag/{way}/{number}"
        here.put_object(Bucket=BUCKET, Key=key, Body=content(key, 1000))
        began = time.monotonic()
        while not there.list_objects_v2(Bucket=BUCKET, Prefix=key, MaxKeys=1).get("Contents"):
            if time.monotonic() > began + CONVERGED_SECONDS:
                raise Failed(f"{key} did not come")
        lags.append(time.monotonic() - began)
    lags.sort()
    median, last = statistics.median(lags), lags[int(0.99 * len(lags))]
    print(f"{way}: an object is there after {1000 * median:.0f} ms, {1000 * last:.0f} ms at the 99th percentile")
    if median > limits[0] or last > limits[1]:
        raise Failed(f"{way}: the lag's median is {median:.3f} s, its 99th percentile {last:.3f} s")


def where(s3, key):
    """What a version's headers say of where it is: status, numbers of regions."""
    shown = lambda answer: answer["ResponseMetadata"]["HTTPHeaders"]
    of = lambda headers: (headers.get("x-amz-replication-status"), headers.get("x-larder-replication-regions"))
    while (head := of(shown(s3.head_object(Bucket=BUCKET, Key=key)))) != of(shown(s3.get_object(Bucket=BUCKET, Key=key))):
        # It came to a region between the two.
        if head[0] != "PENDING":
            raise Failed(f"a get of {key} says otherwise than a head, which says {head}")
    return head


def awaited(place, there, way, directory, region, count=20):
    """Changes of a bucket are answered once one of the regions `there` has them, too; through `place`."""
    said = region("policy", directory, BUCKET, "2")
    deadline, wanted = time.monotonic() + COMMAND_SECONDS, f"changes of {BUCKET} are answered once 2 regions have them"
    # A single node's server looks every second; in a cluster the manager that is asked next may know a little later.
    while wanted not in said or region("policy", directory, BUCKET).strip() != wanted:
        if time.monotonic() > deadline:
            raise Failed(f"larder region policy: {said}")
        time.sleep(0.1)
    here, there, times = place.boto3(), [region.boto3() for region in there], []
    listed = lambda key: [bool(s3.list_objects_v2(Bucket=BUCKET, Prefix=key).get("Contents")) for s3 in there]
    # The machine that clients use hears of it within a second, too.
    deadline, number, heard = time.monotonic() + COMMAND_SECONDS, 0, False
    while not heard:
        if time.monotonic() > deadline:
            raise Failed(f"puts in {BUCKET} do not wait for other regions")
        key, number = f"heard/{way}/{number}", number + 1
        here.put_object(Bucket=BUCKET, Key=key, Body=b"")
        heard = any(listed(key))
    for number in range(count):
        # In one op, in one chunk, and in several.
        key, size = f"awaited/{way}/{number}", 9_000_000 if number == count - 1 else (1000, 70_000)[number % 2]
        began = time.monotonic()
        here.put_object(Bucket=BUCKET, Key=key, Body=content(key, size))
        times.append(time.monotonic() - began)
        if not any(listed(key)):
            raise Failed(f"{key} was answered, and is in no other region")
    here.delete_object(Bucket=BUCKET, Key=key)
    if all(listed(key)):
        raise Failed(f"the deletion of {key} was answered, and it is in all other regions")
    times = sorted(times[:-1])
    median, last = statistics.median(times), times[-1]
    print(f"{way}: a put that waits for two regions takes {1000 * median:.0f} ms, the slowest {1000 * last:.0f} ms")
    if median > LAG_P50_MAX or last > LAG_P99_MAX:
        raise Failed(f"{way}: puts that wait take {median:.3f} s, the slowest {last:.3f} s")
    return f"awaited/{way}/0"


def yields(region):
    """What it pulls yields while many of its clients wait, here for other regions, and comes back."""
    ends = threading.Event()

    def share():
        with urllib.request.urlopen(region.metrics_url(), timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("larder_region_pull_share "))

    def put(number):
        s3, count = region.boto3(), 0
        while not ends.is_set():
            s3.put_object(Bucket=BUCKET, Key=f"yields/{number}/{count % 10}", Body=b"")
            count += 1

    def until(what, holds):
        deadline = time.monotonic() + COMMAND_SECONDS
        while not holds(share()):
            if time.monotonic() > deadline:
                raise Failed(f"{what}: it pulls at {share()} of its rate")
            time.sleep(0.1)

    clients = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for client in clients:
        client.start()
    try:
        until("eight clients wait", lambda now: 0 < now <= 0.5)
    finally:
        ends.set()
        for client in clients:
            client.join()
    until("nobody waits", lambda now: now == 1)


def policy(regions, clock):
    """One bucket waits for two regions, also while there is but one; then it does so no more."""
    one, two, three = regions
    key = awaited(one, [two, three], "one to another", one.directory, one.region)
    yields(one)
    converged(regions)
    until = time.monotonic() + CONVERGED_SECONDS
    while where(one.boto3(), key) != ("COMPLETED", "1,2,3"):
        if time.monotonic() > until:
            raise Failed(f"{key} is everywhere, and its headers say {where(one.boto3(), key)}")
        time.sleep(0.1)
    if where(two.boto3(), key) != ("REPLICA", "1,2"):
        raise Failed(f"the other region says of {key} {where(two.boto3(), key)}")
    one.region("policy", one.directory, BUCKET, "4", expect=2)
    for region in (two, three):
        region.relay.cut()
    one.relay.cut()
    try:
        one.boto3(retries={"total_max_attempts": 1}).put_object(Bucket=BUCKET, Key="alone", Body=b"alone")
        raise Failed("a put that waits for two regions is answered by one that reaches none")
    except ClientError as error:
        told = error.response["Error"]["Message"]
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503 or "made in this region" not in told:
            raise Failed(f"a put that fewer regions have is answered with {error}") from error
    until = time.monotonic() + CONVERGED_SECONDS
    while one.region("status", one.directory, expect=None).count("it has not asked for changes of this region for") != 2:
        if time.monotonic() > until:
            raise Failed("larder region status does not name the regions that lack changes")
        time.sleep(0.2)
    if where(one.boto3(), "alone") != ("PENDING", "1"):
        raise Failed(f"what no other region has is said to be {where(one.boto3(), 'alone')}")
    for region in regions:
        region.relay.heal()
    one.region("policy", one.directory, BUCKET, "1")
    found = converged(regions)
    if "alone" not in found:
        raise Failed("what fewer regions had did not go on to them")
    clock.tell("changes were answered once two regions had them")


def overhead(regions):
    """How many bytes pass for an object."""
    converged(regions)
    one, size, count = regions[0], 200_000, 60
    before = sum(region.relay.bytes for region in regions)
    s3 = one.boto3()
    for number in range(count):
        s3.put_object(Bucket=BUCKET, Key=f"large/{number}", Body=content(f"large/{number}", size))
    began = time.monotonic()
    converged(regions)
    waited = max(time.monotonic() - began, 4)
    passed = sum(region.relay.bytes for region in regions) - before
    time.sleep(waited)
    idle = (sum(region.relay.bytes for region in regions) - before - passed) / waited
    share = (passed - idle * waited) / (2 * size * count)
    print(f"{share:.3f} bytes pass for each byte of an object and region; idle, {idle / 1024:.1f} KiB/s")
    if share > OVERHEAD_MAX:
        raise Failed(f"{share:.3f} bytes pass for each byte")
    if idle > IDLE_BYTES_MAX:
        raise Failed(f"{idle:.0f} bytes a second pass where nothing happens")


def compressed(regions, clock):
    """A region that is asked to compress sends text in fewer bytes, and noise in hardly more."""
    one, two, three = regions
    for region in (two, three):
        for other in regions:
            if other is not region:
                said = region.region("compress", region.directory, other.name, "on")
                if f"{other.name} compresses objects" not in said or said != region.region("compress", region.directory, other.name):
                    raise Failed(f"larder region compress: {said}")
    time.sleep(3)  # Their servers look every second.
    shares = []
    for kind, size in (("text", 300_000), ("noise", 100_000)):
        before, s3, put = sum(region.relay.bytes for region in regions), one.boto3(), 0
        for number in range(20):
            body = content(f"{kind}/{number}", size)
            if kind == "text":
                body = "\n".join(f'{{"number": {at}, "state": "active", "id": "{body[at:at + 4].hex()}"}}' for at in range(size // 50)).encode()
            s3.put_object(Bucket=BUCKET, Key=f"compressed/{kind}/{number}", Body=body)
            put += len(body)
        converged(regions)
        shares.append((sum(region.relay.bytes for region in regions) - before) / (2 * put))
    if shares[0] > 0.5 or shares[1] > OVERHEAD_MAX:
        raise Failed(f"compressed, {shares[0]:.3f} bytes pass for each byte of text, {shares[1]:.3f} of noise")
    for region in (two, three):
        for other in regions:
            if other is not region:
                region.region("compress", region.directory, other.name, "off")
    clock.tell(f"compressed, {shares[0]:.3f} bytes pass for each byte of JSON and region, {shares[1]:.3f} of noise")


def rated(regions, clock):
    """A region pulls no more than it is told to."""
    one, two, three = regions
    for region in (one, three):
        said = two.region("rate", two.directory, region.name, "1")
        if f"at most 1 MiB a second from {region.name}" not in said or said != two.region("rate", two.directory, region.name):
            raise Failed(f"larder region rate: {said}")
    time.sleep(3)  # Its server looks every second.
    s3, size, count, began = one.boto3(), 500_000, 20, time.monotonic()
    for number in range(count):
        s3.put_object(Bucket=BUCKET, Key=f"rated/{number}", Body=content(f"rated/{number}", size))
    there = two.boto3()
    while there.list_objects_v2(Bucket=BUCKET, Prefix="rated/")["KeyCount"] < count:
        if time.monotonic() > began + CONVERGED_SECONDS:
            raise Failed("a region that pulls slowly does not get on")
        time.sleep(0.05)
    took = time.monotonic() - began
    # What two regions give: a second's worth at once, and then as much a second.
    least = 0.6 * (size * count / (2 << 20) - 1)
    if took < least:
        raise Failed(f"{size * count} bytes came within {took:.1f} s from two regions of 1 MiB/s each")
    for region in (one, three):
        two.region("rate", two.directory, region.name, "256")
    clock.tell(f"{size * count / 1e6:.0f} MB came within {took:.1f} s from two regions of 1 MiB/s each")


def replaced(regions, binary, scratch, clock):
    """A region's disk is lost: it is removed, and another takes its place."""
    one, two, three = regions
    three.kill()
    shutil.rmtree(three.directory)
    one.region("remove", one.directory, "three", "--yes")
    regions[2] = four = Region(binary, scratch / "four", "four")
    four.start()
    four.stop()
    deadline = time.monotonic() + CONVERGED_SECONDS
    while True:
        try:
            four.join(one)
            break
        except Failed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    four.start()
    found = converged(regions)
    check(regions, found)
    if any(f"before/{number}" in found for number in range(0, 40, 2)):
        raise Failed("what was deleted is there again after a region was replaced")
    clock.tell(f"a region that lost its disk was replaced: {len(found)} objects")


def run(binary, scratch, seconds, seed):
    rng, clock, regions = random.Random(seed), Clock(), []
    try:
        form(binary, scratch, clock, regions)
        lag(regions[0], regions[1], "one to two")
        policy(regions, clock)
        deletion(regions, regions[0], regions[2], clock)
        region_lists.at_once(regions, regions[1:], clock)
        region_local.refused(regions[0], regions[2], clock)
        region_homes.begin(regions, regions, clock)
        region_uploads.through_home(regions[0], regions[1], regions[1], regions, clock)
        region_appends.passed_once(regions[0], regions[1:], lambda: sum(region.relay.bytes for region in regions))
        conflicts(regions, rng, seconds, clock)
        away(regions, clock)
        overhead(regions)
        compressed(regions, clock)
        rated(regions, clock)
        replaced(regions, binary, scratch, clock)
        region_removal.removed(regions[0], regions[2], regions[2:], BUCKET, clock)
        for region in regions:
            if region.stop() != 0:
                raise Failed(f"{region.name}'s stop was not clean")
            code, report = region.inspect()
            if code != 0:
                raise Failed(f"inspect of {region.name} ended with {code}:\n{report[-3000:]}")
    except (Failed, AssertionError) as failure:
        logs = "\n".join(f"{region.name}:\n{region.log_tail(15)}" for region in regions)
        raise Failed(f"{failure}\n{logs}") from failure
    finally:
        for region in regions:
            region.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seconds", type=float, default=10, help="of conflicts")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"regions: {arguments.seconds:.0f} s of conflicts, seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        try:
            run(arguments.binary, scratch, arguments.seconds, arguments.seed)
        except Failed as failure:
            print(f"FAIL regions: {failure}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
