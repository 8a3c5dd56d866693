//! Rows of the index that say of an object what cannot be.

use larder_objects::ObjectError;
use larder_types::{Body, SessionId, StreamId};

use super::{Cluster, content, key};

#[tokio::test]
async fn rows_that_describe_no_bytes_are_not_followed() {
    let cluster = Cluster::begin().await;
    let bytes = content(50_000, 9);
    let stream = StreamId { session: SessionId(1), number: 1 };
    let without_sums: fn(&mut Body) = |body| {
        let Body::Chunk(chunk) = body else { panic!("it has data: {body:?}") };
        chunk.sums.clear();
    };
    let without_blocks: fn(&mut Body) = |body| {
        let Body::Chunk(chunk) = body else { panic!("it has data: {body:?}") };
        chunk.extents.clear();
    };
    for (name, spoil) in [("sums", without_sums), ("blocks", without_blocks)] {
        cluster.put(name, &bytes).await.unwrap();
        assert!(cluster.has(name, &bytes).await);
        cluster.world.index.lock().spoil(cluster.bucket.id, &key(name), spoil);
    }
    cluster.put("chunks", &bytes).await.unwrap();
    assert!(cluster.has("chunks", &bytes).await);
    let of_none = |body: &mut Body| *body = Body::Stream { stream, chunks: 1, chunk_bytes: 0 };
    cluster.world.index.lock().spoil(cluster.bucket.id, &key("chunks"), of_none);
    let reads = || cluster.disks.iter().map(|disk| *disk.reads.lock()).sum::<u32>();
    let before = reads();
    for name in ["sums", "blocks", "chunks"] {
        let error = cluster.read(name, 0..10).await.unwrap_err();
        assert!(matches!(error, ObjectError::Unavailable { .. }), "{name}: {error}");
    }
    assert_eq!(reads(), before, "no data server is asked for what is not there");
}
