"""A real Prometheus, with the files of `deploy/`, that scrapes real stores: three equal machines, two regions, a packed store.

Every metric that rules and dashboard name is documented and there, every expression is taken, both formats of metrics are scraped, and `promtool`
finds nothing wrong with them. No alert fires while all is well. Then machines are killed, a disk is damaged, a region and a backend go away, one
server ends again and again, and most managers are lost: the alerts of that fire, and those that should go again do.

    python3 tests/clients/monitoring.py [--binary PATH]
"""

import argparse
import concurrent.futures
import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

import yaml
from botocore.exceptions import BotoCoreError, ClientError
from harness import COMMAND_SECONDS, ROOT, PackServer, Server, content, default_binary, free_port, scratch_folder
from peers import Machine, equal_machines, ready, secret_file, until
from regions import Region
from workload import Clock, Failed

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "larder-alerts.yml"
TESTS = DEPLOY / "prometheus" / "larder-alerts-test.yml"
DASHBOARD = DEPLOY / "grafana" / "larder.json"
BUCKET = "watched"
ANSWER_SECONDS = 10
FIRES_SECONDS, GOES_SECONDS = 15, 30
OBJECTS, OBJECT_BYTES = 40, 100_000
# More than a twentieth of all.
REFUSED = 30
TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"
METRIC = re.compile(r"\b((?:larder|process)_[a-z0-9_]+)\b")
HISTOGRAM_ENDS = ("_bucket", "_sum", "_count")
# Named by a rule or a panel, and in no scrape here.
NOT_SCRAPED = {"larder_mount_lost_files_total": "a mount needs root and /dev/fuse; mount.py has one"}

# Fire at once without their `for:`, as they make a forecast of a day from what is seen in some seconds.
FORECASTS = {"LarderDiskFillsUp"}


class Lasting(Machine):
    """A machine whose certificates last as long as those of an operator who sets nothing."""

    def flags(self):
        peers = [word for peer in self.peers for word in ("--peer", peer)]
        config = self.directory.with_suffix(".toml")
        config.write_text("pg_count = 32\nvolume_mib = 64\nlog_segment_mib = 4\n")
        return [*Server.flags(self), *peers, "--me", self.name, "--secret-file", self.secret, "--config", config]


