//! Reads what an index shows, and checks that it fits together.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use larder_types::codec::decode;
use larder_types::rows::parse_keyed;
use larder_types::{BucketId, UploadRow};

use super::model::{Open, State};
use super::process::Process;
use super::store::SimStore;
use crate::format::entry::{Container, Content, Place};
use crate::format::rows::{self, PackedPart, PackedVersion};
use crate::format::upload_unit::BundleContent;
use crate::ids::{BlobId, StandaloneId};
use crate::index::Index;

/// Reads the state that an index shows, and every byte of it.
pub(super) async fn found(process: &Process, index: &Index, store: &SimStore) -> State {
    let mut state = State::default();
    let Some(id) = index.bucket_id(&super::world::bucket()) else { return state };
    let mut versions = Vec::new();
    index
        .visit(b"V", &mut |row, value| {
            let (_, key, _) = parse_keyed(row).unwrap();
            versions.push((key, decode::<PackedVersion>("a version", value)?));
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    for (key, version) in versions {
        let places = match version.content {
            Content::Run(place) => vec![place],
            Content::Parts { upload, parts } => {
                let place = |number| index.part(id, upload, number).unwrap().unwrap().place;
                parts.into_iter().map(|part| place(part.number)).collect()
            }
        };
        let values = values_of(process, store, key.as_str(), &places).await;
        state.objects.insert(key.as_str().to_owned(), values);
    }
    let mut uploads = Vec::new();
    index
        .visit(b"U", &mut |_, value| {
            uploads.push(decode::<UploadRow>("an upload", value)?);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    for row in uploads {
        let mut open = Open { key: row.key.as_str().to_owned(), parts: BTreeMap::new() };
        for (number, part) in index.parts(id, row.upload, 0, 100).unwrap() {
            let values = values_of(process, store, "a part", &[part.place]).await;
            open.parts.insert(number, values[0]);
        }
        state.uploads.insert(row.upload, open);
    }
    state
}

async fn values_of(process: &Process, store: &SimStore, what: &str, places: &[Place]) -> Vec<u64> {
    let mut values = Vec::new();
    for place in places {
        let bytes = process.read(place, store, "").await;
        let bytes = bytes.unwrap_or_else(|reason| panic!("{what} cannot be read: {reason}"));
        let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(bytes, super::world::bytes_of(value), "{what} has the bytes of one value");
        values.push(value);
    }
    values
}

/// Every run of bytes that a version or part has, with how many have it.
pub(super) fn places(index: &Index) -> BTreeMap<(Container, u64, u64), u64> {
    let mut places = BTreeMap::new();
    let mut add = |place: &Place| {
        *places.entry((place.container, place.offset, place.len)).or_insert(0) += 1;
    };
    index
        .visit(b"V", &mut |_, value| {
            if let Content::Run(place) = decode::<PackedVersion>("a version", value)?.content {
                add(&place);
            }
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    index
        .visit(b"P", &mut |row, value| {
            assert_ne!(rows::bucket_of_part(row), BucketId(0));
            add(&decode::<PackedPart>("a part", value)?.place);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    places
}

/// A part is there while its upload is open, or its key's version names it: nothing else would ever remove it.
fn check_parts(index: &Index) {
    let (mut open, mut named) = (BTreeSet::new(), BTreeSet::new());
    index
        .visit(b"U", &mut |_, value| {
            open.insert(decode::<UploadRow>("an upload", value)?.upload);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    index
        .visit(b"V", &mut |_, value| {
            let content = decode::<PackedVersion>("a version", value)?.content;
            if let Content::Parts { upload, parts } = content {
                named.extend(parts.into_iter().map(|part| (upload, part.number)));
            }
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    index
        .visit(b"P", &mut |row, _| {
            let part = rows::upload_of_part(row).unwrap();
            assert!(open.contains(&part.0) || named.contains(&part), "{part:?} is nobody's");
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
}

/// Rows of bundles in which nothing is live.
pub(super) fn ended_bundles(index: &Index) -> u64 {
    let mut ended = 0;
    index
        .visit(b"O", &mut |_, value| {
            let content = decode::<BundleContent>("what a bundle has", value)?;
            ended += u64::from(content.live == 0);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    ended
}

/// Checks that the index counts as live what its versions and parts have, and that every part is
/// somebody's.
pub(super) fn check_counts(index: &Index) {
    check_parts(index);
    let mut live: BTreeMap<BlobId, u64> = BTreeMap::new();
    let mut bundled: BTreeMap<StandaloneId, u64> = BTreeMap::new();
    // No bytes lie nowhere: what has none may name a blob that is gone.
    let places: BTreeMap<_, _> =
        places(index).into_iter().filter(|((_, _, len), _)| *len > 0).collect();
    for (container, _, len) in places.keys() {
        match container {
            Container::Blob(id) => *live.entry(*id).or_default() += len,
            Container::Own(id) if id.bundle().is_some() => *bundled.entry(*id).or_default() += len,
            Container::Own(_) => {}
        }
    }
    let counted = index.bundles().unwrap().into_iter();
    let counted: BTreeMap<_, _> = counted.map(|(id, content)| (id, content.live)).collect();
    assert_eq!(counted, bundled, "live bytes of bundles");
    for (id, content) in index.standing().unwrap() {
        assert_eq!(content.live, live.remove(&id).unwrap_or(0), "live bytes of blob {id}");
    }
    assert_eq!(live, BTreeMap::new(), "bytes in blobs that do not stand");
    let mut held = 0;
    index
        .visit(b"R", &mut |_, _| {
            held += 1;
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    assert_eq!(held, places.values().sum::<u64>(), "rows of those that have bytes");
}
