use super::*;

fn route(method: &str, uri: &str) -> Route {
    let request = Request::builder().method(method).uri(uri).body(()).unwrap();
    Route::of(&request, &Domains::none(), || false)
}

fn refused(method: &str, uri: &str) -> Option<S3ErrorCode> {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let refused = route(method.as_str(), uri).check(&method);
    refused.err().map(|refused| refused.code().clone())
}

#[test]
fn operations_are_told_by_method_and_address() {
    for (method, uri, expected) in [
        ("GET", "/", "ListBuckets"),
        ("HEAD", "/", "ListBuckets"),
        ("GET", "/b", "ListObjects"),
        ("GET", "/b/?list-type=2&prefix=versions", "ListObjectsV2"),
        ("GET", "/b?list-type=%32", "ListObjectsV2"),
        ("GET", "/b?list-type=1", "ListObjects"),
        ("GET", "/b?list-type=2&list-type=2", "ListObjects"),
        ("GET", "/b?versions&prefix=x", "ListObjectVersions"),
        ("GET", "/b?versioning", "GetBucketSetting"),
        ("PUT", "/b/", "CreateBucket"),
        ("POST", "/b?delete", "DeleteObjects"),
        ("GET", "/b/k/", "GetObject"),
        ("GET", "/b/k?versionId=null&partNumber=1&x=y", "GetObject"),
        ("HEAD", "/b/k?acl", "HeadObject"),
        ("PUT", "/b/k?partNumber=1&uploadId=x", "UploadPart"),
        ("POST", "/b/k?uploads=", "CreateMultipartUpload"),
        ("PUT", "/b/k?X-Amz-Copy-Source=%2Fs%2Fo&X-Amz-Signature=0", "CopyObject"),
        ("PUT", "/b/k?x-amz-copy-source=%2Fs%2Fo", "PutObject"),
        ("DELETE", "/b/k?versionId=null", "DeleteObject"),
        ("DELETE", "/b/k?tagging", "DeleteObjectTagging"),
        ("PATCH", "/b/k", "Unknown"),
        ("PUT", "/b?cors", "PutBucketCors"),
        ("GET", "/b?cors=", "GetBucketCors"),
        ("DELETE", "/b?cors", "DeleteBucketCors"),
        ("GET", "/b/k?cors", "Unknown"),
        ("OPTIONS", "/b/k?uploads", "Preflight"),
        ("OPTIONS", "/", "Preflight"),
        ("GET", "/_larder/v1/status?x", "AdminStatus"),
        ("PUT", "/_larder/v1/status", "AdminStatus"),
        ("GET", "/_larder/v1/status/", "GetObject"),
        ("GET", "/minio/admin/v3/info?metrics=false", "AdminInfo"),
        ("GET", "/minio/v2/metrics/node", "AdminMetrics"),
        ("GET", "/minio/v2/metrics/bucket", "GetObject"),
    ] {
        assert_eq!(route(method, uri).operation.name(), expected, "{method} {uri}");
    }
}

#[test]
fn a_form_is_recognized_by_method_and_type() {
    let of = |method: &str, kind: &[u8]| {
        let request = Request::builder().method(method).uri("/b?delete");
        let request = request.header(CONTENT_TYPE, kind).body(()).unwrap();
        let route = Route::of(&request, &Domains::none(), || false);
        assert_eq!(route.form, route.operation == Operation::PostObject);
        route.form
    };
    assert!(of("POST", b"multipart/form-data; boundary=x"));
    assert!(of("POST", b"Multipart/Form-Data; boundary=\"\xc3\xa4\""));
    assert!(of("POST", b"multipart/form-data+xml"));
    assert!(!of("PUT", b"multipart/form-data; boundary=x"));
    assert!(!of("POST", b"application/xml"));
}

#[test]
fn a_virtual_host_moves_the_path_one_level_down() {
    assert_eq!(level("/", true), Level::Bucket);
    assert_eq!(level("/k", true), Level::Object);
    assert_eq!(level("/k", false), Level::Bucket);
    assert_eq!(level("/b//", false), Level::Object);
}

#[test]
fn what_would_be_passed_over_is_refused() {
    for (method, uri) in [
        ("PUT", "/b/k?encryption"),
        ("PUT", "/b/k?x-id=RenameObject&renameObject"),
        ("PUT", "/b/k?tagging&restore"),
        ("PUT", "/b?metadataConfiguration"),
        ("PUT", "/b?abac"),
        ("DELETE", "/b?metadataConfiguration"),
        ("GET", "/b/k?restore"),
        ("GET", "/b/k?torrent"),
        ("GET", "/b?metadataConfiguration"),
        ("GET", "/b?analytics&id=1"),
        ("POST", "/b/k?encryption"),
    ] {
        assert_eq!(refused(method, uri), Some(S3ErrorCode::NotImplemented), "{method} {uri}");
        assert_eq!(route(method, uri).operation, Operation::Unknown, "{method} {uri}");
    }
}

