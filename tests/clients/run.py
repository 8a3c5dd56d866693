"""Black-box tests with real S3 clients: boto3, raw requests, `aws`, rclone, s3cmd, restic.

Starts a server of its own on a port of its own and a directory of its own, runs every suite against it, stops it,
inspects the store and starts it once more. Nothing is skipped; a client that is not installed is a failure.

With --pack the server is `larder pack`, with blobs in a directory; the same is left out, and what such a store
does not do, which it must say. With --nodes the suites run against a cluster of processes, in turns through the proxies of two nodes. What is about a single
node's directory and process is left out then, and said. With --libraries the suites of command-line tools are left out, and said.

    python3 tests/clients/run.py [--binary PATH] [--nodes N | --pack] [--libraries] [--only TEXT] [--keep]
"""

import argparse
import sys

import suites
from devcluster import Cluster
from harness import VIRTUAL_HOST, Bench, Checks, PackServer, Server, default_binary, run_checks, scratch_folder

after = Checks("afterwards")


@after
def the_store_is_sound_and_serves_again(bench):
    assert bench.server.stop() == 0
    code, report = bench.server.inspect()
    assert code == 0, report
    bench.server.start()
    for bucket in bench.s3.list_buckets()["Buckets"][:50]:
        for entry in bench.s3.list_objects_v2(Bucket=bucket["Name"]).get("Contents", [])[:20]:
            got = bench.s3.get_object(Bucket=bucket["Name"], Key=entry["Key"])
            assert len(got["Body"].read()) == entry["Size"] and got["ETag"] == entry["ETag"]
    assert bench.server.stop() == 0


def run_on_cluster(arguments, scratch):
    """The suites, in turns through two proxies; (passed, failed)."""
    cluster = Cluster(arguments.binary, scratch / "cluster", arguments.nodes)
    try:
        cluster.start()
        cluster.stop()
        for config in cluster.directory.glob("node-*/proxy/role.toml"):
            with config.open("a") as file:
                file.write(f'domains = ["{VIRTUAL_HOST}"]\n')
        cluster.start()
        benches = [Bench(proxy, scratch, f"p{at}") for at, proxy in enumerate(cluster.proxies[:2])]
        left_out = suites.OF_ONE_NODE + (suites.OF_TOOLS if arguments.libraries else [])
        chosen = [suite for suite in suites.ALL if suite not in left_out]
        print(f"left out: {', '.join(suite.name for suite in left_out)}", flush=True)
        results = [run_checks([suite], benches[at % len(benches)], arguments.only) for at, suite in enumerate(chosen)]
        stopped = cluster.stop()
        assert stopped == 0, f"the cluster ended with {stopped}"
    except AssertionError as failure:
        print(f"FAIL cluster: {failure}\n{cluster.log_tail()}")
        return 0, 1
    finally:
        cluster.kill_all()
    return sum(passed for passed, _ in results), sum(failed for _, failed in results)


def run_on_server(arguments, scratch):
    """The suites, and what the store is like afterwards; (passed, failed)."""
    config = scratch / "larder.toml"
    config.write_text(f'domains = ["{VIRTUAL_HOST}"]\n')
    server = Server(arguments.binary, scratch / "store", ["--config", config])
    server.start()
    try:
        left_out = suites.OF_TOOLS if arguments.libraries else []
        if left_out:
            print(f"left out: {', '.join(suite.name for suite in left_out)}", flush=True)
        chosen = [suite for suite in suites.ALL if suite not in left_out]
        last = [] if arguments.only else [after]
        return run_checks([*chosen, *last], Bench(server, scratch), arguments.only)
    finally:
        server.kill()


def run_on_pack(arguments, scratch):
    """The suites against a packed store, in a directory's place; (passed, failed)."""
    config = scratch / "larder.toml"
    config.write_text(f'domains = ["{VIRTUAL_HOST}"]\n')
    server = PackServer(arguments.binary, scratch / "store", scratch / "backend", ["--config", config])
    server.start()
    left_out = suites.OF_ONE_NODE + suites.NOT_OF_PACK + (suites.OF_TOOLS if arguments.libraries else [])
    chosen = [suite for suite in suites.ALL if suite not in left_out] + suites.OF_PACK
    print(f"left out: {', '.join(suite.name for suite in left_out)}", flush=True)
    try:
        last = [] if arguments.only else [after]
        return run_checks([*chosen, *last], Bench(server, scratch), arguments.only)
    finally:
        server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary(), help="the larder program (default: %(default)s)")
    parser.add_argument("--nodes", type=int, help="against a cluster of so many nodes")
    parser.add_argument("--pack", action="store_true", help="against `larder pack` over a directory")
    parser.add_argument("--libraries", action="store_true", help="without the suites of command-line tools")
    parser.add_argument("--only", help="only checks whose `suite/name` contains this")
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    with scratch_folder(arguments.keep) as scratch:
        run = run_on_cluster if arguments.nodes else run_on_pack if arguments.pack else run_on_server
        passed, failed = run(arguments, scratch)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
