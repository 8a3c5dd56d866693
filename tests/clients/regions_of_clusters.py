"""A cluster of three equal machines, one of which is the gateway, and single nodes as regions. Relays delay, cut, and count what passes.

The cluster and the first single node have objects before there are regions. Writers change the same keys through every machine and in the single nodes; machines, the
gateway among them, are killed with SIGKILL, and links are cut, meanwhile. Afterwards all show the same keys with the same contents, and
each key has a value that could be its last. While the gateway is away the cluster serves, and its changes go on when it is back. A
copy of the gateway's directory from before is brought to another machine, which takes its place when it dies. How long it takes until an object is in the other region, and how many bytes pass for it, is measured.

    python3 tests/clients/regions_of_clusters.py [--seconds 10] [--singles 1] [--seed N] [--binary PATH]
"""

import argparse
import contextlib
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time

import region_appends
import region_homes
import region_lists
import region_local
import region_removal
import region_uploads
from botocore.exceptions import ClientError
from harness import content, default_binary, free_port, scratch_folder
from peers import Machine, equal_machines, ready, run, secret_file, until, whole
from regions import (
    BUCKET, CONVERGED_SECONDS, DELAY_SECONDS, IDLE_BYTES_MAX, KEYS, OVERHEAD_MAX, History, Region, Relay, awaited, check, converged,
    lag, write,
)
from region_buckets import agreed, client, deletion, remakers
from workload import Clock, Failed

# A lag as between single nodes, and what the cluster's servers tell each other for it.
LAGS_MAX = 0.3 + 4 * DELAY_SECONDS, 3.0
BEFORE = 20
GATEWAY_SECONDS = 30


class Cluster(Region):
    """Three machines as one region. Commands are run on the gateway, clients come to it, too, unless another is named."""

    def __init__(self, binary, scratch, name, relay=None):
        # Not that of a single node.
        self.binary, self.name, self.relay = binary, name, relay or Relay()
        secret = secret_file(binary, scratch / f"{name}.secret")
        self.machines = equal_machines(Machine, binary, scratch, secret, self.relay.host, name=name)
        self.gateway = self.machines[0]

    @property
    def directory(self):
        return self.gateway.directory

    def others(self):
        return [machine for machine in self.machines if machine is not self.gateway]

    def boto3(self, **settings):
        return self.gateway.boto3(**settings)

    def spawn_all(self):
        for machine in self.machines:
            if machine.process is None:
                machine.spawn()
        ready(self.machines)

    def kill(self):
        for machine in self.machines:
            machine.kill()

    def all(self):
        """What each machine shows: the same."""
        while True:
            shown = [Region.all(_Through(machine)) for machine in self.machines]
            if all(one == shown[0] for one in shown):
                return shown[0]
            time.sleep(0.1)

    def log_tail(self, lines):
        return "\n".join(f"{machine.directory.name}:\n{machine.log_tail(lines)}" for machine in self.machines)


class _Through:
    """A machine, as clients of the region see it."""

    def __init__(self, machine):
        self.boto3 = machine.boto3


class Writer:
    """A machine that clients write through, named in what they write."""

    def __init__(self, machine, name):
        self.boto3, self.name = machine.boto3, name


def put_before(site, name):
    s3 = site.boto3()
    s3.create_bucket(Bucket=BUCKET)
    for number in range(BEFORE):
        s3.put_object(Bucket=BUCKET, Key=f"before/{name}/{number}", Body=content(f"{name}/{number}", 3000 * number))
    s3.put_object(Bucket=BUCKET, Key="before/both", Body=content(name, 100_000))


