"""Conditional gets and puts; of racing conditional puts exactly one wins."""

import datetime
import threading

from botocore.exceptions import ClientError

from harness import Checks, content, fails

checks = Checks("conditions")

RACERS = 16


def race(count, call):
    """Calls `call(n)` from `count` threads at once: the numbers that succeeded, and the codes of the others."""
    start, won, lost = threading.Barrier(count), [], []

    def run(number):
        start.wait()
        try:
            call(number)
            won.append(number)
        except ClientError as error:
            lost.append(error.response["Error"]["Code"])
        except Exception as error:
            lost.append(repr(error))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) + len(lost) == count
    return won, lost


@checks
def gets_obey_etag_conditions(bench):
    bucket = bench.bucket()
    etag = bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    get = lambda **condition: bench.s3.get_object(Bucket=bucket, Key="k", **condition)
    assert get(IfMatch=etag)["Body"].read() == b"x"
    assert get(IfMatch="*")["Body"].read() == b"x"
    assert get(IfNoneMatch='"other"')["Body"].read() == b"x"
    with fails("PreconditionFailed", 412):
        get(IfMatch='"other"')
    with fails(("304", "NotModified"), 304):
        get(IfNoneMatch=etag)
    with fails(("304", "NotModified"), 304):
        bench.s3.head_object(Bucket=bucket, Key="k", IfNoneMatch=etag)
    with fails("412", 412):
        bench.s3.head_object(Bucket=bucket, Key="k", IfMatch='"other"')


@checks
def gets_obey_date_conditions(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    hour = datetime.timedelta(hours=1)
    now = datetime.datetime.now(datetime.timezone.utc)
    modified = bench.s3.head_object(Bucket=bucket, Key="k")["LastModified"]
    get = lambda **condition: bench.s3.get_object(Bucket=bucket, Key="k", **condition)
    get(IfModifiedSince=now - hour)
    get(IfUnmodifiedSince=now + hour)
    with fails(("304", "NotModified"), 304):
        get(IfModifiedSince=modified)
    with fails("PreconditionFailed", 412):
        get(IfUnmodifiedSince=now - hour)


@checks
def etag_conditions_rule_over_dates(bench):
    bucket = bench.bucket()
    etag = bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
    bench.s3.get_object(Bucket=bucket, Key="k", IfMatch=etag, IfUnmodifiedSince=past)
    with fails(("304", "NotModified"), 304):
        bench.s3.get_object(Bucket=bucket, Key="k", IfNoneMatch=etag, IfModifiedSince=past)


@checks
def a_304_carries_the_etag_and_no_body(bench):
    bucket, raw = bench.bucket(), bench.raw()
    etag = bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x", CacheControl="max-age=5")["ETag"]
    answer = raw.signed("GET", f"/{bucket}/k", headers={"if-none-match": etag})
    assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", etag), answer


@checks
def a_put_only_if_absent_succeeds_once(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"first", IfNoneMatch="*")
    with fails("PreconditionFailed", 412):
        bench.s3.put_object(Bucket=bucket, Key="k", Body=b"second", IfNoneMatch="*")
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"first"
    bench.s3.delete_object(Bucket=bucket, Key="k")
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"third", IfNoneMatch="*")


@checks
def a_put_only_if_same_compares_and_sets(bench):
    bucket = bench.bucket()
    first = bench.s3.put_object(Bucket=bucket, Key="k", Body=b"first")["ETag"]
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"second", IfMatch=first)
    with fails("PreconditionFailed", 412):
        bench.s3.put_object(Bucket=bucket, Key="k", Body=b"third", IfMatch=first)
    with fails("NoSuchKey", 404):
        bench.s3.put_object(Bucket=bucket, Key="none", Body=b"x", IfMatch=first)
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"second"


