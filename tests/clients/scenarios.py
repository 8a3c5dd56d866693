#!/usr/bin/env python3
"""Runs the black-box tests: names and times each, two at a time, and keeps the log of what failed.

A scenario is one script with its arguments, in a process group of its own and with a time limit. Those that measure
rates run alone, after the others. The last line is `N passed, N failed`, summed over all scenarios; one that ended
otherwise than its own last line says, or said nothing, counts as failed. A scenario that this machine cannot run is
named as left out.

Sets: `gate` runs with every change, in CI, in about nine minutes beside the build. By hand, `landing` runs all scripts before changes of roles,
protocol or pack land, in 25 minutes, and `soak` runs them at length.
"""

import argparse
import collections
import dataclasses
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "target" / "clients" / "bin" / "python"
LOGS = ROOT / "target" / "clients" / "logs"
LANES = 2
# Ports for servers, below those of /proc/sys/net/ipv4/ip_local_port_range and those that `larder dev-cluster` draws; each
# lane has a share of its own, so that a server that is down for a moment finds its port free again.
PORTS = 10_000, 20_000
LIMIT_SECONDS = {"gate": 15 * 60, "landing": 15 * 60, "soak": 6 * 3600}
TAIL_LINES = 40
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed$")


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One script and its arguments."""

    name: str
    line: str
    # Measures rates, or has limits of time that another scenario beside it would break.
    alone: bool = False
    # What the machine must have: `root`, `netns`, `fuse`, `systemd` (a Debian one that may run another in a box), `mc`
    # (MinIO's client).
    needs: tuple = ()
    # About how long it takes, in seconds: long ones begin first.
    seconds: int = 10


GATE = [
    Scenario("clients", "run.py", seconds=130),
    Scenario("pack", "pack.py --rounds 2", seconds=50),
    Scenario("crash", "crash.py --rounds 15", seconds=25),
    Scenario("corrupt", "corrupt.py", seconds=40),
    Scenario("large", "large.py --gib 1", seconds=30),
    Scenario("fill", "fill.py"),
    Scenario("cluster", "cluster.py --turns 2", seconds=50),
    Scenario("peers", "peers.py", seconds=85),
    Scenario("grow", "grow.py", seconds=35),
    Scenario("regions", "regions.py --seconds 6", seconds=130),
    Scenario("drill", "drill.py"),
    Scenario("keys", "keys.py", seconds=25),
    Scenario("recover", "recover.py", seconds=60),
    Scenario("powercut", "powercut.py --rounds 6", needs=("root",), seconds=20),
    Scenario("device", "device.py", needs=("root",), seconds=40),
    Scenario("partition", "partition.py --turns 2", needs=("root", "netns"), seconds=55),
    Scenario("mount", "mount.py", needs=("root", "fuse"), seconds=20),
    Scenario("packages", "packages.py", needs=("root", "netns", "systemd"), seconds=60),
]

# What of the gate is cut short here is whole.
LANDING = [
    *(scenario for scenario in GATE if scenario.name not in ("pack", "cluster", "partition")),
    Scenario("stale", "stale.py", seconds=35),
    Scenario("balancers", "balancers.py", seconds=35),
    Scenario("monitoring", "monitoring.py", seconds=40),
    Scenario("accesslog", "accesslog.py", seconds=25),
    Scenario("breakdown", "breakdown.py", seconds=15),
    Scenario("observed", "observed.py", seconds=50),
    Scenario("minioclient", "minioclient.py", needs=("mc",), seconds=30),
    Scenario("leaving", "leaving.py", seconds=20),
    Scenario("clients-of-pack", "run.py --pack", seconds=150),
    Scenario("pack", "pack.py --rounds 4", seconds=75),
    Scenario("workers", "workers.py", seconds=90),
    Scenario("throttled", "throttled.py --files 2000 --direct 300 --flush-seconds 5 --least 5 --slower 1.5", alone=True),
    Scenario("overload", "overload.py --least 0.5 --pairs 2", alone=True),
    Scenario("cluster", "cluster.py --turns 4", seconds=80),
    Scenario("rebuild", "rebuild.py", seconds=90),
    Scenario("rebalance", "rebalance.py", needs=("root",), seconds=50),
    Scenario("scrub", "scrub.py", seconds=70),
    Scenario("lostmeta", "lostmeta.py", seconds=130),
    Scenario("compact", "compact.py", seconds=85),
    Scenario("regions-of-clusters", "regions_of_clusters.py --seconds 6", seconds=95),
    Scenario("fulldisk", "fulldisk.py", needs=("root",), seconds=95),
    Scenario("fullcluster", "fullcluster.py", needs=("root",), seconds=80),
    Scenario("partition", "partition.py --turns 4", needs=("root", "netns"), seconds=85),
    # Each data server once: more volumes than there are, if each time took new ones.
    Scenario("slow-and-full", "partition.py --role data --kind pause --kind full", needs=("root", "netns"), seconds=120),
]

SOAK = [
    Scenario("clients", "run.py"),
    Scenario("clients-of-pack", "run.py --pack"),
    Scenario("clients-of-cluster", "run.py --nodes 3"),
    Scenario("crash", "crash.py --rounds 200"),
    Scenario("recover", "recover.py --turns 10"),
    Scenario("powercut", "powercut.py --rounds 40", needs=("root",)),
    Scenario("shutdown", "powercut.py --rounds 120 --kind shutdown", needs=("root",)),
    Scenario("pack", "pack.py --rounds 100"),
    Scenario("pack-by-prefix", "pack.py --rounds 50 --packing prefix --s3"),
    Scenario("workers", "workers.py --seconds 60"),
    Scenario("large", "large.py --gib 5"),
    Scenario("cluster", "cluster.py"),
    Scenario("cluster-pairs", "cluster.py --pairs"),
    Scenario("rebuild", "rebuild.py --objects 1000"),
    Scenario("grow", "grow.py --objects 1000"),
    # Builds the commit before this one as the earlier release.
    Scenario("upgrade", "upgrade.py"),
    Scenario("regions", "regions.py --seconds 600"),
    Scenario("regions-of-clusters", "regions_of_clusters.py --seconds 600 --singles 2"),
    Scenario("region-sites", "region_sites.py --seconds 600", needs=("root", "netns"), alone=True),
    Scenario("partition", "partition.py", needs=("root", "netns"), alone=True),
    Scenario("partition-pairs", "partition.py --pairs --turns 40", needs=("root", "netns"), alone=True),
    Scenario("overload", "overload.py", alone=True),
    Scenario("throttled", "throttled.py", alone=True),
]

SETS = {"gate": GATE, "landing": LANDING, "soak": SOAK}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a scenario ended."""

    scenario: Scenario
    seconds: float
    # Of processors, by the script and by all whose end it waited for.
    used_seconds: float
    passed: int
    failed: int
    why: str = ""


