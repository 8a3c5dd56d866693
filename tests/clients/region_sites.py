"""Five sites as regions of each other: three single nodes, and two clusters of three machines. Each site has a network of its own; between
them are relays that delay by 25 ms in each direction, let 20 MiB a second leave a site, and count what passes.

How long it takes until an object is at another site, how many bytes pass for it, and how much of the link a site uses that was away,
is measured. Then writers change the same keys everywhere, buckets are made and deleted, homes move, records are appended, objects are
uploaded in parts, large ones come in parts, and local buckets are shared. Meanwhile anything is killed with SIGKILL, connections between sites are broken, and
packets between them are dropped in silence, one way or both. Afterwards all sites show the same keys with the same contents, and each
key has a value that could be its last.

Network namespaces are needed: as root.

    python3 tests/clients/region_sites.py [--seconds 60] [--seed N] [--binary PATH]
"""

import argparse
import concurrent.futures
import random
import signal
import sys
import threading
import time

import region_homes
import region_large
import region_lists
import region_local
import region_uploads
from harness import Host, content, default_binary, scratch_folder
from netspace import Impossible, Network
from peers import ready, whole
from region_buckets import agreed, remakers
from regions import BUCKET, CONVERGED_SECONDS, KEYS, OVERHEAD_MAX, History, Region, Relay, check, converged, lag, write
from regions_of_clusters import Cluster, Writer
from workload import Clock, Failed

LINKS, CLIENTS = "links", "clients"
# Nine servers, their clients and the relays share two processors.
LAGS_MAX = 0.4, 3.0
MIB = 1024 * 1024
# Of each site's link, away from it.
LINK_BYTES_PER_S = 20 * MIB
LINK_SHARE_MIN = 0.9
AWAY_OBJECTS = 250


class Site(Host):
    """A network namespace with an address."""

    def __init__(self, network, name, number):
        self.network, self.name, self.address = network, name, f"10.77.{number}.1"
        network.host(name, self.address)

    def inside(self, line):
        return self.network.inside(self.name, line)

    def enter(self):
        self.network.enter(self.name)


class Sites:
    """All of them."""

    def __init__(self, binary, scratch):
        self.network = Network()
        self.links, clients = Site(self.network, LINKS, 200), Site(self.network, CLIENTS, 250)
        clients.enter()
        self.singles = [Region(binary, scratch / name, name, self.relay(name, number)) for number, name in enumerate(("one", "two", "three"), 1)]
        self.clusters = [Cluster(binary, scratch, name, self.relay(name, number)) for number, name in enumerate(("east", "west"), 4)]
        self.all = [*self.singles, *self.clusters]

    def relay(self, name, number):
        return Relay(Site(self.network, name, number), self.links, self.links.enter)

    def places_of(self, site):
        return site.machines if site in self.clusters else [site]

    def places(self):
        return [place for site in self.all for place in self.places_of(site)]

    def drop(self, site, rng):
        """Packets between a site and the links are dropped, one way or both; what ends that."""
        here, there = site.relay.host.address, self.links.address
        ways = rng.choice([[(here, there)], [(there, here)], [(here, there), (there, here)]])
        heals = [self.network.drop(*way) for way in ways]
        return lambda: [heal() for heal in heals]


def form(sites, clock):
    first = sites.clusters[0]
    for cluster in sites.clusters:
        cluster.spawn_all()
        whole(cluster.gateway, cluster.machines, 12)
    for single in sites.singles:
        single.start()
        single.stop()
    s3 = first.boto3()
    s3.create_bucket(Bucket=BUCKET)
    for number in range(20):
        s3.put_object(Bucket=BUCKET, Key=f"before/{number}", Body=content(number, 3000 * number))
    first.gateway.stop()
    first.create()
    first.spawn_all()
    for single in sites.singles:
        single.join(first)
        single.start()
    other = sites.clusters[1]
    other.gateway.stop()
    other.join(first)
    other.spawn_all()
    if len(found := converged(sites.all)) != 20:
        raise Failed(f"{len(found)} of 20 objects from before are at all sites")
    check(sites.all, found)
    clock.tell("five sites have what one had before")


def overhead(sites, clock):
    """How many bytes pass for an object and site."""
    size, count = 200_000, 50
    passed = lambda: sum(site.relay.bytes for site in sites.all)
    before = passed()
    for number in range(count):
        sites.all[number % 5].boto3().put_object(Bucket=BUCKET, Key=f"large/{number}", Body=content(f"large/{number}", size))
    converged(sites.all)
    share = (passed() - before) / (size * count * 4)
    if share > OVERHEAD_MAX:
        raise Failed(f"{share:.3f} bytes pass for each byte")
    clock.tell(f"{share:.3f} bytes pass for each byte of an object and site")


def limit(sites, bytes_per_s):
    for site in sites.all:
        site.relay.limit = bytes_per_s


def listed(s3, prefix, count):
    deadline = time.monotonic() + CONVERGED_SECONDS
    while s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["KeyCount"] < count:
        if time.monotonic() > deadline:
            raise Failed(f"fewer than {count} objects are listed below {prefix}")
        time.sleep(0.02)


