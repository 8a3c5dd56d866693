"""The suites, in the order they run: cheap ones first."""

from . import aws_cli, buckets, checksums, conditions, copies, lists, multipart, objects, operations
from . import probes, rclone, restic, s3cmd, signatures

ALL = [
    module.checks
    for module in (
        operations, buckets, objects, conditions, checksums, lists, copies, multipart, signatures, probes,
        aws_cli, rclone, s3cmd, restic,
    )
]

# About the directory and the process of a single node.
OF_ONE_NODE = [operations.checks]
