"""restic: a repository is made, filled, checked, restored, thinned out and pruned."""

from harness import ACCESS, SECRET, Checks, command, content

checks = Checks("restic")


def runner(bench, bucket):
    environment = {
        "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1",
        "RESTIC_REPOSITORY": f"s3:{bench.server.endpoint}/{bucket}/repo", "RESTIC_PASSWORD": "larder",
        "RESTIC_CACHE_DIR": str(bench.folder()),
    }
    return lambda *line: command(["restic", *line], environment)


def files(top):
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


@checks
def a_backup_is_restored_after_pruning(bench):
    restic, source, target = runner(bench, bench.bucket("restic")), bench.folder(), bench.folder()
    for number in range(60):
        (source / f"f{number}").write_bytes(content(("restic", number), 2000 * number))
    (source / "large").write_bytes(content("restic-large", 30_000_000))
    restic("init")
    restic("backup", str(source))
    (source / "large").write_bytes(content("restic-changed", 20_000_000))
    (source / "f3").unlink()
    restic("backup", str(source))
    restic("check", "--read-data")
    assert "2 snapshots" in restic("snapshots")
    restic("forget", "--keep-last", "1", "--prune")
    restic("check", "--read-data")
    restic("restore", "latest", "--target", str(target))
    assert files(target / source.relative_to("/")) == files(source)
