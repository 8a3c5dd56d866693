"""Runs a public S3 conformance suite against a server of its own and writes docs/s3-compatibility.md.

The suite is a checkout of ceph/s3-tests; it is given by path and never part of this repository. Root's keys serve for
every identity the suite asks for.

    python3 tests/s3-tests/run.py --suite PATH [--expect 280] [--only EXPRESSION] [--binary PATH]
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "clients"))

from harness import ACCESS, ROOT, SECRET, Server, default_binary, scratch_folder  # noqa: E402
from sigv4 import Raw  # noqa: E402

TESTS = "s3tests/functional/test_s3.py"
REPORT = ROOT / "docs" / "s3-compatibility.md"
TEST_SECONDS = 60
RUN_SECONDS = 3 * 3600
IDENTITIES = ["s3 main", "s3 alt", "s3 tenant", "iam", "iam root", "iam alt root"]
UNSORTED = "Faults to be looked into"


def environment(suite):
    """A virtual environment with what the suite needs; its Python."""
    place = ROOT / "target" / "s3-tests"
    wanted = place / "installed.txt"
    requirements = [suite / "requirements.txt", HERE / "requirements.txt"]
    python = place / "bin" / "python"
    asked = "".join(path.read_text() for path in requirements)
    if not wanted.exists() or wanted.read_text() != asked:
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        files = [word for path in requirements for word in ("-r", path)]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *files], check=True)
        wanted.write_text(asked)
    return python


def owner(server):
    """Root's identity, as the server names it."""
    answer = Raw(server.port, ACCESS, SECRET).signed("GET", "/").body.decode()
    return [re.search(f"<{name}>(.*?)</{name}>", answer).group(1) for name in ("ID", "DisplayName")]


def configuration(server):
    user, name = owner(server)
    lines = [
        "[DEFAULT]", "host = 127.0.0.1", f"port = {server.port}", "is_secure = False", "ssl_verify = False",
        "[fixtures]", "bucket prefix = larder-{random}-", "iam name prefix = s3-tests-", "iam path prefix = /s3-tests/",
    ]
    for identity in IDENTITIES:
        lines += [
            f"[{identity}]", f"access_key = {ACCESS}", f"secret_key = {SECRET}", f"display_name = {name}",
            f"user_id = {user}", "email = root@example.com", "api_name =", "tenant =",
        ]
    return "\n".join(lines) + "\n"


def run_suite(python, suite, server, scratch, only):
    """Runs it; the results by test name: (outcome, first line of the failure)."""
    settings, results = scratch / "s3tests.conf", scratch / "results.xml"
    settings.write_text(configuration(server))
    line = [
        python, "-m", "pytest", TESTS, "-q", "-p", "no:cacheprovider", f"--junitxml={results}", "--tb=short", "--durations=20",
        f"--timeout={TEST_SECONDS}", "-o", "junit_family=xunit1", *(["-k", only] if only else []),
    ]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    clean |= {"S3TEST_CONF": str(settings), "PYTHONDONTWRITEBYTECODE": "1"}
    log = ROOT / "target" / "s3-tests" / "output.txt"
    with log.open("wb") as output:
        subprocess.run(
            line, cwd=suite, env=clean, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=RUN_SECONDS)
    print(f"what the suite printed: {log.relative_to(ROOT)}")
    return parse(results)


def parse(path):
    found = {}
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        outcome, why = "passed", ""
        for kind in ("failure", "error", "skipped"):
            element = case.find(kind)
            if element is not None and outcome == "passed":
                outcome = "skipped" if kind == "skipped" else "failed"
                why = (element.get("message") or element.text or "").strip().splitlines()[:1]
                why = why[0] if why else ""
        previous = found.get(case.get("name"))
        if previous is None or previous[0] == "passed":
            found[case.get("name")] = (outcome, why)
    return found


def sort_by_reason(results, reasons):
    """Titles with their tests, in the order of the table; what fits no rule comes last."""
    sorted_out = {reason["title"]: [] for reason in reasons} | {UNSORTED: []}
    for name, (outcome, why) in sorted(results.items()):
        if outcome == "passed":
            continue
        for reason in reasons:
            by_name = any(re.search(pattern, name) for pattern in reason.get("names", []))
            if by_name or any(re.search(pattern, why) for pattern in reason.get("messages", [])):
                sorted_out[reason["title"]].append((name, outcome, why))
                break
        else:
            sorted_out[UNSORTED].append((name, outcome, why))
    return {title: tests for title, tests in sorted_out.items() if tests}


def revision(suite):
    done = subprocess.run(
        ["git", "-C", suite, "log", "-1", "--format=%h of %cs"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else "of unknown revision"


def report(results, by_reason, suite_revision):
    total, count = len(results), collections.Counter(outcome for outcome, _ in results.values())
    lines = [
        "# S3 compatibility", "",
        "Generated by `python3 tests/s3-tests/run.py --suite PATH`; do not edit.", "",
        f"The public suite [ceph/s3-tests](https://github.com/ceph/s3-tests) ({suite_revision}), `{TESTS}`, with root's",
        "keys for every identity:", "",
        f"**{count['passed']} of {total} pass**, {count['failed']} fail, {count['skipped']} are skipped by the suite"
        " itself.", "",
        "Of what the suite does not look at, [appends.md](appends.md) says how objects are appended to, and [s3.md](s3.md) what Larder",
        "does where clients differ.", "",
        "| tests | why they do not pass |", "|---:|---|",
        *(f"| {len(tests)} | [{title}](#{anchor(title)}) |" for title, tests in by_reason.items()), "",
    ]
    for title, tests in by_reason.items():
        lines += [f"## {title}", ""]
        for name, outcome, why in tests:
            detail = f": {shorten(why)}" if title == UNSORTED and why else ""
            lines.append(f"- `{name}`{' (skipped)' if outcome == 'skipped' else ''}{detail}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def anchor(title):
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def shorten(why):
    why = re.sub(r"\s+", " ", re.sub(r"0x[0-9a-f]+|larder-[a-z0-9-]+|127\.0\.0\.1:\d+", "…", why))
    return "`" + why.replace("`", "'")[:160].rstrip() + "`"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=pathlib.Path, required=True, help="a checkout of the suite")
    parser.add_argument("--binary", default=default_binary(), help="the larder program (default: %(default)s)")
    parser.add_argument("--expect", type=int, default=0, help="fail if fewer pass")
    parser.add_argument("--only", help="a pytest -k expression; the report is not written then")
    arguments = parser.parse_args()
    suite = arguments.suite.resolve()
    if not (suite / TESTS).is_file():
        parser.error(f"{suite} has no {TESTS}")
    python = environment(suite)
    with scratch_folder() as scratch:
        server = Server(arguments.binary, scratch / "store")
        server.start()
        try:
            results = run_suite(python, suite, server, scratch, arguments.only)
        finally:
            server.kill()
    reasons = tomllib.loads((HERE / "reasons.toml").read_text())["reason"]
    by_reason = sort_by_reason(results, reasons)
    passed = sum(outcome == "passed" for outcome, _ in results.values())
    if arguments.only:
        for title, tests in by_reason.items():
            for name, outcome, why in tests:
                print(f"{outcome} {name} ({title}): {why[:300]}")
    else:
        REPORT.write_text(report(results, by_reason, revision(suite)))
    unsorted = len(by_reason.get(UNSORTED, []))
    print(f"{passed} of {len(results)} pass; {unsorted} of the others without a reason")
    return 0 if passed >= arguments.expect else 1


if __name__ == "__main__":
    sys.exit(main())
