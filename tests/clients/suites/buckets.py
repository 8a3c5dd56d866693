"""Buckets: made, found, listed, removed when empty and only then."""

import threading

from botocore.exceptions import ClientError

from harness import Checks, fails

checks = Checks("buckets")

BUSY = ("OperationAborted", "SlowDown", "ServiceUnavailable")


@checks
def a_new_bucket_is_found_and_listed(bench):
    name = bench.bucket()
    bench.s3.head_bucket(Bucket=name)
    listed = bench.s3.list_buckets()
    assert name in [b["Name"] for b in listed["Buckets"]]
    assert listed["Owner"]["ID"]
    assert all(b["CreationDate"].tzinfo for b in listed["Buckets"])


@checks
def buckets_are_listed_by_name(bench):
    bench.bucket("z")
    bench.bucket("a")
    names = [b["Name"] for b in bench.s3.list_buckets()["Buckets"]]
    assert names == sorted(names)


@checks
def an_empty_bucket_is_removed(bench):
    name = bench.bucket()
    bench.s3.delete_bucket(Bucket=name)
    with fails("404", 404):
        bench.s3.head_bucket(Bucket=name)
    assert name not in [b["Name"] for b in bench.s3.list_buckets()["Buckets"]]


@checks
def a_removed_bucket_can_be_made_again_and_is_empty(bench):
    name = bench.bucket()
    bench.s3.put_object(Bucket=name, Key="old", Body=b"old")
    bench.s3.delete_object(Bucket=name, Key="old")
    bench.s3.delete_bucket(Bucket=name)
    bench.s3.create_bucket(Bucket=name)
    assert "Contents" not in bench.s3.list_objects_v2(Bucket=name)


@checks
def a_bucket_with_an_object_is_not_removed(bench):
    name = bench.bucket()
    bench.s3.put_object(Bucket=name, Key="k", Body=b"")
    with fails("BucketNotEmpty", 409):
        bench.s3.delete_bucket(Bucket=name)
    bench.s3.head_object(Bucket=name, Key="k")


@checks
def removing_a_bucket_never_loses_a_racing_put(bench):
    """Of a put and a removal at the same time at most one succeeds."""
    for round_number in range(20):
        name = bench.bucket("race")
        start, results = threading.Barrier(9), {}

        def put(number, name=name, start=start, results=results):
            start.wait()
            try:
                bench.s3.put_object(Bucket=name, Key=f"k{number}", Body=b"x")
                results[number] = True
            except ClientError as error:
                assert error.response["Error"]["Code"] in ("NoSuchBucket", *BUSY), error
                results[number] = False

        def remove(name=name, start=start, results=results):
            start.wait()
            try:
                bench.s3.delete_bucket(Bucket=name)
                results["removed"] = True
            except ClientError as error:
                assert error.response["Error"]["Code"] in ("BucketNotEmpty", *BUSY), error
                results["removed"] = False

        threads = [threading.Thread(target=put, args=(n,)) for n in range(8)] + [threading.Thread(target=remove)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 9, f"round {round_number}: a call failed otherwise: {results}"
        acknowledged = [n for n in range(8) if results[n]]
        if results["removed"]:
            assert not acknowledged, f"round {round_number}: removed, but {acknowledged} were acknowledged"
        for number in acknowledged:
            assert bench.s3.get_object(Bucket=name, Key=f"k{number}")["Body"].read() == b"x"


@checks
def making_a_bucket_twice_is_harmless(bench):
    name = bench.bucket()
    bench.s3.put_object(Bucket=name, Key="k", Body=b"kept")
    try:
        bench.s3.create_bucket(Bucket=name)
    except ClientError as error:
        assert error.response["Error"]["Code"] == "BucketAlreadyOwnedByYou", error
    assert bench.s3.get_object(Bucket=name, Key="k")["Body"].read() == b"kept"


@checks
def a_missing_bucket_is_named_in_the_error(bench):
    for call in (
        lambda: bench.s3.list_objects_v2(Bucket="no-such-bucket"),
        lambda: bench.s3.list_objects(Bucket="no-such-bucket"),
        lambda: bench.s3.put_object(Bucket="no-such-bucket", Key="k", Body=b""),
        lambda: bench.s3.get_object(Bucket="no-such-bucket", Key="k"),
        lambda: bench.s3.delete_object(Bucket="no-such-bucket", Key="k"),
        lambda: bench.s3.delete_bucket(Bucket="no-such-bucket"),
        lambda: bench.s3.list_multipart_uploads(Bucket="no-such-bucket"),
        lambda: bench.s3.create_multipart_upload(Bucket="no-such-bucket", Key="k"),
        lambda: bench.s3.get_bucket_location(Bucket="no-such-bucket"),
    ):
        with fails("NoSuchBucket", 404):
            call()


@checks
def bad_bucket_names_are_refused(bench):
    raw = bench.raw()
    for name in ("ab", "a" * 64, "Upper", "under_score", "-dash", "dash-", "dot..dot", "10.0.0.1"):
        answer = raw.signed("PUT", f"/{name}")
        assert (answer.status, answer.code) == (400, "InvalidBucketName"), f"{name}: {answer}"


@checks
def reserved_paths_are_no_buckets(bench):
    raw = bench.raw()
    for name in ("healthz", "readyz", "metrics"):
        answer = raw.signed("PUT", f"/{name}")
        assert answer.status in (400, 403, 405, 409), f"{name}: {answer}"
        assert name not in [b["Name"] for b in bench.s3.list_buckets()["Buckets"]]


@checks
def the_location_is_the_one_given(bench):
    name = bench.bucket()
    assert bench.s3.get_bucket_location(Bucket=name)["LocationConstraint"] in (None, "us-east-1")


@checks
def a_bucket_with_an_open_upload_is_removed_or_says_why(bench):
    name = bench.bucket()
    upload = bench.s3.create_multipart_upload(Bucket=name, Key="k")["UploadId"]
    try:
        bench.s3.delete_bucket(Bucket=name)
    except ClientError as error:
        assert error.response["Error"]["Code"] == "BucketNotEmpty", error
        bench.s3.abort_multipart_upload(Bucket=name, Key="k", UploadId=upload)
        bench.s3.delete_bucket(Bucket=name)


@checks
def many_buckets_are_listed_whole(bench):
    made = {bench.bucket("many") for _ in range(40)}
    assert made <= {b["Name"] for b in bench.s3.list_buckets()["Buckets"]}
    for name in made:
        bench.s3.delete_bucket(Bucket=name)
