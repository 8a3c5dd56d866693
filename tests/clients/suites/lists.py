"""Lists: byte order, prefixes, delimiters, pages, encodings; checked against a model written out here."""

import itertools
import urllib.parse

from harness import Checks, fails

checks = Checks("lists")

TREE = [
    "a", "a/", "a/b", "a/b/c", "a/b/d", "a/c", "a-b", "a.b", "aa", "b", "b/1", "b/10", "b/2", "b//x", "c d/e f", "c+d",
    "c%2Fd", "photos/2024/a.jpg", "photos/2024/b.jpg", "photos/2025/a.jpg", "photos/index", "photos2", "ü/ö", "ü/ä",
    "z::1::a", "z::1::b", "z::2", "Z", "0", "~", "\u00ff", "中/文", "😀",
]


def model(keys, prefix="", delimiter="", after=""):
    """What a whole list must be: (keys, groups), both in byte order."""
    found, groups = [], []
    for key in sorted(keys, key=lambda k: k.encode()):
        if not key.startswith(prefix) or key.encode() <= after.encode():
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            found.append(key)
            continue
        group = key[: cut + len(delimiter)]
        if group not in groups and group != after:
            groups.append(group)
    return found, groups


def filled(bench, keys=TREE):
    bucket = bench.bucket()
    for key in keys:
        bench.s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    return bucket


def pages_v2(bench, bucket, **asked):
    found, groups, token = [], [], {}
    for page_number in itertools.count():
        assert page_number < 500, "the list does not end"
        page = bench.s3.list_objects_v2(Bucket=bucket, **asked, **token)
        keys = [o["Key"] for o in page.get("Contents", [])]
        prefixes = [p["Prefix"] for p in page.get("CommonPrefixes", [])]
        assert page["KeyCount"] == len(keys) + len(prefixes), page["KeyCount"]
        assert len(keys) + len(prefixes) <= asked.get("MaxKeys", 1000)
        found, groups = found + keys, groups + prefixes
        if not page["IsTruncated"]:
            assert "NextContinuationToken" not in page
            return found, groups
        assert keys or prefixes, "a truncated page without an entry"
        token = {"ContinuationToken": page["NextContinuationToken"]}


def pages_v1(bench, bucket, **asked):
    found, groups, marker = [], [], {}
    for page_number in itertools.count():
        assert page_number < 500, "the list does not end"
        page = bench.s3.list_objects(Bucket=bucket, **asked, **marker)
        keys = [o["Key"] for o in page.get("Contents", [])]
        prefixes = [p["Prefix"] for p in page.get("CommonPrefixes", [])]
        found, groups = found + keys, groups + prefixes
        if not page["IsTruncated"]:
            return found, groups
        assert keys or prefixes, "a truncated page without an entry"
        last = max([*keys, *prefixes], key=lambda k: k.encode())
        assert page.get("NextMarker", last) == last
        marker = {"Marker": last}


@checks
def every_prefix_and_delimiter_lists_as_the_model_does(bench):
    bucket = filled(bench)
    for prefix in ("", "a", "a/", "a/b", "a/b/", "b/1", "b//", "photos/", "photos/2024", "ü/", "z", "z::", "none", "😀"):
        for delimiter in ("", "/", "::", "/b", "b", "2024/", "ö", "中/"):
            expected = model(TREE, prefix, delimiter)
            for size in (1, 2, 5, 1000):
                asked = {"Prefix": prefix, "Delimiter": delimiter, "MaxKeys": size}
                got = pages_v2(bench, bucket, **asked)
                assert got == expected, f"v2 {asked}: {got} instead of {expected}"
            got = pages_v1(bench, bucket, Prefix=prefix, Delimiter=delimiter, MaxKeys=3)
            assert got == expected, f"v1 {prefix!r} {delimiter!r}: {got} instead of {expected}"


@checks
def a_list_may_start_after_any_text(bench):
    bucket = filled(bench)
    for after in ("", "a", "a/b", "a/bb", "b/", "b/zzz", "photos/2024/", "photos/2024/b.jpg", "zz", "nothing-here", "😀"):
        for delimiter in ("", "/"):
            expected = model(TREE, "", delimiter, after)
            asked = {"StartAfter": after, "Delimiter": delimiter}
            got = pages_v2(bench, bucket, **asked)
            assert got == expected, f"v2 after {after!r} {delimiter!r}: {got} instead of {expected}"
            got = pages_v1(bench, bucket, Marker=after, Delimiter=delimiter)
            assert got == expected, f"v1 after {after!r} {delimiter!r}: {got} instead of {expected}"


@checks
def more_than_a_page_of_keys_is_listed_once_each(bench):
    bucket = bench.bucket()
    keys = [f"d{n % 3}/k{n:05}" for n in range(1203)]
    for key in keys:
        bench.s3.put_object(Bucket=bucket, Key=key, Body=b"")
    page = bench.s3.list_objects_v2(Bucket=bucket)
    assert (page["KeyCount"], page["MaxKeys"], page["IsTruncated"]) == (1000, 1000, True)
    assert bench.s3.list_objects_v2(Bucket=bucket, MaxKeys=5000)["KeyCount"] == 1000
    assert pages_v2(bench, bucket) == (sorted(keys), [])
    assert pages_v2(bench, bucket, Delimiter="/") == ([], ["d0/", "d1/", "d2/"])


