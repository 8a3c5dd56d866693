"""Packing against a backend that limits requests: the paper's experiment, direct and packed in one run.

A `larder server` stands behind a relay that lets 100 requests a second through, each 20 ms late, and refuses the others
with 503 (slowbackend.py). 32 generators write files of 8 KiB:

- directly, with growing pauses when they are refused; fewer files, as the limit alone decides how fast that goes;
- packed, through `larder pack` before the same relay, and waits until everything is in the backend;
- into a `larder server` without any limit, for what packing costs by itself.

Every packed file is read back and compared. Then reads, cold and warm, in pairs: a direct GET of 8 KiB, and one of a packed
file. Shows a table, and the bill of `larder pack status`; with --docs DIR writes DIR/plots/packing.svg too.

The price of packing is that of what was asked while files were written, without the worker's first start. GETs are left out:
those of the comparison cannot be told from the one with which the worker checks each blob. The price must be 1/20,000 of that
of direct writing at most, with a tenth of the files 1/2,000. No blob may go up in parts.

    python3 tests/clients/throttled.py [--files 320000] [--direct 3000] [--least 60] [--docs docs]
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

from harness import ACCESS, SECRET, PackServer, Server, content, default_binary, scratch_folder

KIB, MIB = 1024, 1024 * 1024
FILE_BYTES = 8 * KIB
GENERATORS = 32
RATE, LATENCY_MS = 100, 20
FLUSH_SECONDS = 60
UPLOADED_WITHIN = 300
READS = 200
# Reads of numbers and records of processes that the store may make of itself meanwhile.
BESIDE = 5
APART = 9
SAMPLE_SECONDS = 0.5
# Files of the paper's experiment, and how many times as cheap packing them must be.
FILES, CHEAPER = 320_000, 20_000
# Requests that are not reads of what was packed.
WRITES = ("put", "part", "head", "list")
# A worker that has nothing to do asks whether it is still the owner less often.
SETTLED_SECONDS = 3
BUCKET = "files"


class Failed(Exception):
    """What was to be shown is not so."""


class ThrottledPack(PackServer):
    """A worker with its defaults but for the flush timeout, over a bucket behind the relay."""

    flush_seconds = FLUSH_SECONDS

    def command(self):
        url = f"s3://blobs/packed?endpoint={self.backend}"
        return ["pack", self.directory, "--backend", url, "--flush-ms", str(self.flush_seconds * 1000)]

    def status(self):
        done = subprocess.run(
            [self.binary, "pack", "status", "--json", self.directory], stdout=subprocess.PIPE, text=True, timeout=30
        )
        return json.loads(done.stdout)

    def bill(self):
        done = subprocess.run([self.binary, "pack", "status", self.directory], stdout=subprocess.PIPE, text=True, timeout=30)
        return done.stdout


@contextlib.contextmanager
def relay_before(server):
    """A relay that limits requests; its endpoint."""
    script = pathlib.Path(__file__).with_name("slowbackend.py")
    line = [sys.executable, script, "--upstream", f"127.0.0.1:{server.port}"]
    line += ["--rate", str(RATE), "--latency-ms", str(LATENCY_MS)]
    process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def counts(relay):
    with urllib.request.urlopen(f"{relay}/-/counts", timeout=30) as answer:
        return json.load(answer)


def client(server, endpoint, retries=1):
    """A boto3 client of a server, by way of another endpoint."""
    import copy

    other = copy.copy(server)
    other.endpoint = endpoint
    return other.boto3(retries={"total_max_attempts": retries, "mode": "standard"})


def write_directly(server, relay, files):
    """Files by 32 generators that wait longer each time they are refused: when each was done, in seconds."""
    from botocore.exceptions import ClientError

    done, lock, numbers = [], threading.Lock(), iter(range(files))
    s3 = client(server, relay)
    begun = time.monotonic()

    def generate(generator):
        rng = random.Random(generator)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            body, pause = content(number, FILE_BYTES), 0.05
            while True:
                try:
                    s3.put_object(Bucket=BUCKET, Key=f"direct/{number:07}", Body=body)
                    break
                except ClientError as error:
                    if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
                        raise
                    time.sleep(pause * rng.uniform(0.5, 1))
                    pause = min(2 * pause, 1.0)
            with lock:
                done.append(time.monotonic() - begun)

    threads = [threading.Thread(target=generate, args=(number,)) for number in range(GENERATORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) != files:
        raise Failed(f"{files - len(done)} files were not written directly")
    return sorted(done)


def replay(binary, endpoint, trace):
    """Makes a trace's requests with 32 connections and reads everything back: what `larder bench` says of it."""
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    line = [binary, "bench", "replay", trace, "--endpoint", endpoint, "--bucket", BUCKET, "--json"]
    line += ["--concurrency", str(GENERATORS), "--timeout", "60s", "--unsigned-payload"]
    done = subprocess.run(line, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"larder bench ended with {done.returncode}:\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


class Watch(threading.Thread):
    """How many bytes were packed, and uploaded, as time passes."""

    def __init__(self, pack):
        super().__init__(daemon=True)
        self.pack, self.samples, self.over = pack, [], threading.Event()
        self.begun = time.monotonic()

    def run(self):
        while not self.over.wait(SAMPLE_SECONDS):
            with contextlib.suppress(OSError, AssertionError):
                packed, waiting = (self.pack.metric(f"larder_pack_{name}") for name in ("bytes_total", "waiting_bytes"))
                self.samples.append((time.monotonic() - self.begun, packed, packed - waiting))

    def last(self):
        return self.samples[-1] if self.samples else (0, 0, 0)


def until_uploaded(pack):
    deadline = time.monotonic() + pack.flush_seconds + UPLOADED_WITHIN
    while pack.metric("larder_pack_waiting_blobs"):
        if time.monotonic() > deadline:
            raise Failed(f"blobs wait for longer than {UPLOADED_WITHIN} s:\n{pack.log_tail()}")
        time.sleep(0.2)


def asked(pack):
    """Requests so far, by kind."""
    return {name: int(pack.metric(f"larder_backend_{name}_requests_total")) for name in WRITES}


def until_settled(pack):
    """Waits until the worker's first start has asked what it asks."""
    deadline = time.monotonic() + UPLOADED_WITHIN
    before, since = asked(pack), time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        if time.monotonic() > deadline:
            raise Failed(f"a worker with nothing to do asks on and on:\n{pack.log_tail()}")
        time.sleep(0.2)
        if (now := asked(pack)) != before:
            before, since = now, time.monotonic()


def peak_mib(pack):
    """The most memory that the worker ever had."""
    status = pathlib.Path(f"/proc/{pack.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / KIB


def write_packed(binary, pack, trace, files):
    """Packs the files, waits until they are uploaded: how long that took, what it was like on the way, and the requests."""
    until_settled(pack)
    before = asked(pack)
    watch = Watch(pack)
    watch.start()
    report = replay(binary, pack.endpoint, trace)
    until_uploaded(pack)
    made = {name: number - before[name] for name, number in asked(pack).items()}
    time.sleep(2 * SAMPLE_SECONDS)
    watch.over.set()
    watch.join()
    if report["ops"] != files or report["checked"] != files:
        raise Failed(f"of {files} files {report['ops']} were packed and {report['checked']} compared")
    total = files * FILE_BYTES
    whole = next((at for at, packed, up in watch.samples if up >= total), watch.last()[0])
    return report["seconds"], whole, watch.samples, made


def pairs_of_reads(server, pack, relay, names, rng):
    """Milliseconds of reads of 8 KiB, taken in turn: direct, packed and cold, packed and warm; and requests for the last."""
    direct_s3, packed_s3 = client(server, relay, retries=10), pack.boto3()
    direct, cold, warm = [], [], []

    def timed(into, s3, key):
        begun = time.perf_counter()
        s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        into.append(1000 * (time.perf_counter() - begun))

    # Far enough from each other that nothing takes them for a sequence of keys, which is read ahead.
    wanted = rng.sample(names[::APART], READS + 1)
    for s3, key in ((direct_s3, "direct/0000000"), (packed_s3, wanted.pop())):
        timed([], s3, key)
    gets = [pack.metric("larder_backend_get_requests_total")]
    for number, key in enumerate(wanted):
        timed(direct, direct_s3, f"direct/{1 + number:07}")
        timed(cold, packed_s3, key)
    gets.append(pack.metric("larder_backend_get_requests_total"))
    for key in wanted:
        timed(warm, packed_s3, key)
    gets.append(pack.metric("larder_backend_get_requests_total"))
    return [statistics.median(some) for some in (direct, cold, warm)], gets[1] - gets[0], gets[2] - gets[1]


def plot(direct, packed, path):
    """Files over time, on a scale that has both."""
    import math

    width, height, left, bottom = 760, 400, 70, 50
    right, top = width - 20, 30
    until = max(packed[-1][0], direct[-1])
    most = max(packed[-1][1] / FILE_BYTES, len(direct))
    decades = math.ceil(math.log10(most))

    def at(seconds, files):
        x = left + (right - left) * seconds / until
        y = height - bottom - (height - bottom - top) * max(0.0, math.log10(max(files, 1))) / decades
        return f"{x:.1f},{y:.1f}"

    every = max(1, len(direct) // 300)
    lines = [
        ("direct", "#c0392b", [(seconds, number + 1) for number, seconds in enumerate(direct)][::every]),
        ("packed: acknowledged", "#2471a3", [(at_, done / FILE_BYTES) for at_, done, _ in packed]),
        ("packed: in the backend", "#1e8449", [(at_, up / FILE_BYTES) for at_, _, up in packed]),
    ]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">']
    out.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    title = f"Files of 8 KiB written over a backend of {RATE} requests a second"
    out.append(f'<text x="{left}" y="18" font-size="14">{title}</text>')
    for decade in range(decades + 1):
        x, y = at(0, 10**decade).split(",")
        out.append(f'<line x1="{x}" y1="{y}" x2="{right}" y2="{y}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 8}" y="{float(y) + 4}" text-anchor="end">{10**decade:,}</text>')
    for tick in range(5):
        seconds = until * tick / 4
        x, _ = at(seconds, 1).split(",")
        out.append(f'<text x="{x}" y="{height - bottom + 18}" text-anchor="middle">{seconds:.0f} s</text>')
    for number, (name, colour, points) in enumerate(lines):
        some = " ".join(at(*point) for point in points)
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{some}"/>')
        x = left + 10 + 190 * number
        out.append(f'<rect x="{x}" y="{height - 18}" width="12" height="4" fill="{colour}"/>')
        out.append(f'<text x="{x + 18}" y="{height - 12}">{name}</text>')
    out.append("</svg>\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(out))


def measure(arguments, scratch):
    binary, files, rng = arguments.binary, arguments.files, random.Random(arguments.seed)
    trace = scratch / "trace"
    trace.write_text("".join(f"0 PUT f{number:07} {FILE_BYTES}\n" for number in range(files)))
    server = Server(binary, scratch / "server").start()
    pack = None
    try:
        with relay_before(server) as relay:
            for bucket in (BUCKET, "blobs"):
                server.boto3().create_bucket(Bucket=bucket)
            direct = write_directly(server, relay, arguments.direct)
            direct_counts = counts(relay)
            pack = ThrottledPack(binary, scratch / "worker", scratch, backend=relay)
            pack.flush_seconds = arguments.flush_seconds
            pack.start()
            pack.boto3().create_bucket(Bucket=BUCKET)
            elapsed, whole, samples, made = write_packed(binary, pack, trace, files)
            status, bill, peak = pack.status(), pack.bill(), peak_mib(pack)
            # The cache knows what was compared: a new start does not.
            if pack.stop() != 0:
                raise Failed("the worker did not stop in good order")
            pack.start()
            names = [f"f{number:07}" for number in range(files)]
            reads = pairs_of_reads(server, pack, relay, names, rng)
            pack.stop()
            throttled = counts(relay)["refused"] - direct_counts["refused"]
        unlimited = Server(binary, scratch / "unlimited").start()
        try:
            plain = replay(binary, unlimited.endpoint, trace)["seconds"]
        finally:
            unlimited.kill()
    finally:
        if pack:
            pack.kill()
        server.kill()
    return direct, (elapsed, whole, samples, throttled, made, peak), status, bill, reads, plain


def price_of(made, status):
    """What requests cost."""
    prices = status["status"]["prices"]["per_thousand"]
    return sum(prices[name] * number / 1000 for name, number in made.items())


def judge(arguments, direct, packed, status, reads):
    """What does not hold of what was to be shown."""
    elapsed, whole, _, _, made, _ = packed
    speed = (arguments.files / elapsed) / (len(direct) / direct[-1])
    totals = status["status"]["totals"]
    uploads_max = max(1, totals["packed_bytes"] // (512 * MIB))
    (median_direct, median_cold, _), cold_gets, warm_gets = reads
    faults = []
    if speed < arguments.least:
        faults.append(f"packing is {speed:.1f} times as fast as direct writing, not {arguments.least}")
    cheaper = price_of({"put": arguments.files}, status) / price_of(made, status)
    if cheaper < CHEAPER * arguments.files / FILES:
        faults.append(f"packing {arguments.files:,} files costs 1/{cheaper:,.0f} of direct writing: {made}")
    if made["part"]:
        faults.append(f"blobs went up in {made['part']} parts")
    # Beside those that were full, the flush timeout closes one each time it has passed.
    if totals["blobs"] > uploads_max + 1 + elapsed // arguments.flush_seconds:
        faults.append(f"{totals['blobs']} uploads for {totals['packed_bytes'] / MIB:.0f} MiB packed")
    if not READS <= cold_gets <= READS + BESIDE or warm_gets > BESIDE:
        faults.append(f"{READS} cold reads asked the backend {cold_gets:.0f} times, warm ones {warm_gets:.0f} times")
    if median_cold > arguments.slower * median_direct:
        faults.append(f"a cold read takes {median_cold:.2f} ms at the median, a direct one {median_direct:.2f} ms")
    return speed, faults


def tell(arguments, direct, packed, status, bill, reads, plain, speed):
    elapsed, whole, _, throttled, made, peak = packed
    totals, prices = status["status"]["totals"], status["status"]["prices"]["per_thousand"]
    medians, cold_gets, warm_gets = reads
    requests = sum(totals["requests"].values())
    files, seconds = arguments.files, direct[-1]
    print("\n| | files | seconds | files/s | requests for 320,000 files | their price, USD |\n|---|---:|---:|---:|---:|---:|")
    print(f"| direct, 100 requests/s | {len(direct):,} | {seconds:.1f} | {len(direct) / seconds:,.0f} | 320,000 | {320 * prices['put']:.2f} |")
    writes, price = sum(made.values()), price_of(made, status)
    with_start = price_of({name: totals["requests"][name] for name in WRITES}, status)
    scale = 320_000 / files
    print(f"| packed, until acknowledged | {files:,} | {elapsed:.1f} | {files / elapsed:,.0f} | {writes * scale:,.0f} | {price * scale:.6f} |")
    print(f"| packed, until all is in the backend | {files:,} | {whole:.1f} | {files / whole:,.0f} | | |")
    print(f"| `larder server`, no limit | {files:,} | {plain:.1f} | {files / plain:,.0f} | | |")
    print(f"\npacked {speed:.1f} times as fast as direct; {totals['blobs']} blobs, {requests} requests, {throttled} refused for now")
    direct_price = price_of({"put": files}, status)
    print(f"writing cost 1/{direct_price / price:,.0f} of direct ({made}), with the first start 1/{direct_price / with_start:,.0f}")
    print(f"peak memory of the worker: {peak:.0f} MiB")
    print(f"reads of 8 KiB, medians: direct {medians[0]:.2f} ms, packed and cold {medians[1]:.2f} ms, warm {medians[2]:.2f} ms")
    print(f"{READS} reads each: {cold_gets:.0f} requests to the backend cold, {warm_gets:.0f} warm\n\n{bill}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--direct", type=int, default=3000, help="files that are written directly")
    parser.add_argument("--least", type=float, default=60, help="how many times as fast packing must be")
    parser.add_argument("--slower", type=float, default=1.1, help="how many times as long a cold read may take")
    parser.add_argument("--flush-seconds", type=int, default=FLUSH_SECONDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--docs", type=pathlib.Path, help="where plots/packing.svg goes")
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    with scratch_folder(arguments.keep) as scratch:
        try:
            direct, packed, status, bill, reads, plain = measure(arguments, scratch)
        except (Failed, AssertionError) as failure:
            print(f"FAIL throttled: {failure}\n0 passed, 1 failed")
            return 1
    speed, faults = judge(arguments, direct, packed, status, reads)
    tell(arguments, direct, packed, status, bill, reads, plain, speed)
    if arguments.docs:
        plot(direct, packed[2], arguments.docs / "plots" / "packing.svg")
    for fault in faults:
        print(f"FAIL throttled: {fault}")
    print(f"{0 if faults else 1} passed, {1 if faults else 0} failed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
