"""Three sites of Larder, of MinIO with site replication, and of Garage with a zone for each site, through the same relays: 25 ms in each direction.

What is measured is the same for each system: how long a put takes, when another site lists it, how many bytes pass for it; how long a site
that was away takes until it has what was put meanwhile, over a link of 20 MiB a second; whether what was deleted while it was away comes
back; and whether all sites list the same after conflicts, while connections break. A table is printed. Only Larder's own figures can make
this fail.

MinIO and its client `mc` (Go: `go install github.com/minio/minio@latest`, `github.com/minio/mc@latest`) and Garage
(`cargo install garage`) are looked for in the directory that --peers names. A system that is not there is left out, which is said.

    python3 tests/clients/region_peers.py --peers DIR [--systems larder,minio,garage] [--binary PATH]
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import random
import secrets
import statistics
import subprocess
import sys
import time

from botocore.exceptions import BotoCoreError, ClientError
from harness import ACCESS, SECRET, Server, content, default_binary, scratch_folder
from regions import Region, Relay
from workload import Failed

BUCKET, MIB = "shared", 1024 * 1024
LINK_BYTES_PER_S, AWAY_OBJECTS, AWAY_BYTES = 20 * MIB, 400, 256 * 1024
PATIENCE_SECONDS = 300
SYSTEMS = ("larder", "minio", "garage")


class Process(Server):
    """A site of another system: a process with an S3 port."""

    def __init__(self, binary, directory, name):
        super().__init__(binary, directory)
        self.name, self.relay = name, Relay()
        self.directory.mkdir(parents=True)

    def wait_until_ready(self):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(ClientError, BotoCoreError):
                self.boto3(read_timeout=10).list_buckets()
                return
            time.sleep(0.1)
        raise Failed(f"{self.name} is not ready after {PATIENCE_SECONDS} s:\n{self.log_tail()}")


class Minio(Process):
    def __init__(self, binary, directory, name):
        super().__init__(binary, directory, name)
        # S3 and replication use one port.
        self.relay.target = self.port

    def command(self):
        return ["server", self.directory, "--address", f"127.0.0.1:{self.port}", "--console-address", f"127.0.0.1:{self.metrics_port}"]

    def flags(self):
        return []

    def environment(self):
        return {"MINIO_ROOT_USER": ACCESS, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_UPDATE": "off"}

    @staticmethod
    def form(sites, peers, scratch):
        for site in sites:
            site.start()
        mc = [peers / "mc", "--config-dir", scratch / "mc", "--quiet"]
        for site in sites:
            called([*mc, "alias", "set", site.name, f"http://127.0.0.1:{site.relay.port}", ACCESS, SECRET])
        called([*mc, "admin", "replicate", "add", *[site.name for site in sites]])
        sites[0].boto3().create_bucket(Bucket=BUCKET)


class Garage(Process):
    secret = secrets.token_hex(32)

    def command(self):
        config = self.directory.with_suffix(".toml")
        config.write_text(f"""metadata_dir = "{self.directory}/meta"
data_dir = "{self.directory}/data"
db_engine = "lmdb"
replication_factor = 3
metadata_fsync = true
data_fsync = true
rpc_secret = "{self.secret}"
rpc_bind_addr = "127.0.0.1:{self.relay.target}"
rpc_public_addr = "127.0.0.1:{self.relay.port}"
[s3_api]
s3_region = "us-east-1"
api_bind_addr = "127.0.0.1:{self.port}"
""")
        config.chmod(0o600)
        return ["-c", config, "server"]

    def flags(self):
        return []

    def ask(self, *words):
        return called([self.binary, "-c", self.directory.with_suffix(".toml"), *words])

    @staticmethod
    def form(sites, peers, scratch):
        for site in sites:
            site.spawn()
        ids = [insist(site, "node", "id", "-q").strip() for site in sites]
        for site, ident in zip(sites, ids):
            if site is not sites[0]:
                insist(sites[0], "node", "connect", ident)
            insist(sites[0], "layout", "assign", "-z", site.name, "-c", "100G", ident[:16])
        insist(sites[0], "layout", "apply", "--version", "1")
        insist(sites[0], "key", "import", "--yes", ACCESS, SECRET)
        insist(sites[0], "key", "allow", "--create-bucket", ACCESS)
        for site in sites:
            site.wait_until_ready()
        sites[0].boto3().create_bucket(Bucket=BUCKET)


class Larder(Region):
    @staticmethod
    def form(sites, peers, scratch):
        first = sites[0]
        for site in sites:
            site.start()
            site.stop()
        first.create()
        first.start()
        for site in sites[1:]:
            site.join(first)
            site.start()
        first.boto3().create_bucket(Bucket=BUCKET)


def called(words):
    done = subprocess.run(list(map(str, words)), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words[:6]))}…: {done.returncode}, {done.stdout}{done.stderr}")
    return done.stdout


def insist(site, *words):
    """Until it succeeds: what is asked needs a node that runs, or that has heard of the others."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return site.ask(*words)
        except Failed:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def listed(site, prefix=""):
    """Keys with entity tags; None if the site does not answer."""
    try:
        pages = site.boto3(connect_timeout=5, read_timeout=30).get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return {one["Key"]: one["ETag"] for page in pages for one in page.get("Contents", [])}
    except (ClientError, BotoCoreError):
        return None