@checks
def entries_name_size_etag_and_class(bench):
    bucket = bench.bucket()
    put = bench.s3.put_object(Bucket=bucket, Key="k", Body=b"12345")
    entry = bench.s3.list_objects_v2(Bucket=bucket, FetchOwner=True)["Contents"][0]
    assert (entry["Key"], entry["Size"], entry["ETag"]) == ("k", 5, put["ETag"])
    assert entry["StorageClass"] == "STANDARD" and entry["Owner"]["ID"]
    assert "Owner" not in bench.s3.list_objects_v2(Bucket=bucket)["Contents"][0]
    assert bench.s3.list_objects(Bucket=bucket)["Contents"][0]["Owner"]["ID"]


@checks
def no_entry_is_asked_for_none_is_given(bench):
    bucket = filled(bench, ["a", "b"])
    page = bench.s3.list_objects_v2(Bucket=bucket, MaxKeys=0)
    assert (page["KeyCount"], page["IsTruncated"], page.get("Contents")) == (0, False, None)
    page = bench.s3.list_objects(Bucket=bucket, MaxKeys=0)
    assert (page["IsTruncated"], page.get("Contents")) == (False, None)


@checks
def nonsense_in_a_list_request_is_refused(bench):
    bucket, raw = filled(bench, ["a"]), bench.raw()
    for query in (
        [("max-keys", "-1")], [("max-keys", "many")], [("list-type", "2"), ("max-keys", "-1")],
        [("encoding-type", "latin-1")],
    ):
        answer = raw.signed("GET", f"/{bucket}", query=query)
        assert (answer.status, answer.code) == (400, "InvalidArgument"), f"{query}: {answer}"


@checks
def keys_are_escaped_when_asked_for(bench):
    bucket, raw = filled(bench, ["a b+c&d", "ü/ö", "x<y>"]), bench.raw()
    for version in ([], [("list-type", "2")]):
        answer = raw.signed("GET", f"/{bucket}", query=[*version, ("encoding-type", "url"), ("delimiter", "/")])
        body = answer.body.decode()
        assert "<EncodingType>url</EncodingType>" in body, body
        keys = [urllib.parse.unquote_plus(part.split("</Key>")[0]) for part in body.split("<Key>")[1:]]
        assert keys == ["a b+c&d", "x<y>"], keys
        assert "<Key>a b" not in body and "%C3%BC/" in body, body
        plain = raw.signed("GET", f"/{bucket}", query=version).body.decode()
        assert "<Key>x&lt;y&gt;</Key>" in plain and "EncodingType" not in plain, plain


@checks
def what_was_asked_is_repeated_in_the_answer(bench):
    bucket = filled(bench, ["p/a", "p/b", "p/c"])
    page = bench.s3.list_objects_v2(Bucket=bucket, Prefix="p/", Delimiter="/", StartAfter="p/a", MaxKeys=1)
    assert (page["Name"], page["Prefix"], page["Delimiter"], page["StartAfter"]) == (bucket, "p/", "/", "p/a")
    assert page["MaxKeys"] == 1 and page["IsTruncated"] and page["Contents"][0]["Key"] == "p/b"
    page = bench.s3.list_objects(Bucket=bucket, Prefix="p/", Marker="p/a", MaxKeys=1)
    assert (page["Marker"], page["IsTruncated"]) == ("p/a", True)


@checks
def a_list_goes_on_though_its_last_key_is_deleted(bench):
    bucket = filled(bench, [f"k{n}" for n in range(6)])
    page = bench.s3.list_objects_v2(Bucket=bucket, MaxKeys=2)
    bench.s3.delete_object(Bucket=bucket, Key="k1")
    bench.s3.delete_object(Bucket=bucket, Key="k2")
    rest = bench.s3.list_objects_v2(Bucket=bucket, ContinuationToken=page["NextContinuationToken"])
    assert [o["Key"] for o in rest["Contents"]] == ["k3", "k4", "k5"]


@checks
def versions_of_an_unversioned_bucket_are_null(bench):
    bucket = filled(bench)
    seen, marker = [], {}
    while True:
        page = bench.s3.list_object_versions(Bucket=bucket, MaxKeys=4, **marker)
        for version in page.get("Versions", []):
            assert (version["VersionId"], version["IsLatest"]) == ("null", True), version
            seen.append(version["Key"])
        assert "DeleteMarkers" not in page
        if not page["IsTruncated"]:
            break
        marker = {"KeyMarker": page["NextKeyMarker"]}
        if page.get("NextVersionIdMarker"):
            marker["VersionIdMarker"] = page["NextVersionIdMarker"]
    assert seen == model(TREE)[0]
    page = bench.s3.list_object_versions(Bucket=bucket, Delimiter="/", Prefix="photos/")
    got = [v["Key"] for v in page["Versions"]], [p["Prefix"] for p in page["CommonPrefixes"]]
    assert got == model(TREE, "photos/", "/")


@checks
def lists_of_buckets_without_objects_are_empty(bench):
    bucket = bench.bucket()
    page = bench.s3.list_objects_v2(Bucket=bucket)
    assert (page["KeyCount"], page["IsTruncated"], page.get("Contents")) == (0, False, None)
    assert "Versions" not in bench.s3.list_object_versions(Bucket=bucket)
    assert "Uploads" not in bench.s3.list_multipart_uploads(Bucket=bucket)


@checks
def a_token_of_another_kind_is_refused(bench):
    bucket = filled(bench, ["a"])
    with fails("InvalidArgument", 400):
        bench.s3.list_objects_v2(Bucket=bucket, ContinuationToken="no token of ours \u00e9")