def can(need):
    """Whether this machine has what a scenario needs."""
    if need == "root":
        return os.geteuid() == 0 or succeeds(["sudo", "-n", "true"])
    if need == "netns":
        name = f"larder-scenarios-{os.getpid()}"
        return succeeds([*as_root(), "ip", "netns", "add", name]) and succeeds([*as_root(), "ip", "netns", "del", name])
    if need == "systemd":
        mounts = 'd=$(mktemp -d); mount -t tmpfs box "$d"; mkdir "$d/u" "$d/w" "$d/m"; '
        mounts += 'mount -t overlay overlay -o "lowerdir=/,upperdir=$d/u,workdir=$d/w" "$d/m"'
        box = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-ec", mounts]
        return all(map(os.path.exists, ("/lib/systemd/systemd", "/usr/bin/dpkg"))) and succeeds([*as_root(), *box])
    if need == "mc":
        # Midnight Commander has the same name.
        return succeeds(["mc", "admin", "prometheus", "--help"])
    assert need == "fuse", need
    return succeeds([*as_root(), "sh", "-c", ": <>/dev/fuse"])


def as_root():
    kept = ",".join(name for name in os.environ if name.startswith(("LARDER_TEST_", "CARGO_TARGET_DIR")))
    return [] if os.geteuid() == 0 else ["sudo", "-n", f"--preserve-env={kept}"]