def until(is_so, patience=PATIENCE_SECONDS):
    """Seconds until it is so; None if it is not within the time."""
    began = time.monotonic()
    while time.monotonic() < began + patience:
        if is_so():
            return time.monotonic() - began
        time.sleep(0.05)
    return None


def there(sites, prefix, count):
    return all(len(listed(site, prefix) or {}) == count for site in sites)


def puts(sites):
    """Seconds for a put of 1 KB, and from its answer until the next site lists it."""
    one, two = sites[0].boto3(), sites[1]
    took, lags = [], []
    for number in range(60):
        key, began = f"lag/{number}", time.monotonic()
        one.put_object(Bucket=BUCKET, Key=key, Body=content(key, 1000))
        took.append(time.monotonic() - began)
        lags.append(until(lambda: key in (listed(two, key) or {}), 30) or 30)
    lags.sort()
    return {"put of 1 KB, median": ms(statistics.median(took)), "listed at another site after, median": ms(statistics.median(lags)),
            "at the 99th percentile": ms(lags[int(0.99 * len(lags))])}


def passed(sites):
    """Bytes between sites for each byte of an object and other site."""
    size, count, s3 = 200_000, 60, sites[0].boto3()
    sent = lambda: sum(site.relay.bytes for site in sites)
    time.sleep(5)
    before = sent()
    for number in range(count):
        s3.put_object(Bucket=BUCKET, Key=f"large/{number}", Body=content(f"large/{number}", size))
    if until(lambda: there(sites, "large/", count)) is None:
        return {"bytes between sites for each byte and other site": f"not there after {PATIENCE_SECONDS} s"}
    time.sleep(5)
    return {"bytes between sites for each byte and other site": f"{(sent() - before) / (size * count * (len(sites) - 1)):.3f}"}


def away(sites):
    """A site is stopped while objects are put and others deleted."""
    one, _, three = sites
    # As a client with patience: some systems leave requests without an answer while they find out that a site is away.
    s3 = one.boto3(max_pool_connections=16, read_timeout=30, retries={"total_max_attempts": 10})
    for number in range(40):
        s3.put_object(Bucket=BUCKET, Key=f"kept/{number}", Body=b"kept")
    until(lambda: there(sites, "kept/", 40))
    three.stop()
    for number in range(0, 40, 2):
        s3.delete_object(Bucket=BUCKET, Key=f"kept/{number}")
    body = content("away", AWAY_BYTES)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        def put(number):
            began = time.monotonic()
            s3.put_object(Bucket=BUCKET, Key=f"away/{number}", Body=str(number).encode() + body)
            return time.monotonic() - began

        slowest = max(pool.map(put, range(AWAY_OBJECTS)))
    until(lambda: there(sites[:2], "away/", AWAY_OBJECTS))
    for site in sites:
        site.relay.limit = LINK_BYTES_PER_S
    three.start()
    took = until(lambda: there([three], "away/", AWAY_OBJECTS))
    for site in sites:
        site.relay.limit = None
    size = AWAY_OBJECTS * AWAY_BYTES
    row = f"the site that was away has {size / MIB:.0f} MiB after"
    found = len(listed(three, "away/") or {})
    caught_up = {"slowest put of 256 KiB while a site is away, with repetitions": f"{slowest:.1f} s"}
    caught_up |= {row: f"{took:.1f} s, {size / took / LINK_BYTES_PER_S:.0%} of the link" if took else
                 f"{found} of {AWAY_OBJECTS} objects after {PATIENCE_SECONDS} s"}
    took = until(lambda: there(sites, "kept/", 20))
    counts = [len(listed(site, "kept/") or {}) - 20 for site in sites]
    deleted = "at no site" if took is not None else f"{counts} of 20 at the three sites after {PATIENCE_SECONDS} s"
    return caught_up | {"what was deleted meanwhile is listed": deleted}


