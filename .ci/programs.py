#!/usr/bin/env python3
"""Runs the test programs that cargo has built, two at a time, as some wait for much of their time; tells what each took.

    .ci/programs.py ARTEFACTS tests|simulations [--sixth N]

ARTEFACTS is what `cargo build --all-targets --message-format=json` printed. `tests` are all but the simulations, so that a new
program is among them. The output of a program that fails is shown whole.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

LANES = 2
# Programs of simulations and models alone. Of all others those in modules `sim` are.
SIMULATIONS = ("planted", "models", "minimise", "regions", "seeds")
MODULES = "sim::"
# Those that take longest begin first.
LONG = ("larder_roles", *SIMULATIONS, "store", "pack", "pg", "larder_protocol", "commands", "members")
# Threads of each program. More tests than there are processors run beside each other: many wait for timeouts and for threads.
THREADS = {"tests": 6, "simulations": 2}
# Faults that a simulation has to find, and weaker readings that a model has to break.
OF_A_SIXTH = re.compile(r"(?!.*each_planted)(.*_found$|.*each_weaker|.*stricter)")
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Program:
    """One test program."""

    name: str
    is_unit: bool
    path: str
    package: pathlib.Path

    def line(self, part):
        """Its command; nothing if it has no tests of that part."""
        if self.is_unit:
            return [self.path, MODULES] if part == "simulations" else [self.path, "--skip", MODULES]
        return [self.path] if (self.name in SIMULATIONS) == (part == "simulations") else []

    def tests(self, part):
        line = self.line(part)
        listed = subprocess.run([*line, "--list"], cwd=self.package, capture_output=True, text=True, check=True).stdout if line else ""
        return [name.removesuffix(": test") for name in listed.splitlines() if name.endswith(": test")]


def programs(artefacts):
    found = {}
    for line in artefacts.read_text().splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        target = message["target"]
        if target["kind"][0] in ("lib", "bin", "test"):
            package = pathlib.Path(message["manifest_path"]).parent
            found[message["executable"]] = Program(target["name"], target["kind"][0] != "test", message["executable"], package)
    assert found, f"no test programs in {artefacts}"
    missing = set(LONG) - {program.name for program in found.values()}
    assert not missing, f"no such programs: {missing}"
    return sorted(found.values(), key=lambda one: (LONG.index(one.name) if one.name in LONG else len(LONG), one.name))


def run(program, line, threads):
    """Runs it; if it passed, how many tests, and its output."""
    began = time.monotonic()
    environment = {**os.environ, "CARGO_MANIFEST_DIR": str(program.package), "RUST_TEST_THREADS": str(threads)}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(line, cwd=program.package, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    result = RESULT.search(text)
    passed = process.returncode == 0 and result is not None
    took = f"{time.monotonic() - began:6.1f} s, of processors {usage.ru_utime + usage.ru_stime:6.1f} s"
    told = f"{result[1]} passed, {result[2]} failed" if result else f"ended with {process.returncode}"
    print(f"{'ok' if passed else 'FAILED':6} {program.package.name + ' ' + program.name:28} {took}  {told}", flush=True)
    if not passed:
        print(text, flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artefacts", type=pathlib.Path)
    parser.add_argument("part", choices=THREADS)
    parser.add_argument("--sixth", type=int, choices=range(6), help="of faults that are to be found, a sixth; all without")
    arguments = parser.parse_args()
    chosen = [program for program in programs(arguments.artefacts) if program.line(arguments.part)]
    tests = {program: program.tests(arguments.part) for program in chosen}
    skipped = []
    if arguments.sixth is not None:
        of_sixths = sorted({test for of_one in tests.values() for test in of_one if OF_A_SIXTH.match(test)})
        skipped = [test for at, test in enumerate(of_sixths) if at % 6 != arguments.sixth]
    chosen_tests = {test for of_one in tests.values() for test in of_one} - set(skipped)
    hidden = [test for test in chosen_tests if any(other in test for other in skipped)]
    assert not hidden, f"skipped, as their names have others' in them: {hidden}"
    skips = [word for test in skipped for word in ("--skip", test)]
    with concurrent.futures.ThreadPoolExecutor(LANES) as lanes:
        runs = [lanes.submit(run, program, [*program.line(arguments.part), *skips], THREADS[arguments.part])
                for program in chosen if set(tests[program]) - set(skipped)]
        passed = [of_one.result() for of_one in runs]
    if skipped:
        print(f"{len(skipped)} tests are of other sixths")
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
