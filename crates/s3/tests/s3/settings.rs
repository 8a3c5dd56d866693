//! Settings that no bucket has.

use crate::client::Server;

#[tokio::test]
async fn a_fresh_bucket_answers_as_in_s3() {
    let server = Server::bucket().await;
    for (query, tag, value) in [
        ("versioning", "VersioningConfiguration", None),
        ("acl", "Permission", Some("FULL_CONTROL")),
        ("policyStatus", "IsPublic", Some("false")),
        ("requestPayment", "Payer", Some("BucketOwner")),
        ("ownershipControls", "ObjectOwnership", Some("BucketOwnerEnforced")),
        ("logging", "BucketLoggingStatus", None),
        ("notification", "NotificationConfiguration", None),
        ("accelerate", "AccelerateConfiguration", None),
    ] {
        let answer = server.get(&format!("/bkt?{query}")).await.expect(200);
        assert!(answer.text().contains(tag), "{query}: {}", answer.text());
        if let Some(value) = value {
            assert_eq!(answer.tag(tag).as_deref(), Some(value), "{query}");
        }
        server.get(&format!("/none?{query}")).await.refused(404, "NoSuchBucket");
    }
    assert!(server.get("/bkt?location").await.expect(200).text().contains("LocationConstraint"));
}

#[tokio::test]
async fn settings_that_are_absent_have_their_own_errors() {
    let server = Server::bucket().await;
    for (query, code) in [
        ("cors", "NoSuchCORSConfiguration"),
        ("encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("lifecycle", "NoSuchLifecycleConfiguration"),
        ("object-lock", "ObjectLockConfigurationNotFoundError"),
        ("policy", "NoSuchBucketPolicy"),
        ("publicAccessBlock", "NoSuchPublicAccessBlockConfiguration"),
        ("replication", "ReplicationConfigurationNotFoundError"),
        ("tagging", "NoSuchTagSet"),
        ("website", "NoSuchWebsiteConfiguration"),
    ] {
        server.get(&format!("/bkt?{query}")).await.refused(404, code);
        server.get(&format!("/none?{query}")).await.refused(404, "NoSuchBucket");
    }
    for query in ["lifecycle", "policy", "tagging", "website", "publicAccessBlock"] {
        server.delete(&format!("/bkt?{query}")).await.expect(204);
    }
}

#[tokio::test]
async fn settings_cannot_be_made() {
    let server = Server::bucket().await;
    for (query, body) in [
        (
            "versioning",
            "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>",
        ),
        ("policy", "{}"),
        ("tagging", "<Tagging><TagSet></TagSet></Tagging>"),
    ] {
        server.put(&format!("/bkt?{query}"), body).await.refused(501, "NotImplemented");
    }
    server.put("/bkt/k", "x").await.expect(200);
    for query in ["retention", "legal-hold"] {
        server.get(&format!("/bkt/k?{query}")).await.refused(400, "InvalidRequest");
    }
    let lock = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>\
                </ObjectLockConfiguration>";
    server.put("/bkt?object-lock", lock).await.refused(409, "InvalidBucketState");
    server.get("/bkt/k?torrent").await.refused(501, "NotImplemented");
}

/// S3 answers so of every bucket whose objects are its owner's, and clients do not repeat it.
#[tokio::test]
async fn access_lists_are_the_owners_alone() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    for path in ["/bkt?acl", "/bkt/k?acl"] {
        let acl = |acl: &'static str| server.ask("PUT", path).header("x-amz-acl", acl);
        acl("private").send().await.expect(200);
        acl("public-read").send().await.refused(400, "AccessControlListNotSupported");
        let unknown = acl("nonsense").send().await.refused(400, "InvalidArgument");
        assert!(!unknown.text().contains("not implemented"), "{}", unknown.text());
        let both = acl("private").header("x-amz-grant-read", "id=\"x\"").send().await;
        both.refused(400, "InvalidRequest");
        let own = server.get(path).await.expect(200).text();
        assert!(own.contains("FULL_CONTROL"), "{own}");
        server.put(path, own.clone()).await.expect(200);
        acl("private").body(own.clone()).send().await.refused(400, "UnexpectedContent");
        let open = own.replace("FULL_CONTROL", "READ");
        server.put(path, open).await.refused(400, "AccessControlListNotSupported");
        server.put(path, "").await.refused(400, "MissingSecurityHeader");
    }
    for (name, value, code) in [
        ("x-amz-acl", "public-read", "InvalidBucketAclWithObjectOwnership"),
        ("x-amz-acl", "nonsense", "InvalidArgument"),
        ("x-amz-object-ownership", "nonsense", "InvalidArgument"),
    ] {
        server.ask("PUT", "/other").header(name, value).send().await.refused(400, code);
    }
    server.head("/other").await.expect(404);
}