class Relay:
    """Passes scrapes on, with or without the formats that Prometheus would rather have; notes in which format they are answered."""

    def __init__(self, url, negotiates):
        relay, self.formats, self.port = self, set(), free_port()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                headers = {"Accept": self.headers["Accept"]} if negotiates else {}
                try:
                    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=ANSWER_SECONDS) as answer:
                        kind, body = answer.headers["Content-Type"], answer.read()
                except OSError:
                    self.send_error(502)
                    return
                relay.formats.add(kind.split(";")[0])
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Prometheus:
    """A process with the files of `deploy/prometheus`: other targets, a look each second, and no waiting before an alert fires."""

    def __init__(self, scratch, targets):
        self.folder, self.port, self.process = scratch / "prometheus", free_port(), None
        self.folder.mkdir()
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        for old, new in {"_interval: 15s": "_interval: 1s", **targets}.items():
            if old not in text:
                raise Failed(f"deploy/prometheus/prometheus.yml has no {old!r}")
            text = text.replace(old, new)
        (self.folder / "prometheus.yml").write_text(text)
        (self.folder / RULES.name).write_text(re.sub(r"( for:) \w+", r"\1 1s", RULES.read_text()))

    def start(self):
        line = ["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
                f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def ask(self, path, **words):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise Failed(f"Prometheus refuses {words or path}: {error.read().decode()}") from error

    def query(self, expression):
        return self.ask("query", query=expression)["result"]

    def is_up(self):
        if self.process.poll() is not None:
            raise Failed(f"prometheus ended with {self.process.returncode}:\n{(self.folder / 'log').read_text()[-2000:]}")
        with contextlib.suppress(OSError, Failed):
            return bool(self.query("up"))
        return False

    def firing(self):
        """The alerts that fire, as (name, cluster)."""
        return {(one["metric"]["alertname"], one["metric"].get("cluster")) for one in self.query('ALERTS{alertstate="firing"}')
                if one["metric"]["alertname"] not in FORECASTS}

    def wait_for(self, wanted, is_there=True):
        began, wanted = time.monotonic(), set(wanted)
        until(f"{sorted(wanted)} {'fire' if is_there else 'go'}", FIRES_SECONDS if is_there else GOES_SECONDS,
              lambda: wanted <= self.firing() if is_there else not wanted & self.firing(), [], lambda: f"{sorted(self.firing())} fire")
        return time.monotonic() - began


def promtool(*words, stdin=None):
    """Runs it; what it finds wrong is a failure."""
    done = subprocess.run(["promtool", *map(str, words)], input=stdin, capture_output=True, timeout=COMMAND_SECONDS, cwd=RULES.parent)
    said = (done.stdout + done.stderr).decode()
    if done.returncode:
        raise Failed(f"promtool {' '.join(map(str, words))} ended with {done.returncode}:\n{said[-3000:]}")
    return said


def expressions():
    """What the dashboard asks, with its variables replaced."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    for name, value in (("$cluster", ".*"), ("$instance", ".*"), ("$__rate_interval", "10s")):
        asked = [expression.replace(name, value) for expression in asked]
    return asked


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def documented():
    """The metrics of docs/metrics.md; of a histogram what Prometheus makes of it."""
    names = set()
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        of_line = re.findall(r"`((?:larder|process)_[a-z0-9_]+)(?:\{[^`]*\})?`", line)
        names.update(of_line)
        if "| histogram |" in line:
            names.update(name + end for name in of_line for end in HISTOGRAM_ENDS)
    return names


def named():
    """The metrics that rules and dashboard name."""
    return set(METRIC.findall(" ".join([rule["expr"] for rule in rules()] + expressions())))


def on_paper():
    """What can be checked without a process: names, pages, and that each alert has its test and its row."""
    promtool("check", "rules", RULES.name)
    promtool("test", "rules", TESTS.name)
    if unknown := named() - documented():
        raise Failed(f"rules or dashboard name what docs/metrics.md does not: {sorted(unknown)}")
    if idle := set(NOT_SCRAPED) - named():
        raise Failed(f"exceptions that nothing names: {sorted(idle)}")
    tests = yaml.safe_load(TESTS.read_text())["tests"]
    healthy = {METRIC.match(series["series"])[1] for series in tests[0]["input_series"] if series["series"].startswith(("larder", "process"))}
    if missing := {name for rule in rules() for name in METRIC.findall(rule["expr"])} - healthy:
        raise Failed(f"the healthy store of {TESTS.name} lacks {sorted(missing)}")
    fired = set(re.findall(r'alertname="(\w+)"', TESTS.read_text()))
    page = (ROOT / "docs" / "monitoring.md").read_text()
    for rule in rules():
        name, notes = rule["alert"], rule["annotations"]
        if name not in fired:
            raise Failed(f"{TESTS.name} never has {name} fire")
        if f"| `{name}` | {rule['labels']['severity']} |" not in page:
            raise Failed(f"docs/monitoring.md has no row for {name}, or another severity")
        if rule["labels"]["severity"] not in ("critical", "warning", "info") or not all(notes[part] for part in ("summary", "description", "page")):
            raise Failed(f"{name} lacks a severity or an annotation")
        path, _, place = notes["page"].partition("#")
        if place not in anchors(ROOT / path):
            raise Failed(f"{name} points to {notes['page']}, which is not there")


def anchors(path):
    """The headings of a page as links name them."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def promtool_reads(server):
    """What a process shows in the older format; the newer one is for Prometheus itself to read."""
    with urllib.request.urlopen(server.metrics_url(), timeout=ANSWER_SECONDS) as answer:
        text = answer.read()
    if said := promtool("check", "metrics", stdin=text).strip():
        raise Failed(f"promtool on the metrics of {server.directory.name}: {said}")


class Stores:
    """All that is watched: a cluster, two regions, and a packed store whose backend is the first region."""

    def __init__(self, binary, scratch):
        secret = secret_file(binary, scratch / "cluster.secret")
        self.machines = equal_machines(Lasting, binary, scratch, secret)
        self.eu, self.us = [Region(binary, scratch / name, name) for name in ("eu", "us")]
        options = ["--worker", "a", "--peer-listen", "127.0.0.1:0", "--poll-interval-s", "1", "--superseded-retention-s", "600"]
        self.pack = PackServer(binary, scratch / "pack", scratch / "packed", options, backend=self.eu)
        self.all = [*self.machines, self.eu, self.us, self.pack]

    def start(self):
        for machine in self.machines:
            machine.spawn()
        for region in (self.eu, self.us):
            region.start()
            region.stop()
        self.eu.create()
        self.eu.start()
        self.us.join(self.eu)
        self.us.start()
        self.eu.boto3().create_bucket(Bucket="blobs")
        self.pack.start()
        ready(self.machines)

    def use(self):
        """Some requests to each."""
        for server in (self.machines[0], self.eu, self.pack):
            s3 = server.boto3(retries=None)
            s3.create_bucket(Bucket=BUCKET)
            put(s3, "first")
            for number in range(5):
                s3.get_object(Bucket=BUCKET, Key=f"first/{number}")["Body"].read()
            for _ in range(3):
                with contextlib.suppress(s3.exceptions.NoSuchKey):
                    s3.get_object(Bucket=BUCKET, Key="absent")

    def kill(self):
        for server in self.all:
            server.kill()


def put(s3, name):
    for number in range(OBJECTS):
        s3.put_object(Bucket=BUCKET, Key=f"{name}/{number}", Body=content(f"{name}/{number}", OBJECT_BYTES))


def damage(server, key):
    """A byte of an object is another on the disk."""
    wanted = content(key, OBJECT_BYTES)
    with (server.directory / "data0").open("r+b") as file:
        at = place(file, wanted[:64])
        file.seek(at)
        file.write(bytes([wanted[0] ^ 1]))


def place(file, wanted):
    """Where a file with holes has these bytes, which do not cross from one piece into the next: blocks have whole pages."""
    at, size = 0, os.fstat(file.fileno()).st_size
    while at < size:
        start = os.lseek(file.fileno(), at, os.SEEK_DATA)
        at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        found = os.pread(file.fileno(), at - start, start).find(wanted)
        if found >= 0:
            return start + found
    raise Failed("an object that was put is not in the data file")


def refused(what):
    try:
        what()
    except (BotoCoreError, ClientError):
        return
    raise Failed("a request was answered that should have failed")


def all_is_well(prometheus, stores, relays, clock):
    """Every metric is there, in both formats; every panel has something to show; nothing fires."""
    wanted = named() - set(NOT_SCRAPED)

    def missing():
        return wanted - set(prometheus.ask("label/__name__/values"))
    until("all metrics are scraped", FIRES_SECONDS, lambda: not missing(), [], lambda: f"not in any scrape: {sorted(missing())}")
    if [relay.formats for relay in relays] != [{OPENMETRICS}, {TEXT}]:
        raise Failed(f"the formats that were negotiated are {[relay.formats for relay in relays]}")
    if down := [(target["scrapeUrl"], target["lastError"]) for target in prometheus.ask("targets")["activeTargets"] if target["health"] != "up"]:
        raise Failed(f"targets that Prometheus cannot read: {down}")
    for server in (stores.machines[0], stores.eu, stores.pack):
        promtool_reads(server)
    until("every panel shows something", FIRES_SECONDS, lambda: not empty(prometheus), [], lambda: f"nothing comes of {empty(prometheus)}")
    until("no alert fires", GOES_SECONDS, lambda: not prometheus.firing(), [], lambda: f"{sorted(prometheus.firing())} fire")
    clock.tell(f"{len(wanted)} metrics of {len(rules())} rules and {len(expressions())} panels' expressions are there, in both formats; no alert fires")


def empty(prometheus):
    """The expressions that come to nothing; those of failed requests should."""
    return [expression for expression in expressions() if 'status=~"5..' not in expression and not prometheus.query(expression)]


def faults(prometheus, stores, clock):
    first, second, third = stores.machines
    third.kill()
    stores.us.kill()
    put(first.boto3(retries=None), "second")
    damage(stores.eu, "first/7")
    s3 = stores.eu.boto3()
    refused(lambda: s3.get_object(Bucket=BUCKET, Key="first/7")["Body"].read())
    # What is counted for the first time does not grow: that a counter was not there before is no rate.
    until("an error is counted", FIRES_SECONDS, lambda: prometheus.query('larder_requests_total{status="500"}'), [])
    for _ in range(REFUSED):
        refused(lambda: s3.get_object(Bucket=BUCKET, Key="first/7")["Body"].read())
    wanted = [("LarderDown", "photos"), ("LarderGroupsDegraded", "photos"), ("LarderCopiesMissing", "photos"), ("LarderRegionUnreachable", "backups"),
              ("LarderLostReads", "backups"), ("LarderBadCopies", "backups"), ("LarderErrors", "backups")]
    took = prometheus.wait_for(wanted)
    clock.tell(f"a machine and a region killed, a disk damaged: {names(wanted)} fire after {took:.1f} s")
    second.kill()
    stores.eu.kill()
    stores.pack.boto3().put_object(Bucket=BUCKET, Key="waits", Body=content("waits", OBJECT_BYTES))
    wanted = [("LarderNoManagerLeads", "photos"), ("LarderNothingUp", "backups"),
              ("LarderPackUploadsFail", "packed")]
    took = prometheus.wait_for(wanted)
    clock.tell(f"most machines and all regions killed: {names(wanted)} fire after {took:.1f} s")
    for machine in (second, third):
        machine.spawn()
    for _ in range(4):
        stores.us.start()
        until("scraped", FIRES_SECONDS, lambda: seen(prometheus, stores.us), [])
        stores.us.kill()
    stores.us.start()
    stores.eu.start()
    prometheus.wait_for([("LarderRestarts", "backups")])
    ready(stores.machines)
    gone = [("LarderDown", "photos"), ("LarderNothingUp", "backups"), ("LarderNoManagerLeads", "photos"),
            ("LarderRegionUnreachable", "backups")]
    took = prometheus.wait_for(gone, is_there=False)
    clock.tell(f"a region that ends again and again is told; all are back: {names(gone)} are gone after {took:.1f} s")


def seen(prometheus, server):
    """Whether the process that runs now was scraped."""
    with urllib.request.urlopen(server.metrics_url(), timeout=ANSWER_SECONDS) as answer:
        started = float(re.search(r"^process_start_time_seconds (\S+)", answer.read().decode(), re.MULTILINE)[1])
    told = prometheus.query(f'process_start_time_seconds{{instance="127.0.0.1:{server.metrics_port}"}}')
    return bool(told) and abs(float(told[0]["value"][1]) - started) < 0.001


def names(alerts):
    return ", ".join(name for name, _ in alerts)


def test(binary, scratch):
    clock = Clock(every=0)
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            raise Failed(f"{program} is not installed: run tests/clients/install.sh")
    stores, prometheus, beside = Stores(binary, scratch), None, concurrent.futures.ThreadPoolExecutor(1)
    try:
        paper = beside.submit(on_paper)
        stores.start()
        relays = [Relay(stores.machines[0].metrics_url(), True), Relay(stores.machines[1].metrics_url(), False)]
        ports = [relays[0].port, relays[1].port, stores.machines[2].metrics_port]
        targets = {f"host{number}:9001": f"127.0.0.1:{port}" for number, port in enumerate(ports, 1)}
        targets["'node:9001'"] = f"'127.0.0.1:{stores.eu.metrics_port}', '127.0.0.1:{stores.us.metrics_port}'"
        targets["worker:9001"] = f"127.0.0.1:{stores.pack.metrics_port}"
        prometheus = Prometheus(scratch, targets).start()
        until("prometheus answers", ANSWER_SECONDS, prometheus.is_up, [])
        stores.use()
        paper.result()
        clock.tell("promtool takes the rules, and each of them fires in its test")
        all_is_well(prometheus, stores, relays, clock)
        faults(prometheus, stores, clock)
    finally:
        beside.shutdown()
        stores.kill()
        if prometheus:
            prometheus.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    with scratch_folder(arguments.keep) as scratch:
        try:
            test(arguments.binary, pathlib.Path(scratch))
        except (Failed, AssertionError, BotoCoreError, ClientError) as failure:
            print(f"FAIL monitoring: {failure}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
