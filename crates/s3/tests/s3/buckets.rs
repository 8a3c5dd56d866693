//! Buckets.

use std::sync::Arc;

use larder_s3::{FaceOptions, ServerOptions};

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
async fn making_a_bucket_again_says_whose_it_is() {
    let face = FaceOptions { region: "eu-1".into(), ..FaceOptions::default() };
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
async fn a_bucket_is_made_in_this_region_or_not_at_all() {
    let server = Server::start().await;
    let with = |place: &str| {
        let xml = format!(
            "<CreateBucketConfiguration><LocationConstraint>{place}</LocationConstraint>\
             </CreateBucketConfiguration>"
        );
        server.put("/bkt", xml)
    };
    with("mars-1").await.refused(400, "InvalidLocationConstraint");
    with("us-east-1").await.expect(200);
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