def refused(binary, words, said):
    done = subprocess.run([binary, "region", *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if done.returncode == 0 or said not in done.stderr:
        raise Failed(f"larder region {words[:2]}: {done.returncode}, {done.stderr}")


def form(binary, scratch, clock, cluster, singles):
    refused(binary, ["create", scratch / "none", *cluster.place()], "has no store")
    cluster.spawn_all()
    whole(cluster.gateway, cluster.machines, 12)
    put_before(cluster, "cluster")
    for role in ("manager", "meta", "data"):
        refused(binary, ["create", cluster.directory / role, *cluster.place()], "one of the cluster's proxies")
    for single in singles:
        single.start()
    put_before(singles[0], "single")
    for single in singles:
        single.stop()
    cluster.gateway.stop()
    cluster.create()
    older = shutil.copytree(cluster.directory / "region", scratch / "older")
    cluster.spawn_all()
    for single in singles:
        single.join(cluster, "--merge")
        single.start()
    found = converged([cluster, *singles])
    if len(found) != 2 * BEFORE + 1:
        raise Failed(f"{len(found)} of {2 * BEFORE + 1} objects from before are in all regions")
    check([cluster, *singles], found)
    for machine in cluster.machines:
        if machine.metric("region_number") != 1 or machine.metric("region_gateway") != (machine is cluster.gateway):
            raise Failed(f"{machine.name} does not say which region it is, or whether it is the gateway")
    clock.tell("all regions have what the cluster and a single node had before")
    return older


def conflicts(cluster, singles, rng, seconds, clock):
    history, until = History(), time.monotonic() + seconds
    places = [Writer(machine, f"machine-{at}") for at, machine in enumerate(cluster.machines)] + [*singles, *singles]
    rngs = [random.Random(rng.random()) for _ in [*places, "buckets"]]
    writers = [threading.Thread(target=write, args=(place, history, rngs.pop(), until)) for place in places]
    for writer in writers:
        writer.start()
    makers = remakers([*cluster.machines, *singles], rngs.pop(), until)
    homes = region_homes.lockers([cluster, *singles], [*cluster.machines, *singles], rng, until, lambda rng: random.Random(rng.random()))
    places_of = {cluster: cluster.machines, **{single: [single] for single in singles}}
    owners = region_local.owners(list(places_of), places_of.get, rng, until, lambda rng: random.Random(rng.random()))
    struck = [0, 0, 0, 0]
    while time.monotonic() < until - 1:
        time.sleep(rng.uniform(0.5, 1.5))
        kind = rng.randrange(4)
        struck[kind] += 1
        if kind < 2:
            # One machine at a time: the others lead on.
            machine = cluster.gateway if kind == 0 else rng.choice(cluster.others())
            machine.kill()
            time.sleep(rng.uniform(0, 2.0))
            machine.spawn()
            ready(cluster.machines)
        elif kind == 2:
            single = rng.choice(singles)
            single.kill()
            single.start()
        else:
            relay = rng.choice([cluster, *singles]).relay
            relay.cut()
            time.sleep(rng.uniform(0.2, 1.0))
            relay.heal()
    for writer in writers:
        writer.join()
    found = converged([cluster, *singles])
    check([cluster, *singles], found, history)
    deleted, kept = agreed(makers, [*cluster.machines, *singles])
    region_homes.held(homes, [cluster, *singles], [*cluster.machines, *singles], clock)
    region_local.shared_by_all(owners, [*cluster.machines, *singles], clock)
    operations = sum(one["ended"] is not None for ops in history.keys.values() for one in ops)
    clock.tell(f"{operations} operations on {len(KEYS)} keys; killed: gateway {struck[0]}, other machine {struck[1]}, single node {struck[2]}; "
               f"{struck[3]} cuts: the same everywhere; {deleted} buckets deleted, {kept} kept as they had an object")


def yields(cluster, machine, single):
    """What the gateway pulls yields while many clients of another machine wait, here for another region, and comes back."""
    ends = threading.Event()

    def put(place, key, size):
        s3, count = place.boto3(read_timeout=60), 0
        while not ends.is_set():
            s3.put_object(Bucket=BUCKET, Key=f"yields/{key}/{count % 10}", Body=bytes(size))
            count += 1

    def share_is(what, holds):
        tell = lambda: f"the gateway pulls at {cluster.gateway.metric('region_pull_share')} of its rate"
        until(what, 30, lambda: holds(cluster.gateway.metric("region_pull_share")), cluster.machines, tell)

    puts = [(machine, number, 0) for number in range(8)] + [(single, "pulled", 20_000)]
    clients = [threading.Thread(target=put, args=of) for of in puts]
    for one in clients:
        one.start()
    try:
        share_is("eight clients of a machine that is not the gateway wait", lambda now: 0 < now <= 0.5)
    finally:
        ends.set()
        for one in clients:
            one.join()
    share_is("nobody waits", lambda now: now == 1)


LARGE = 65 << 20


def on_its_way(cluster, home, single):
    """A large object of another region is read there while it comes, through every machine."""
    body, single.relay.limit = content("large", LARGE), 10 << 20
    reads = cluster.gateway.metric("region_misses_remote_total")
    home.put_object(Bucket=region_homes.BUCKET, Key="large", Body=body)
    try:
        for machine in cluster.machines:
            s3 = client(machine)
            size = s3.head_object(Bucket=region_homes.BUCKET, Key="large")["ContentLength"]
            end = s3.get_object(Bucket=region_homes.BUCKET, Key="large", Range=f"bytes={LARGE - 100_000}-")["Body"].read()
            if (size, end) != (LARGE, body[-100_000:]):
                raise Failed(f"a large object of another region has {size} bytes, or another end, through {machine.name}")
        reads = cluster.gateway.metric("region_misses_remote_total") - reads
        if reads < 2 * len(cluster.machines):
            raise Failed(f"a large object came at once over a slow link: it was read elsewhere {reads} times")
        single.relay.limit = 40 << 20
        if client(cluster.others()[0]).get_object(Bucket=region_homes.BUCKET, Key="large")["Body"].read() != body:
            raise Failed("a large object of another region is read with other content")
    finally:
        single.relay.limit = None


def appended_behind(cluster, single):
    """A home does not append to what it lacks: the record goes behind the large object once that is here."""
    key, body, single.relay.limit, refused = f"{region_appends.KEY}/late", content("late", LARGE), 20 << 20, 0
    client(single).put_object(Bucket=region_homes.BUCKET, Key=key, Body=body)
    s3 = region_appends.client(cluster.others()[0])
    try:
        while True:
            try:
                offset = region_appends.append(s3, b"a record", region_homes.BUCKET, key)
                break
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
                    raise Failed(f"an append to an object that is on its way is answered with {error}") from error
                refused += 1
                time.sleep(0.1)
    finally:
        single.relay.limit = None
    if offset != LARGE or not refused:
        raise Failed(f"a record is at {offset} of an object of {LARGE} bytes that was on its way; {refused} were refused before")


def through_another_machine(cluster, singles, clock):
    """A machine that is not the gateway has it pass changes on to the home, and ask other regions for what is not here."""
    region_homes.move(singles[0])
    s3, home, times = client(cluster.others()[0]), client(singles[0]), []
    for number in range(20):
        began = time.monotonic()
        s3.put_object(Bucket=region_homes.BUCKET, Key=f"through/{number}", Body=bytes(1000), IfNoneMatch="*")
        times.append(time.monotonic() - began)
        try:
            s3.put_object(Bucket=region_homes.BUCKET, Key=f"through/{number}", Body=b"", IfNoneMatch="*")
            raise Failed("a lock is made twice through a machine that is not the gateway")
        except ClientError as error:
            if error.response["Error"]["Code"] != "PreconditionFailed":
                raise Failed(f"a second lock is answered with {error}") from error
        home.put_object(Bucket=region_homes.BUCKET, Key=f"read/{number}", Body=b"read")
        if s3.get_object(Bucket=region_homes.BUCKET, Key=f"read/{number}")["Body"].read() != b"read":
            raise Failed("what another region has is read with other content")
    on_its_way(cluster, home, singles[0])
    try:
        cluster.region("status", cluster.others()[0].directory)
        raise Failed("a machine that is not the gateway shows the status of the region")
    except Failed as failure:
        if "is not the gateway of its cluster, which is region 1: run the command at" not in str(failure):
            raise
    region_uploads.through_home(singles[0], cluster, cluster.others()[0], [*cluster.machines, *singles], clock)
    region_homes.move(cluster)
    appended_behind(cluster, singles[0])
    clock.tell(f"through a machine that is not the gateway a put with a condition takes {1000 * statistics.median(times):.0f} ms")


def new_buckets(cluster, singles, clock):
    """What is put into a bucket at the moment it is made, past the gateway, is in the other regions, too."""
    names = [f"new-{number}" for number in range(10)]
    for number, name in enumerate(names):
        for site, key in ((cluster.others()[number % 2], "first"), (singles[0], "second")):
            s3 = site.boto3()
            # It may have come from the other region.
            with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
                s3.create_bucket(Bucket=name)
            s3.put_object(Bucket=name, Key=key, Body=content(name, 50))
    deadline = time.monotonic() + CONVERGED_SECONDS
    for site in [cluster, *singles]:
        for name in names:
            while True:
                found = site.boto3().list_objects_v2(Bucket=name).get("Contents", [])
                if [one["Key"] for one in found] == ["first", "second"]:
                    break
                if time.monotonic() > deadline:
                    raise Failed(f"{name} has {found} in {site.name}")
                time.sleep(0.1)
    clock.tell(f"{len(names)} buckets that were new have the same everywhere")


def without_gateway(cluster, singles, clock):
    """The cluster serves; its changes wait, and go on when the gateway is back."""
    s3 = client(cluster.others()[0])
    s3.create_bucket(Bucket="deleted-without-gateway")
    cluster.gateway.kill()
    try:
        s3.delete_bucket(Bucket="deleted-without-gateway")
        raise Failed("a bucket is deleted without the gateway")
    except s3.exceptions.ClientError as error:
        if "gateway of this one is away" not in str(error):
            raise Failed(f"the deletion of a bucket without the gateway is answered with {error}") from error
    for number, machine in enumerate(cluster.others()):
        s3 = machine.boto3(read_timeout=60)
        s3.put_object(Bucket="deleted-without-gateway", Key=f"{number}", Body=b"it is open again")
        for key in range(0, BEFORE, 2):
            s3.delete_object(Bucket=BUCKET, Key=f"before/{['cluster', 'single'][number]}/{key}")
        for key in range(15):
            s3.put_object(Bucket=BUCKET, Key=f"alone/{number}/{key}", Body=content(f"alone/{number}/{key}", 40_000 if key % 2 else 50))
    for key in range(15):
        singles[0].boto3().put_object(Bucket=BUCKET, Key=f"after/{key}", Body=content(f"after/{key}", 5000))
    cluster.spawn_all()
    found = converged([cluster, *singles])
    if any(f"before/{name}/{key}" in found for name in ("cluster", "single") for key in range(0, BEFORE, 2)):
        raise Failed("what was deleted while the gateway was away is there again")
    if sum(key.startswith(("alone/", "after/")) for key in found) != 45:
        raise Failed(f"what was put while the gateway was away is not everywhere: {sorted(found)}")
    clock.tell("the cluster served without its gateway, and what it took is in the other regions")


def move_gateway(binary, cluster, singles, older, clock):
    """Another machine has a copy of DIR/region from before the other regions joined: it is the gateway once the first one has
    ended, and knows them; the first one is it no more. Another key is refused."""
    old, new = cluster.gateway, cluster.machines[1]
    run(binary, "region", "create", new.directory, "--name", "other", "--listen", f"127.0.0.1:{free_port()}")
    new.kill()
    code, said = new.refusal()
    if code != 3 or "by another key" not in said:
        raise Failed(f"a second gateway with a key of its own: {code}, {said}")
    shutil.rmtree(new.directory / "region")
    shutil.copytree(older, new.directory / "region")
    cluster.spawn_all()
    put_through_all(cluster, "both")
    check([cluster, *singles], converged([cluster, *singles]))
    if (old.metric("region_gateway"), new.metric("region_gateway")) != (1, 0):
        raise Failed("a second gateway does not wait for the first one's end")
    old.kill()
    until("another gateway", GATEWAY_SECONDS, lambda: new.metric("region_gateway") == 1, [new])
    cluster.gateway = new
    cluster.spawn_all()
    put_through_all(cluster, "moved")
    check([cluster, *singles], converged([cluster, *singles]))
    if (old.metric("region_gateway"), new.metric("region_gateway")) != (0, 1):
        raise Failed("a gateway that was replaced is it again")
    listed = run(binary, "region", "list", new.directory)
    if any(single.name not in listed for single in singles):
        raise Failed(f"the gateway with an older list does not know all regions: {listed}")
    clock.tell("another machine with an older list is the gateway, and the one before is none")


def put_through_all(cluster, prefix):
    for number, machine in enumerate(cluster.machines):
        machine.boto3().put_object(Bucket=BUCKET, Key=f"{prefix}/{number}", Body=content(number, 30_000))


def overhead(cluster, singles):
    """How many bytes pass for an object."""
    sites = [cluster, *singles]
    converged(sites)
    size, count = 200_000, 40
    passed = lambda: sum(site.relay.bytes for site in sites)
    before = passed()
    for number in range(count):
        site = sites[number % len(sites)]
        site.boto3().put_object(Bucket=BUCKET, Key=f"large/{number}", Body=content(f"large/{number}", size))
    began = time.monotonic()
    converged(sites)
    waited = max(time.monotonic() - began, 3)
    sent = passed() - before
    time.sleep(waited)
    idle = (passed() - before - sent) / waited
    share = (sent - idle * waited) / (size * count * len(singles))
    print(f"{share:.3f} bytes pass for each byte of an object and region; idle, {idle / 1024:.1f} KiB/s")
    if share > OVERHEAD_MAX:
        raise Failed(f"{share:.3f} bytes pass for each byte")
    if idle > IDLE_BYTES_MAX:
        raise Failed(f"{idle:.0f} bytes a second pass where nothing happens")


def test(binary, scratch, seconds, singles, seed):
    rng, clock = random.Random(seed), Clock(every=0)
    cluster = Cluster(binary, scratch, "cluster")
    singles = [Region(binary, scratch / f"single-{number}", f"single-{number}") for number in range(1, singles + 1)]
    try:
        older = form(binary, scratch, clock, cluster, singles)
        lag(cluster, singles[0], "cluster to single node", 25, LAGS_MAX)
        lag(singles[0], cluster, "single node to cluster", 25, LAGS_MAX)
        other = cluster.others()[0]
        awaited(other, singles, "through a machine that is no gateway", other.directory, cluster.region)
        yields(cluster, other, singles[0])
        cluster.region("policy", cluster.directory, BUCKET, "1")
        overhead(cluster, singles)
        # Through a machine that is no gateway, and through the gateway.
        deletion([cluster, *singles], other, singles[0], clock)
        deletion([cluster, *singles], singles[0], cluster.gateway, clock)
        region_lists.at_once([*cluster.machines, *singles], [*cluster.machines, *singles], clock)
        region_homes.begin([cluster, *singles], [cluster.gateway, *singles], clock)
        through_another_machine(cluster, singles, clock)
        conflicts(cluster, singles, rng, seconds, clock)
        new_buckets(cluster, singles, clock)
        without_gateway(cluster, singles, clock)
        move_gateway(binary, cluster, singles, older, clock)
        region_removal.removed(singles[0], cluster, cluster.machines, BUCKET, clock)
        codes = [site.stop() for site in [*cluster.machines, *singles]]
        if any(codes):
            raise Failed(f"stops that were not clean: {codes}")
    except (Failed, AssertionError) as failure:
        logs = "\n".join(site.log_tail(15) for site in [cluster, *singles])
        raise Failed(f"{failure}\n{logs}") from failure
    finally:
        for site in [cluster, *singles]:
            site.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seconds", type=float, default=10, help="of conflicts")
    parser.add_argument("--singles", type=int, default=1, help="single nodes beside the cluster")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"regions of clusters: {arguments.seconds:.0f} s of conflicts, seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        try:
            test(arguments.binary, scratch, arguments.seconds, arguments.singles, arguments.seed)
        except Failed as failure:
            print(f"FAIL regions of clusters: {failure}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
