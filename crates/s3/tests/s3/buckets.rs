//! Buckets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_s3::{GatewayOptions, ServerOptions};
use larder_types::BucketName;

use crate::client::Server;

#[tokio::test]
async fn a_bucket_is_made_found_and_removed() {
    let server = Server::start().await;
    server.head("/photos").await.expect(404);
    let made = server.put("/photos", "").await.expect(200);
    assert_eq!(made.header("location"), "/photos");
    assert_eq!(server.head("/photos").await.expect(200).header("x-amz-bucket-region"), "us-east-1");
    let listed = server.get("/").await.expect(200);
    assert_eq!(listed.tags("Name"), ["photos"]);
    assert!(listed.tag("Owner").is_some());
    server.delete("/photos").await.expect(204);
    server.delete("/photos").await.refused(404, "NoSuchBucket");
    assert!(server.get("/").await.expect(200).tags("Name").is_empty());
}

#[tokio::test]
async fn creating_an_existing_bucket_reports_its_owner() {
    let face = GatewayOptions { region: Some("eu-1".into()), ..GatewayOptions::default() };
    let server = Server::with(ServerOptions::default(), Arc::new(()), face).await;
    server.put("/bkt", "").await.expect(200);
    server.put("/bkt", "").await.refused(409, "BucketAlreadyOwnedByYou");
    assert!(server.get("/bkt?location").await.expect(200).text().contains(">eu-1<"));
}

#[tokio::test]
async fn the_oldest_region_takes_a_repeated_creation_for_the_first() {
    let server = Server::bucket().await;
    server.put("/bkt/k", "x").await.expect(200);
    server.put("/bkt", "").await.expect(200);
    server.head("/bkt/k").await.expect(200);
}

#[tokio::test]
async fn a_bucket_is_made_in_the_region_that_the_operator_named_or_not_at_all() {
    let face = GatewayOptions { region: Some("eu-1".into()), ..GatewayOptions::default() };
    let server = Server::with(ServerOptions::default(), Arc::new(()), face).await;
    let refused = server.put("/bkt", made_in("mars-1")).await;
    refused.refused(400, "InvalidLocationConstraint");
    server.put("/bkt", made_in("eu-1")).await.expect(200);
}

/// Clients ask where a bucket is, and sign for that region.
#[tokio::test]
async fn a_bucket_is_where_its_maker_wants_it_if_no_region_was_named() {
    let server = Server::start().await;
    server.put("/bkt", made_in("MARS")).await.refused(400, "InvalidLocationConstraint");
    for (bucket, asked, constraint, region) in [
        ("mars", "mars-1", ">mars-1<", "mars-1"),
        ("old", "EU", ">eu-west-1<", "eu-west-1"),
        ("oldest", "us-east-1", "LocationConstraint", "us-east-1"),
    ] {
        server.put(&format!("/{bucket}"), made_in(asked)).await.expect(200);
        let location = server.get(&format!("/{bucket}?location")).await.expect(200);
        assert!(location.text().contains(constraint), "{}", location.text());
        let head = server.head(&format!("/{bucket}")).await.expect(200);
        assert_eq!(head.header("x-amz-bucket-region"), region);
    }
    let all = server.get("/").await.expect(200);
    assert_eq!(all.tags("BucketRegion"), ["mars-1", "eu-west-1", "us-east-1"]);
    let some = server.get("/?bucket-region=mars-1").await.expect(200);
    assert_eq!(some.tags("Name"), ["mars"]);
}

fn made_in(place: &str) -> String {
    format!(
        "<CreateBucketConfiguration><LocationConstraint>{place}</LocationConstraint>\
         </CreateBucketConfiguration>"
    )
}

#[tokio::test]
async fn tags_of_a_new_bucket_are_refused() {
    let server = Server::start().await;
    let tag = "<Tag><Key>a</Key><Value>b</Value></Tag>";
    for tags in [format!("<Tags>{tag}</Tags>"), "<Tags/>".into(), format!("<Tags >{tag}</Tags>")] {
        let xml = format!("<CreateBucketConfiguration>{tags}</CreateBucketConfiguration>");
        server.put("/bkt", xml).await.refused(501, "NotImplemented");
    }
    server.head("/bkt").await.expect(404);
}

fn made_elsewhere(server: &Server, name: &str) {
    server.store.elsewhere.lock().unwrap().push(BucketName::new(name).unwrap());
}

#[tokio::test]
async fn no_operation_misses_a_bucket_that_another_machine_has_just_made() {
    let server = Server::start().await;
    for (number, key) in ["?location", "?list-type=2", "?cors", "?uploads", "/k"].iter().enumerate()
    {
        made_elsewhere(&server, &format!("got{number}"));
        let answer = server.get(&format!("/got{number}{key}")).await;
        assert!(!answer.text().contains("NoSuchBucket"), "{key}: {}", answer.text());
    }
    made_elsewhere(&server, "headed");
    server.head("/headed").await.expect(200);
    made_elsewhere(&server, "put");
    server.put("/put/k", "x").await.expect(200);
    made_elsewhere(&server, "deleted");
    server.delete("/deleted").await.expect(204);
    assert_eq!(server.store.catch_ups.load(Ordering::Relaxed), 8);
    server.get("/put/k").await.expect(200);
    server.put("/made", "").await.expect(200);
    assert_eq!(server.store.catch_ups.load(Ordering::Relaxed), 8, "known, or made here");
}

#[tokio::test]
async fn a_bucket_is_missing_only_once_the_store_has_caught_up() {
    let server = Server::start().await;
    server.get("/none/k").await.refused(404, "NoSuchBucket");
    server.store.is_cut_off.store(true, Ordering::Relaxed);
    server.get("/none/k").await.refused(503, "ServiceUnavailable");
    server.head("/none").await.expect(503);
    server.store.is_cut_off.store(false, Ordering::Relaxed);
    made_elsewhere(&server, "none");
    server.get("/none/k").await.refused(404, "NoSuchKey");
}

#[tokio::test]
async fn a_copys_source_may_be_in_a_bucket_that_another_machine_has_just_made() {
    let server = Server::bucket().await;
    made_elsewhere(&server, "source");
    let copy = server.ask("PUT", "/bkt/copy").header("x-amz-copy-source", "/source/k");
    copy.send().await.refused(404, "NoSuchKey");
}
