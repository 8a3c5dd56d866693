"""Objects: put, get, head, delete, ranges, headers, metadata, tags, odd keys."""

import datetime
import threading

from harness import Checks, content, fails, md5
from sigv4 import quote

checks = Checks("objects")

KIB, MIB = 1024, 1024 * 1024
SIZES = [0, 1, 100, 2 * KIB - 1, 2 * KIB, 2 * KIB + 1, 4 * KIB, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 1 * MIB,
         4 * MIB, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 20 * MIB + 12_345]

ODD_KEYS = [
    "a/../b", "a/./b", "../up", "./here", "a//b", "/leading", "trailing/", "//", ".", "..", "...", " ", " both ends ",
    "a b", "a+b", "a%b", "a%20b", "a%2Fb", "100%", "q?x=1&y=2", "#fragment", "semi;colon", "co:lon", "at@", "eq=",
    "com,ma", "quo\"te", "apos'trophe", "back\\slash", "br[ack]et", "br{ac}e", "pi|pe", "ca^ret", "back`tick",
    "til~de", "dol$lar", "star*", "exclaim!", "amp&amp;", "<xml>", "]]>", "ümläut", "中文/键", "😀/🎉", "é", "e\u0301",
    "new\nline", "tab\tkey", "del\x7f", "\u00a0nbsp", "\uffff", "k" * 1024, "é" * 512, "x/" * 512,
]


@checks
def objects_of_every_size_come_back(bench):
    bucket = bench.bucket()
    for size in SIZES:
        data = content(("size", size), size)
        put = bench.s3.put_object(Bucket=bucket, Key=f"s{size}", Body=data)
        assert put["ETag"] == f'"{md5(data)}"', f"{size}: {put['ETag']}"
        got = bench.s3.get_object(Bucket=bucket, Key=f"s{size}")
        assert got["ContentLength"] == size and got["ETag"] == put["ETag"]
        assert got["Body"].read() == data, f"{size} bytes came back otherwise"
        head = bench.s3.head_object(Bucket=bucket, Key=f"s{size}")
        assert (head["ContentLength"], head["ETag"]) == (size, put["ETag"])


@checks
def an_overwrite_replaces_all_of_the_old(bench):
    bucket = bench.bucket()
    for size in (10 * MIB, 100, 70 * KIB, 0, 3 * KIB):
        data = content(("over", size), size)
        bench.s3.put_object(Bucket=bucket, Key="k", Body=data, Metadata={"size": str(size)})
        got = bench.s3.get_object(Bucket=bucket, Key="k")
        assert got["Body"].read() == data and got["Metadata"] == {"size": str(size)}


@checks
def a_deleted_object_is_gone(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x" * 5000)
    assert bench.s3.delete_object(Bucket=bucket, Key="k")["ResponseMetadata"]["HTTPStatusCode"] == 204
    with fails("NoSuchKey", 404):
        bench.s3.get_object(Bucket=bucket, Key="k")
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="k")
    bench.s3.delete_object(Bucket=bucket, Key="k")