def catch_up(sites, clock):
    """A site was away while another one took objects: how much of that one's link is used until it has them."""
    away, origin = sites.singles[2], sites.singles[0]
    away.stop()
    # The other three take all of it from one link, too; that is not what is measured.
    limit(sites, None)
    s3 = origin.boto3()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        put = lambda number: s3.put_object(Bucket=BUCKET, Key=f"away/{number}", Body=content(f"away/{number}", MIB))
        list(pool.map(put, range(AWAY_OBJECTS)))
    for site in sites.all:
        if site is not away:
            listed(site.boto3(), "away/", AWAY_OBJECTS)
    limit(sites, LINK_BYTES_PER_S)
    before = {site.name: site.relay.bytes for site in sites.all}
    away.start()
    began, there = time.monotonic(), away.boto3()
    listed(there, "away/", AWAY_OBJECTS)
    took = time.monotonic() - began
    of = {site.name: (site.relay.bytes - before[site.name]) / MIB for site in sites.all}
    share = AWAY_OBJECTS * MIB / took / LINK_BYTES_PER_S
    given = ", ".join(f"{name} {mib:.0f}" for name, mib in of.items())
    clock.tell(f"a site that was away has {AWAY_OBJECTS} MiB within {took:.1f} s, {share:.3f} of one site's link; MiB that left sites: {given}")
    if share < LINK_SHARE_MIN:
        raise Failed(f"{share:.3f} of the link is used")


def strike(sites, rng, struck):
    """One thing happens to one site."""
    kind = rng.choice(["kill", "kill", "break", "drop"])
    site = rng.choice(sites.all)
    struck[kind] = struck.get(kind, 0) + 1
    if kind == "kill" and site in sites.clusters:
        # One machine at a time: the others lead on.
        machine = rng.choice(site.machines)
        machine.kill()
        time.sleep(rng.uniform(0, 3.0))
        machine.spawn()
        ready(site.machines)
    elif kind == "kill":
        site.kill()
        time.sleep(rng.uniform(0, 3.0))
        site.start()
    elif kind == "break":
        site.relay.cut()
        time.sleep(rng.uniform(0.2, 1.0))
        site.relay.heal()
    else:
        heal = sites.drop(site, rng)
        time.sleep(rng.choice([1, 4, 15]) * rng.uniform(0.3, 1.0))
        heal()


def conflicts(sites, rng, seconds, clock):
    history, until, struck = History(), time.monotonic() + seconds, {}
    new_rng = lambda rng: random.Random(rng.random())
    writers = [threading.Thread(target=write, args=(Writer(place, f"{site.name}-{at}"), history, new_rng(rng), until))
               for site in sites.all for at, place in enumerate(sites.places_of(site))]
    for writer in writers:
        writer.start()
    makers = remakers(sites.places(), new_rng(rng), until)
    homes = region_homes.lockers(sites.all, sites.places(), rng, until, new_rng)
    uploaders = region_uploads.uploaders(sites.places(), rng, until, new_rng)
    large = region_large.putter(sites.places(), rng, until, new_rng)
    owners = region_local.owners(sites.all, sites.places_of, rng, until, new_rng)
    while time.monotonic() < until - 1:
        time.sleep(rng.uniform(0.5, 2.0))
        strike(sites, rng, struck)
    for writer in writers:
        writer.join()
    found = converged(sites.all)
    check(sites.all, found, history)
    operations = sum(one["ended"] is not None for ops in history.keys.values() for one in ops)
    clock.tell(f"{operations} operations on {len(KEYS)} keys, {struck}: the same at all sites")
    deleted, kept = agreed(makers, sites.places())
    clock.tell(f"{deleted} buckets deleted, {kept} kept as they had an object")
    region_uploads.held(uploaders, sites.places(), clock)
    region_large.held(large, sites.places(), clock)
    region_homes.held(homes, sites.all, sites.places(), clock)
    region_local.shared_by_all(owners, sites.places(), clock)


def test(binary, scratch, seconds, seed):
    rng, clock, sites = random.Random(seed), Clock(every=0), Sites(binary, scratch)
    one, two, _ = sites.singles
    east, west = sites.clusters
    try:
        form(sites, clock)
        limit(sites, LINK_BYTES_PER_S)
        lag(one, two, "single node to single node", 50, LAGS_MAX)
        lag(east, west, "cluster to cluster", 50, LAGS_MAX)
        lag(one, west, "single node to cluster", 50, LAGS_MAX)
        overhead(sites, clock)
        catch_up(sites, clock)
        region_lists.at_once(sites.places(), sites.places(), clock)
        region_homes.begin(sites.all, [*sites.singles, east.gateway, west.gateway], clock)
        region_large.begin(sites.all)
        conflicts(sites, rng, seconds, clock)
        codes = [place.stop() for place in sites.places()]
        if any(codes):
            raise Failed(f"stops that were not clean: {codes}")
        for single in sites.singles:
            code, report = single.inspect()
            if code != 0:
                raise Failed(f"inspect of {single.name} ended with {code}:\n{report[-3000:]}")
    except (Failed, AssertionError) as failure:
        logs = "\n".join(f"{site.name}:\n{site.log_tail(15)}" for site in sites.all)
        raise Failed(f"{failure}\n{logs}") from failure
    finally:
        for site in sites.all:
            site.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seconds", type=float, default=60, help="of conflicts")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"region sites: {arguments.seconds:.0f} s of conflicts, seed {arguments.seed}", flush=True)
    # Servers have sessions of their own: whoever ends this ends them, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with scratch_folder(arguments.keep) as scratch:
        try:
            test(arguments.binary, scratch, arguments.seconds, arguments.seed)
        except (Failed, Impossible) as failure:
            print(f"FAIL region sites: {failure}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
