"""The suites, in the order they run: cheap ones first."""

from . import appends, aws_cli, buckets, checksums, conditions, copies, cors, exact, lists, multipart, objects
from . import operations, probes, rclone, restic, s3cmd, signatures, unusual

ALL = [
    module.checks
    for module in (
        operations, buckets, objects, conditions, checksums, lists, copies, multipart, appends, signatures, unusual, exact,
        probes, cors, aws_cli, rclone, s3cmd, restic,
    )
]

# What a packed store does not do, and the checks that it says so.
NOT_OF_PACK = [appends.checks, cors.checks]
OF_PACK = [appends.refused, cors.refused]
# About the directory and the process of a single node.
OF_ONE_NODE = [operations.checks]
# Those that start a program for each request.
OF_TOOLS = [aws_cli.checks, rclone.checks, s3cmd.checks, restic.checks]