@checks
def odd_keys_are_keys_like_others(bench):
    bucket = bench.bucket()
    for key in ODD_KEYS:
        bench.s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    for key in ODD_KEYS:
        assert bench.s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode(), repr(key)
    listed = [o["Key"] for page in bench.s3.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": 7}) for o in page.get("Contents", [])]
    assert listed == sorted(ODD_KEYS, key=lambda k: k.encode()), "not listed whole, or not in byte order"
    for key in ODD_KEYS:
        bench.s3.delete_object(Bucket=bucket, Key=key)
        with fails("NoSuchKey", 404):
            bench.s3.get_object(Bucket=bucket, Key=key)
    assert "Contents" not in bench.s3.list_objects_v2(Bucket=bucket)


@checks
def a_key_of_1025_bytes_is_refused(bench):
    bucket = bench.bucket()
    for key in ("k" * 1025, "é" * 513):
        with fails("KeyTooLongError", 400):
            bench.s3.put_object(Bucket=bucket, Key=key, Body=b"")


@checks
def ranges_are_cut_exactly(bench):
    bucket, size = bench.bucket(), 9 * MIB + 777
    data = content("ranges", size)
    bench.s3.put_object(Bucket=bucket, Key="k", Body=data)
    cuts = [(0, 0), (0, 99), (1, 1), (65_535, 65_536), (65_536, 131_071), (8 * MIB - 1, 8 * MIB), (size - 1, size - 1),
            (1_000_000, 8_900_000), (0, size - 1)]
    for first, last in cuts:
        got = bench.s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={first}-{last}")
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert got["ContentRange"] == f"bytes {first}-{last}/{size}", got["ContentRange"]
        assert got["Body"].read() == data[first : last + 1], (first, last)
    for given, expected in (
        (f"bytes={size - 10}-", data[-10:]), ("bytes=-7", data[-7:]), (f"bytes=5-{size + 100}", data[5:]),
        (f"bytes=-{size + 100}", data),
    ):
        assert bench.s3.get_object(Bucket=bucket, Key="k", Range=given)["Body"].read() == expected, given


@checks
def ranges_of_small_objects_are_cut_exactly(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    for given, expected in (("bytes=0-3", b"0123"), ("bytes=9-", b"9"), ("bytes=-3", b"789"), ("bytes=4-40", b"456789")):
        got = bench.s3.get_object(Bucket=bucket, Key="k", Range=given)
        assert got["Body"].read() == expected, given
    head = bench.s3.head_object(Bucket=bucket, Key="k", Range="bytes=2-4")
    assert (head["ContentLength"], head["ResponseMetadata"]["HTTPStatusCode"]) == (3, 206)


@checks
def a_range_outside_the_object_is_refused(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    bench.s3.put_object(Bucket=bucket, Key="empty", Body=b"")
    for key, given in (("k", "bytes=10-"), ("k", "bytes=10-20"), ("k", "bytes=-0"), ("empty", "bytes=0-")):
        with fails("InvalidRange", 416):
            bench.s3.get_object(Bucket=bucket, Key=key, Range=given)


@checks
def content_headers_come_back(bench):
    bucket = bench.bucket()
    expires = datetime.datetime(2031, 5, 6, 7, 8, 9, tzinfo=datetime.timezone.utc)
    sent = {
        "CacheControl": "max-age=60, public", "ContentDisposition": "attachment; filename=\"a b.txt\"",
        "ContentEncoding": "gzip", "ContentLanguage": "de-DE", "ContentType": "text/plain; charset=utf-8",
    }
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x", Expires=expires, **sent)
    for got in (bench.s3.head_object(Bucket=bucket, Key="k"), bench.s3.get_object(Bucket=bucket, Key="k")):
        assert {name: got.get(name) for name in sent} == sent
        assert got["ResponseMetadata"]["HTTPHeaders"]["expires"] == "Tue, 06 May 2031 07:08:09 GMT"
        assert got["AcceptRanges"] == "bytes"


@checks
def no_content_type_means_octets(bench):
    bucket, raw = bench.bucket(), bench.raw()
    assert raw.signed("PUT", f"/{bucket}/k", body=b"x").status == 200
    assert bench.s3.head_object(Bucket=bucket, Key="k")["ContentType"] == "binary/octet-stream"


@checks
def user_metadata_comes_back(bench):
    bucket = bench.bucket()
    metadata = {"one": "1", "with-dash": "a b  c", "empty": "", "long": "v" * 1500, "number_1": "x=y;z"}
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x", Metadata=metadata)
    got = bench.s3.head_object(Bucket=bucket, Key="k")["Metadata"]
    assert {**got, "with-dash": " ".join(got.get("with-dash", "").split())} == {**metadata, "with-dash": "a b c"}, got


@checks
def more_than_2_kib_of_user_metadata_is_refused(bench):
    bucket = bench.bucket()
    with fails("MetadataTooLarge", 400):
        bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x", Metadata={"big": "v" * 2100})
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="k")


@checks
def a_get_may_override_the_headers_it_is_given(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x", ContentType="text/plain")
    got = bench.s3.get_object(
        Bucket=bucket, Key="k", ResponseContentType="image/png", ResponseContentDisposition="inline",
        ResponseCacheControl="no-store", ResponseContentEncoding="br", ResponseContentLanguage="fr",
    )
    assert (got["ContentType"], got["ContentDisposition"], got["CacheControl"]) == ("image/png", "inline", "no-store")
    assert (got["ContentEncoding"], got["ContentLanguage"]) == ("br", "fr")


@checks
def tags_are_put_read_counted_and_removed(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="a=1&b=two%20words")
    read = lambda: sorted((t["Key"], t["Value"]) for t in bench.s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"])
    assert read() == [("a", "1"), ("b", "two words")]
    assert bench.s3.get_object(Bucket=bucket, Key="k")["TagCount"] == 2
    bench.s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": [{"Key": "ü", "Value": "ö +-=._:/@"}]})
    assert read() == [("ü", "ö +-=._:/@")]
    bench.s3.delete_object_tagging(Bucket=bucket, Key="k")
    assert read() == []
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
    with fails("NoSuchKey", 404):
        bench.s3.get_object_tagging(Bucket=bucket, Key="none")


@checks
def bad_tags_are_refused(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    tag = lambda key, value="v": {"Key": key, "Value": value}
    for tags in ([tag(f"k{n}") for n in range(11)], [tag("k" * 129)], [tag("k", "v" * 257)], [tag("a"), tag("a")], [tag("k", "&<>")]):
        with fails(("InvalidTag", "BadRequest"), 400):
            bench.s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": tags})
    assert bench.s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == []


@checks
def a_batch_delete_removes_all_and_names_each(bench):
    bucket = bench.bucket()
    keys = [f"k{n:04}" for n in range(50)] + ["a b&c<d>", "ü"]
    for key in keys:
        bench.s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    asked = [{"Key": key} for key in [*keys, "never-there"]]
    done = bench.s3.delete_objects(Bucket=bucket, Delete={"Objects": asked})
    assert sorted(d["Key"] for d in done["Deleted"]) == sorted([*keys, "never-there"]), done
    assert "Errors" not in done and "Contents" not in bench.s3.list_objects_v2(Bucket=bucket)


@checks
def a_quiet_batch_delete_names_only_errors(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    done = bench.s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k"}], "Quiet": True})
    assert "Deleted" not in done and "Errors" not in done
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="k")


@checks
def a_batch_delete_of_1000_works_and_of_1001_is_refused(bench):
    bucket = bench.bucket()
    objects = [{"Key": f"k{n}"} for n in range(1000)]
    assert len(bench.s3.delete_objects(Bucket=bucket, Delete={"Objects": objects})["Deleted"]) == 1000
    with fails("MalformedXML", 400):
        bench.s3.delete_objects(Bucket=bucket, Delete={"Objects": [*objects, {"Key": "one-more"}]})


@checks
def last_modified_is_now_and_the_same_everywhere(bench):
    bucket = bench.bucket()
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=2)
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    head = bench.s3.head_object(Bucket=bucket, Key="k")["LastModified"]
    assert before <= head <= datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2)
    assert bench.s3.get_object(Bucket=bucket, Key="k")["LastModified"] == head
    assert bench.s3.list_objects_v2(Bucket=bucket)["Contents"][0]["LastModified"].replace(microsecond=0) == head


@checks
def the_null_version_is_accepted_and_others_do_not_exist(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert bench.s3.get_object(Bucket=bucket, Key="k", VersionId="null")["Body"].read() == b"x"
    bench.s3.head_object(Bucket=bucket, Key="k", VersionId="null")
    with fails(("NoSuchVersion", "InvalidArgument")):
        bench.s3.get_object(Bucket=bucket, Key="k", VersionId="3HL4kqtJlcpXroDTDmJ.rmSpXd3dIbrHY")
    bench.s3.delete_object(Bucket=bucket, Key="k", VersionId="null")
    with fails("NoSuchKey", 404):
        bench.s3.get_object(Bucket=bucket, Key="k")


@checks
def a_get_during_overwrites_is_one_of_the_versions(bench):
    bucket, versions = bench.bucket(), [content(("v", n), 300 * KIB) for n in range(6)]
    bench.s3.put_object(Bucket=bucket, Key="k", Body=versions[0])
    stop, torn, reads = threading.Event(), [], []

    def write(first):
        for turn in range(25):
            bench.s3.put_object(Bucket=bucket, Key="k", Body=versions[(first + turn) % len(versions)])

    def read():
        while not stop.is_set():
            got = bench.s3.get_object(Bucket=bucket, Key="k")
            data = got["Body"].read()
            reads.append(1)
            if data not in versions or got["ETag"] != f'"{md5(data)}"':
                torn.append(got["ETag"])

    readers = [threading.Thread(target=read) for _ in range(4)]
    writers = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert reads and not torn, f"{len(torn)} of {len(reads)} reads were torn"


@checks
def what_a_put_answered_is_seen_at_once_by_all(bench):
    bucket, others = bench.bucket(), [bench.server.boto3() for _ in range(3)]
    for turn in range(60):
        key, data = f"k{turn % 7}", f"turn {turn}".encode() * (1 + turn * 40)
        bench.s3.put_object(Bucket=bucket, Key=key, Body=data)
        other = others[turn % 3]
        assert other.get_object(Bucket=bucket, Key=key)["Body"].read() == data
        assert {o["Key"]: o["Size"] for o in other.list_objects_v2(Bucket=bucket)["Contents"]}[key] == len(data)
        if turn % 5 == 4:
            bench.s3.delete_object(Bucket=bucket, Key=key)
            with fails("404", 404):
                other.head_object(Bucket=bucket, Key=key)
            assert key not in [o["Key"] for o in other.list_objects_v2(Bucket=bucket).get("Contents", [])]


@checks
def a_body_cut_short_puts_nothing(bench):
    import socket

    bucket, raw = bench.bucket(), bench.raw()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"old")
    for size in (100, 1_000_000, 20_000_000):
        headers = raw.signer().headers("PUT", f"/{bucket}/k", [], {"host": raw.host}, "UNSIGNED-PAYLOAD")
        lines = [f"PUT /{bucket}/k HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items()), f"content-length: {size}"]
        with socket.create_connection(("127.0.0.1", bench.server.port), timeout=20) as connection:
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + b"n" * (size // 2))
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"old"


@checks
def expect_100_continue_is_answered(bench):
    bucket, raw = bench.bucket(), bench.raw()
    answer = raw.signed("PUT", f"/{bucket}/k", headers={"expect": "100-continue"}, body=b"body")
    assert answer.status == 200, answer
    assert raw.signed("GET", f"/{bucket}/k").body == b"body"


@checks
def paths_are_taken_as_they_are_written(bench):
    """No dot segment is resolved and no slash merged, whatever the escaping."""
    bucket, raw = bench.bucket(), bench.raw()
    for key in ("a/../b", "./x", "a//b", "a/%2e/b"):
        path = f"/{bucket}/{quote(key, safe='/-_.~')}"
        assert raw.signed("PUT", path, body=key.encode()).status == 200, key
        assert raw.signed("GET", path).body == key.encode(), key
    listed = [o["Key"] for o in bench.s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert listed == sorted(["a/../b", "./x", "a//b", "a/%2e/b"]), listed


@checks
def every_answer_has_a_request_id_and_errors_are_xml(bench):
    bucket, raw = bench.bucket(), bench.raw()
    good = raw.signed("GET", f"/{bucket}")
    assert good.headers["x-amz-request-id"]
    answer = raw.signed("GET", f"/{bucket}/none%26%3Csuch%3E")
    assert answer.status == 404 and answer.code == "NoSuchKey", answer
    assert answer.headers["content-type"] == "application/xml", answer.headers
    assert b"<RequestId>" in answer.body or b"<RequestID>" in answer.body, answer.body
    assert answer.headers["x-amz-request-id"].encode() in answer.body, "the body names another request"