@checks
def of_racing_puts_if_absent_exactly_one_wins(bench):
    bucket = bench.bucket()
    for turn, size in enumerate([10, 1500, 5000, 100_000, 9_000_000, 10, 5000, 70_000]):
        bodies = [content((turn, n), size) for n in range(RACERS)]
        won, lost = race(
            RACERS,
            lambda n, turn=turn, bodies=bodies: bench.s3.put_object(
                Bucket=bucket, Key=f"k{turn}", Body=bodies[n], IfNoneMatch="*"),
        )
        assert len(won) == 1, f"{size} bytes: {won} won, others {lost}"
        assert set(lost) <= {"PreconditionFailed", "ConditionalRequestConflict"}, lost
        assert bench.s3.get_object(Bucket=bucket, Key=f"k{turn}")["Body"].read() == bodies[won[0]]


@checks
def of_racing_puts_if_same_exactly_one_wins_each_round(bench):
    bucket = bench.bucket()
    for size in (100, 20_000):
        etag = bench.s3.put_object(Bucket=bucket, Key="k", Body=b"start")["ETag"]
        for turn in range(6):
            bodies = [content((size, turn, n), size) for n in range(RACERS)]
            won, lost = race(
                RACERS,
                lambda n, etag=etag, bodies=bodies: bench.s3.put_object(
                    Bucket=bucket, Key="k", Body=bodies[n], IfMatch=etag),
            )
            assert len(won) == 1, f"{won} won, others {lost}"
            assert set(lost) <= {"PreconditionFailed", "ConditionalRequestConflict"}, lost
            got = bench.s3.get_object(Bucket=bucket, Key="k")
            assert got["Body"].read() == bodies[won[0]]
            etag = got["ETag"]


@checks
def a_counter_by_compare_and_set_loses_nothing(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="counter", Body=b"0")
    clients, each = 8, 5

    def count(_):
        for _ in range(each):
            while True:
                got = bench.s3.get_object(Bucket=bucket, Key="counter")
                value = int(got["Body"].read()) + 1
                try:
                    bench.s3.put_object(Bucket=bucket, Key="counter", Body=str(value).encode(), IfMatch=got["ETag"])
                    break
                except ClientError as error:
                    assert error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict")

    won, lost = race(clients, count)
    assert len(won) == clients, lost
    assert bench.s3.get_object(Bucket=bucket, Key="counter")["Body"].read() == str(clients * each).encode()


@checks
def of_racing_completions_if_absent_exactly_one_wins(bench):
    bucket, uploads = bench.bucket(), []
    for number in range(8):
        upload = bench.s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
        body = content(("part", number), 100_000)
        etag = bench.s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=body)["ETag"]
        uploads.append((upload, etag, body))

    def complete(number):
        upload, etag, _ = uploads[number]
        bench.s3.complete_multipart_upload(
            Bucket=bucket, Key="k", UploadId=upload, IfNoneMatch="*",
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]},
        )

    won, lost = race(8, complete)
    assert len(won) == 1, f"{won} won, others {lost}"
    assert set(lost) <= {"PreconditionFailed", "ConditionalRequestConflict"}, lost
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == uploads[won[0]][2]


@checks
def a_delete_only_if_same_compares_first(bench):
    bucket = bench.bucket()
    old = bench.s3.put_object(Bucket=bucket, Key="k", Body=b"old")["ETag"]
    new = bench.s3.put_object(Bucket=bucket, Key="k", Body=b"new")["ETag"]
    with fails("PreconditionFailed", 412):
        bench.s3.delete_object(Bucket=bucket, Key="k", IfMatch=old)
    bench.s3.delete_object(Bucket=bucket, Key="k", IfMatch=new)
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="k")


@checks
def a_refused_put_leaves_the_connection_usable(bench):
    bucket, one = bench.bucket(), bench.server.boto3(max_pool_connections=1)
    one.put_object(Bucket=bucket, Key="k", Body=b"x")
    for size in (10, 200_000, 6_000_000):
        with fails("PreconditionFailed", 412):
            one.put_object(Bucket=bucket, Key="k", Body=b"y" * size, IfNoneMatch="*")
        assert one.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