def succeeds(line):
    try:
        return subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run(scenario, lane, lanes, limit_seconds):
    """One scenario, its output into its log."""
    log = LOGS / f"{scenario.name}.txt"
    first, end = PORTS
    share = (end - first) // lanes
    ports = f"{first + lane * share}-{first + (lane + 1) * share}"
    script, *arguments = scenario.line.split()
    line = [*(as_root() if "root" in scenario.needs else []), "env", f"LARDER_TEST_PORTS={ports}", str(PYTHON)]
    began = time.monotonic()
    why = ""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*line, str(ROOT / "tests" / "clients" / script), *arguments],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )
        # Those that are root's can only root kill.
        kill = [*(as_root() if "root" in scenario.needs else []), "kill", "-KILL", "--", f"-{process.pid}"]
        late = threading.Timer(limit_seconds, subprocess.run, (kill,))
        late.start()
        # Unlike `Popen.wait`, this tells what it used.
        _, status, usage = os.wait4(process.pid, 0)
        if late.finished.is_set():
            why = f"took longer than {limit_seconds} s"
        late.cancel()
        process.returncode = code = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    passed, failed = counts(log)
    if code != 0 and failed == 0:
        failed, why = 1, why or f"ended with {code}"
    elif passed + failed == 0:
        failed, why = 1, why or "says nothing of what passed"
    if failed == 0:
        log.unlink()
    return Outcome(scenario, seconds, usage.ru_utime + usage.ru_stime, passed, failed, why)


def counts(log):
    """What the last line of a log counts. A thread that ends with its process may leave an empty one behind it."""
    lines = [line for line in tail(log, TAIL_LINES) if line]
    found = SUMMARY.match(lines[-1]) if lines else None
    return (int(found[1]), int(found[2])) if found else (0, 0)


def tail(log, lines):
    with log.open(errors="replace") as text:
        return [line.rstrip("\n") for line in collections.deque(text, lines)]


def tell(outcome):
    scenario = outcome.scenario
    verdict = "FAILED" if outcome.failed else "ok"
    print(f"{verdict:6} {scenario.name:20} {outcome.seconds:6.1f} s  {outcome.used_seconds:6.1f} s of processors  {outcome.passed} passed, {outcome.failed} failed"
          f"  ({scenario.line})", flush=True)
    if outcome.failed:
        log = LOGS / f"{scenario.name}.txt"
        print(f"       {outcome.why or 'see the log'}; {log}, its last lines:")
        for line in tail(log, TAIL_LINES):
            print(f"       | {line}")
        sys.stdout.flush()


def run_all(scenarios, lanes, limit_seconds):
    """Those that share in lanes, longest first; then those that run alone."""
    outcomes, telling = [], threading.Lock()

    def lane_of(number, waiting, of):
        while True:
            try:
                scenario = waiting.get_nowait()
            except queue.Empty:
                return
            outcome = run(scenario, number, of, limit_seconds)
            with telling:
                outcomes.append(outcome)
                tell(outcome)

    shared, alone = queue.SimpleQueue(), queue.SimpleQueue()
    for scenario in sorted(scenarios, key=lambda one: -one.seconds):
        (alone if scenario.alone else shared).put(scenario)
    threads = [threading.Thread(target=lane_of, args=(number, shared, lanes)) for number in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lane_of(0, alone, 1)
    return outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these scenarios; all of the set if none is named")
    parser.add_argument("--set", choices=SETS, default="gate", help="(default: %(default)s)")
    parser.add_argument("--lanes", type=int, default=LANES, help="scenarios that run at once (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the set and do nothing")
    arguments = parser.parse_args()
    known = SETS[arguments.set]
    unknown = set(arguments.names) - {scenario.name for scenario in known}
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))} in the set {arguments.set}; --list prints its names")
    chosen = [scenario for scenario in known if not arguments.names or scenario.name in arguments.names]
    if arguments.list:
        for scenario in chosen:
            print(f"{scenario.name:20} {scenario.line}")
        return 0
    if not PYTHON.exists():
        parser.error("the clients are not installed: run tests/clients/install.sh")
    LOGS.mkdir(parents=True, exist_ok=True)
    lacking = {need for need in {need for scenario in chosen for need in scenario.needs} if not can(need)}
    able = [scenario for scenario in chosen if not lacking.intersection(scenario.needs)]
    outcomes = run_all(able, max(arguments.lanes, 1), LIMIT_SECONDS[arguments.set])
    for scenario in chosen:
        if scenario not in able:
            print(f"LEFT OUT {scenario.name}: this machine has no {', '.join(sorted(lacking.intersection(scenario.needs)))}")
    print(f"{sum(one.passed for one in outcomes)} passed, {sum(one.failed for one in outcomes)} failed")
    return 0 if outcomes and not any(one.failed for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