def conflicts(sites, seconds=30):
    """Puts and deletes of the same keys at all sites, while connections between sites break."""
    ends = time.monotonic() + seconds

    def write(site, seed):
        rng, s3, done = random.Random(seed), site.boto3(connect_timeout=2, read_timeout=20), 0
        while time.monotonic() < ends:
            with contextlib.suppress(ClientError, BotoCoreError):
                key = f"conflict/{rng.randrange(20)}"
                if rng.random() < 0.3:
                    s3.delete_object(Bucket=BUCKET, Key=key)
                else:
                    s3.put_object(Bucket=BUCKET, Key=key, Body=content(rng.random(), 3000))
                done += 1
        return done

    with concurrent.futures.ThreadPoolExecutor(2 * len(sites)) as pool:
        writing = [pool.submit(write, site, f"{site.name}/{number}") for site in sites for number in range(2)]
        rng = random.Random(1)
        while time.monotonic() < ends:
            relay = rng.choice(sites).relay
            relay.cut()
            time.sleep(0.5)
            relay.heal()
            time.sleep(1.5)
        count = sum(one.result() for one in writing)
    took = until(lambda: (first := listed(sites[0], "conflict/")) is not None and all(listed(site, "conflict/") == first for site in sites[1:]))
    found = [listed(site, "conflict/") or {} for site in sites]
    differ = [key for key in set().union(*found) if len({one.get(key) for one in found}) > 1]
    row = f"after conflicts of {seconds} s all sites list the same"
    return {row: f"{took:.1f} s later, {count} operations" if took is not None else
            f"no: {len(differ)} of 20 keys differ after {PATIENCE_SECONDS} s, {count} operations"}


def measure(kind, binary, peers, scratch, print_row):
    sites = [kind(binary, scratch / f"{kind.__name__}-{name}", name) for name in ("one", "two", "three")]
    rows = {}
    try:
        kind.form(sites, peers, scratch)
        if until(lambda: all(listed(site) is not None for site in sites), 60) is None:
            raise Failed("the bucket is not at all sites")
        for work in (puts, passed, away, conflicts):
            try:
                rows |= (told := work(sites))
            except (ClientError, BotoCoreError, Failed, AssertionError) as error:
                rows |= (told := {work.__doc__.split(":")[0].strip(): f"failed: {str(error)[:200]}"})
                for site in sites:
                    site.relay.limit = None
                    if site.process is None:
                        site.start()
            for row, value in told.items():
                print_row(f"{kind.__name__}: {row}: {value}")
    finally:
        for site in sites:
            site.kill()
    return rows


def ms(seconds):
    return f"{1000 * seconds:.0f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--peers", type=pathlib.Path, required=True, help="directory with minio, mc and garage")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    arguments = parser.parse_args()
    programs = {"larder": (Larder, arguments.binary), "minio": (Minio, arguments.peers / "minio"), "garage": (Garage, arguments.peers / "garage")}
    table, failed = {}, 0
    with scratch_folder(False) as scratch:
        for name in arguments.systems.split(","):
            kind, program = programs[name]
            needed = [program, arguments.peers / "mc"] if name == "minio" else [program]
            if missing := [one for one in needed if not os.access(one, os.X_OK)]:
                print(f"{name} is left out: no {missing[0]}")
                continue
            try:
                table[kind.__name__] = measure(kind, program, arguments.peers, scratch, lambda line: print(line, flush=True))
            except Failed as failure:
                print(f"{name} cannot be measured: {failure}")
                failed += name == "larder"
    rows = dict.fromkeys(row for of in table.values() for row in of)
    print(f"| | {' | '.join(table)} |\n|{'---|' * (len(table) + 1)}")
    for row in rows:
        print(f"| {row} | {' | '.join(of.get(row, '') for of in table.values())} |")
    wrong = [value for value in table.get("Larder", {}).values() if value.startswith(("failed", "no:", "not ")) or " of 20 at" in value or " objects after" in value]
    failed += bool(wrong)
    print(f"{1 - min(failed, 1)} passed, {min(failed, 1)} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