#[test]
fn a_batch_delete_takes_memory_for_an_answer_with_its_names() {
    let of = |uri: &str| {
        let request = Request::builder().method("POST").uri(uri).header("content-length", 100);
        let route = Route::of(&request.body(()).unwrap(), &Domains::none(), || false);
        route.memory_bytes()
    };
    assert_eq!((of("/b?delete"), of("/b/k?uploadId=x")), (100 * BATCH_DELETE_FACTOR, 100));
}

#[test]
fn two_operations_are_not_one_request() {
    for (method, uri, message) in [
        ("GET", "/b?policy&acl", "acl, policy"),
        ("DELETE", "/b?cors&policy", "cors, policy"),
        ("PUT", "/b/k?uploadId=x&partNumber=1&tagging", "tagging, uploadId"),
        ("POST", "/b/k?uploads&uploadId=x", "uploadId, uploads"),
    ] {
        let route = route(method, uri);
        assert_eq!(route.operation, Operation::Unknown, "{method} {uri}");
        let refused = route.check(&method.parse().unwrap()).unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::InvalidArgument, "{method} {uri}");
        let expected = format!("Conflicting query string parameters: {message}");
        assert_eq!(refused.message(), Some(expected.as_str()));
    }
}

#[test]
fn a_list_of_what_a_bucket_has_needs_a_bucket() {
    for query in ["list-type=2", "delimiter=/", "encoding-type=url", "uploads", "location"] {
        assert_eq!(refused("GET", &format!("/?{query}")), Some(S3ErrorCode::NoSuchBucket));
    }
    for uri in ["/b/k?uploads", "/b/k?versions"] {
        assert_eq!(refused("GET", uri), Some(S3ErrorCode::InvalidRequest), "{uri}");
    }
}

#[test]
fn what_is_posted_to_a_bucket_is_a_form() {
    assert_eq!(route("POST", "/b").operation, Operation::PostObject);
    assert_eq!(refused("POST", "/b"), Some(S3ErrorCode::PreconditionFailed));
}

#[test]
fn a_405_lists_the_methods_that_are_allowed() {
    for (method, uri, allowed) in [
        ("PATCH", "/b/k", "DELETE, GET, HEAD, PUT"),
        ("POST", "/b/k", "DELETE, GET, HEAD, PUT"),
        ("PATCH", "/b", "DELETE, GET, HEAD, POST, PUT"),
        ("PUT", "/", "GET, HEAD"),
        ("DELETE", "/b/k?acl", "GET, PUT"),
        ("DELETE", "/b/k?retention&versionId=null", "GET, PUT"),
        ("PUT", "/b/k?uploads=", "POST"),
        ("DELETE", "/b?versioning", "GET, PUT"),
        ("GET", "/b?delete", "POST"),
    ] {
        let route = route(method, uri);
        assert_eq!(route.operation, Operation::Unknown, "{method} {uri}");
        let refused = route.check(&method.parse().unwrap()).unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::MethodNotAllowed, "{method} {uri}");
        assert_eq!(refused.headers().unwrap()[ALLOW], allowed, "{method} {uri}");
    }
}

#[test]
fn a_part_has_a_number_and_an_upload_and_a_put_chooses_no_version() {
    for query in ["uploadId=a", "partNumber=1", "versionId=null", "versionId=a&x-id=PutObject"] {
        let code = refused("PUT", &format!("/b/k?{query}"));
        assert_eq!(code, Some(S3ErrorCode::InvalidArgument), "{query}");
    }
}

#[test]
fn what_is_routed_and_what_is_not_s3s_passes() {
    for (method, uri) in [
        ("PUT", "/b/k?partNumber=1&uploadId=a&x-id=UploadPart"),
        ("PUT", "/b/k?tagging&versionId=null"),
        ("PUT", "/b/k?x-trace=42&encryptions=1&X-Amz-Signature=0"),
        ("PUT", "/b?versioning"),
        ("GET", "/b?list-type=2&prefix=encryption&delimiter=acl"),
        ("GET", "/b/k?response-content-type=text/plain&versionId=null"),
        ("POST", "/b/k?uploads"),
        ("POST", "/b?delete="),
        ("DELETE", "/b/k?versionId=null"),
        ("HEAD", "/b/k?acl"),
        ("GET", "/?prefix=a&max-buckets=1&continuation-token=x&bucket-region=r&marker=m"),
        ("PUT", "/b/k"),
    ] {
        assert_eq!(refused(method, uri), None, "{method} {uri}");
    }
}
