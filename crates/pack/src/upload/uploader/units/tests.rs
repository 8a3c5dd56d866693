use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use larder_env::{Disk, OpenMode, SeededRng, SimDisk};
use object_store::memory::InMemory;

use super::*;
use crate::backend::fakes::{self, Fake, Fate};
use crate::class::Requests;
use crate::format::blob::{FooterHead, encode_footer};
use crate::format::upload_unit::UploadUnit;
use crate::ids::WorkerId;

const PART: usize = PART_BYTES;
const ID: BlobId = BlobId { worker: WorkerId(1), seq: 7 };
const NAME: &str = "blobs/x";
/// Tries after which a unit is there, if it ever is.
const TRIES_MAX: u32 = 20;

/// A unit of so many bytes of bodies, and its bytes.
fn unit(body_bytes: usize, seed: usize) -> (SealedUnit, Vec<u8>) {
    let bodies: Vec<u8> = (0..body_bytes).map(|at| ((at + seed) / 777) as u8).collect();
    let file = SimDisk::new(1, 1 << 30).open("f", OpenMode::CreateNew).unwrap();
    file.write_at(0, &[IoSlice::new(&bodies)]).unwrap();
    let head = FooterHead { created_ms: 1, entries: 0, buckets: Vec::new() };
    let tail = Bytes::from(encode_footer(ID, UploadUnit::SHARED, body_bytes as u64, &head, &[]));
    let whole = [&bodies[..], &tail[..]].concat();
    let body_bytes = body_bytes as u64;
    (SealedUnit { unit: UploadUnit::SHARED, file: Some(file), body_bytes, tail }, whole)
}

fn bound(unit: &SealedUnit) -> Bound<'_> {
    named(unit, NAME)
}

fn named<'a>(unit: &'a SealedUnit, name: &'a str) -> Bound<'a> {
    Bound { id: ID, unit, name, is_urgent: &|| false }
}

/// Tries until the unit is there; returns how often.
async fn tries(backend: &Backend, whole_upload: &mut WholeUploadBackoff, bound: &Bound<'_>) -> u32 {
    let (mut progress, mut tries) = (Progress::default(), 1);
    while bring(backend, whole_upload, &mut progress, bound).await.is_err() {
        tries += 1;
        assert!(tries < TRIES_MAX);
    }
    tries
}

fn writes(backend: &Backend) -> (u64, u64) {
    let Requests { put, part, .. } = backend.counters().requests.load();
    (put, part)
}

fn uploaded(backend: &Backend) -> u64 {
    backend.counters().uploaded_bytes.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn a_blob_of_many_parts_is_one_request() {
    let (backend, fake) = fakes::google();
    let (unit, whole) = unit(3 * PART - 9, 0);
    assert_eq!(tries(&backend, &mut WholeUploadBackoff::default(), &bound(&unit)).await, 1);
    assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
    assert_eq!((writes(&backend), fake.uploads()), ((1, 0), (0, 0)));
    assert_eq!(uploaded(&backend), whole.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn every_cloud_gets_the_body_and_amazon_its_sum_with_each_repeat() {
    let clouds = [fakes::google(), fakes::s3(), fakes::azure()];
    for ((backend, fake), sums) in clouds.into_iter().zip([0, 1, 0]) {
        let (unit, whole) = unit(2 * PART, 0);
        // The library repeats the first, and the gate the second.
        fake.will(&[Fate::BreaksOff(PART / 2), Fate::RefusedAtOnce(503)]);
        assert_eq!(tries(&backend, &mut WholeUploadBackoff::default(), &bound(&unit)).await, 1);
        assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
        assert_eq!((fake.streamed(), fake.sums(), writes(&backend)), (3, sums, (3, 0)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_breaks_off_goes_on_in_parts() {
    let (backend, fake) = fakes::google();
    let (unit, whole) = unit(3 * PART, 0);
    fake.will(&[Fate::BreaksOff(2 * PART)]);
    fake.refuse_parts(&["2"]);
    assert_eq!(tries(&backend, &mut WholeUploadBackoff::default(), &bound(&unit)).await, 3);
    assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
    assert_eq!(fake.streamed(), 1, "what broke off is not sent again as one");
    // The request that broke off, beginning and end of the parts; four parts, one of them twice.
    assert_eq!(writes(&backend), (3, 5));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_too_large_for_somebody_on_the_way_goes_on_in_parts() {
    let (backend, fake) = fakes::google();
    let (unit, whole) = unit(2 * PART, 0);
    for (number, fate) in [Fate::Refused(413), Fate::RefusedAtOnce(413)].into_iter().enumerate() {
        fake.will(&[fate]);
        let name = format!("blobs/{number}");
        let bound = named(&unit, &name);
        assert_eq!(
            tries(&backend, &mut WholeUploadBackoff::default(), &bound).await,
            2,
            "{fate:?}"
        );
        assert_eq!(backend.at_once(&name).await.unwrap(), whole);
        assert_eq!(fake.streamed(), number as u32 + 1, "{fate:?}: asked once as a whole");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_gets_anywhere_goes_on_in_parts_in_the_end() {
    let (backend, fake) = fakes::google();
    let (unit, whole) = unit(2 * PART, 0);
    fake.will(&[Fate::RefusedAtOnce(403); 2 * TRIES_MAX as usize]);
    let tried = tries(&backend, &mut WholeUploadBackoff::default(), &bound(&unit)).await;
    assert_eq!((tried, fake.streamed()), (EARLY_TRIES_MAX + 1, EARLY_TRIES_MAX));
    assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_all_is_well_counts_only_once_all_went_out() {
    let (backend, fake) = fakes::google();
    let (unit, whole) = unit(2 * PART, 0);
    fake.will(&[Fate::TakenEmpty; 2]);
    assert_eq!(tries(&backend, &mut WholeUploadBackoff::default(), &bound(&unit)).await, 2);
    assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
    assert_eq!((fake.streamed(), uploaded(&backend)), (1, whole.len() as u64));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_is_busy_before_a_body_comes_gets_no_parts_for_that() {
    let (backend, fake) = fakes::google();
    let (unit, whole) = unit(2 * PART, 0);
    fake.will(&[Fate::RefusedAtOnce(503); 3]);
    let mut whole_upload = WholeUploadBackoff::default();
    assert_eq!(tries(&backend, &mut whole_upload, &bound(&unit)).await, 1);
    assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
    assert_eq!(writes(&backend), (4, 0));
    assert!(whole_upload.is_given());
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_is_busy_once_all_came_is_not_sent_it_again_as_one() {
    for status in [503, 429, 500, 408] {
        let (backend, fake) = fakes::google();
        let (unit, whole) = unit(2 * PART, 0);
        fake.will(&[Fate::Refused(status); 2 * TRIES_MAX as usize]);
        assert_eq!(
            tries(&backend, &mut WholeUploadBackoff::default(), &bound(&unit)).await,
            2,
            "{status}"
        );
        assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
        assert_eq!(fake.streamed(), 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_that_failed_is_made_again_before_anything_is_sent() {
    for fate in [Fate::Done, Fate::AnswerLost] {
        let (backend, fake) = fakes::google();
        let (unit, whole) = unit(2 * PART, 0);
        fake.will(&[fate]);
        fake.fail_reads(5);
        let mut whole_upload = WholeUploadBackoff::default();
        assert_eq!(tries(&backend, &mut whole_upload, &bound(&unit)).await, 6, "{fate:?}");
        assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
        assert_eq!(writes(&backend), (1, 0), "{fate:?}: sent once");
        assert_eq!(uploaded(&backend), whole.len() as u64);
        assert!(whole_upload.is_given());
    }
}

#[tokio::test(start_paused = true)]
async fn parts_that_all_came_through_are_looked_for_and_not_sent_again() {
    let (backend, fake) = fakes::google();
    let (unit, whole) = unit(2 * PART, 0);
    fake.fail_reads(5);
    let urgent = Bound { is_urgent: &|| true, ..bound(&unit) };
    assert_eq!(tries(&backend, &mut WholeUploadBackoff::default(), &urgent).await, 6);
    assert_eq!((fake.parts_sent().len(), fake.uploads()), (3, (1, 0)));
    assert_eq!(uploaded(&backend), whole.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn units_after_one_that_was_too_slow_as_one_request_go_in_parts() {
    let (backend, fake) = fakes::google();
    let (unit, _) = unit(2 * PART, 0);
    let (mut whole_upload, mut tried) = (WholeUploadBackoff::default(), Vec::new());
    for number in 0..6 {
        // A spool of two blobs: half of it waits before a request, and all of it after.
        let asked = AtomicBool::new(false);
        let is_urgent = || asked.swap(true, Ordering::Relaxed);
        let (before, name) = (fake.streamed(), format!("blobs/{number}"));
        let bound = Bound { is_urgent: &is_urgent, ..named(&unit, &name) };
        assert_eq!(tries(&backend, &mut whole_upload, &bound).await, 1);
        tried.push(fake.streamed() - before);
    }
    assert_eq!(tried, [1, 0, 1, 0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_broke_off_early_is_made_again() {
    let (backend, fake) = fakes::google();
    let (unit, whole) = unit(2 * PART, 0);
    fake.will(&[Fate::BreaksOff(PART / 2)]);
    assert_eq!(tries(&backend, &mut WholeUploadBackoff::default(), &bound(&unit)).await, 1);
    assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
    assert_eq!((fake.streamed(), writes(&backend)), (2, (2, 0)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_lost_costs_a_look_and_not_the_blob_again() {
    let (backend, fake) = fakes::google();
    let (unit, whole) = unit(2 * PART, 0);
    fake.will(&[Fate::AnswerLost]);
    let mut whole_upload = WholeUploadBackoff::default();
    assert_eq!(tries(&backend, &mut whole_upload, &bound(&unit)).await, 1);
    assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
    assert_eq!((fake.streamed(), uploaded(&backend)), (1, whole.len() as u64));
    assert!(whole_upload.is_given());
}

#[tokio::test(start_paused = true)]
async fn what_is_urgent_goes_in_parts_and_stays_with_them() {
    let (backend, fake) = fakes::google();
    let (unit, whole) = unit(2 * PART, 0);
    let (mut whole_upload, mut progress) = (WholeUploadBackoff::default(), Progress::default());
    fake.refuse_parts(&["1"]);
    let urgent = Bound { is_urgent: &|| true, ..bound(&unit) };
    bring(&backend, &mut whole_upload, &mut progress, &urgent).await.unwrap_err();
    bring(&backend, &mut whole_upload, &mut progress, &bound(&unit)).await.unwrap();
    assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
    assert_eq!((fake.streamed(), fake.uploads()), (0, (1, 0)));
    assert!(whole_upload.is_given(), "nothing broke off");
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_takes_no_files_gets_parts() {
    let backend = Backend::over(Arc::new(InMemory::new()));
    let (unit, whole) = unit(2 * PART, 0);
    assert_eq!(tries(&backend, &mut WholeUploadBackoff::default(), &bound(&unit)).await, 1);
    assert_eq!(backend.at_once(NAME).await.unwrap(), whole);
}

#[tokio::test(start_paused = true)]
async fn units_after_one_that_broke_off_go_in_parts_before_the_next_try() {
    let (backend, fake) = fakes::google();
    let (unit, _) = unit(2 * PART, 0);
    let mut whole_upload = WholeUploadBackoff::default();
    let mut tried = Vec::new();
    for number in 0..8 {
        fake.will(&[Fate::BreaksOff(PART + 1)]);
        let (before, name) = (fake.streamed(), format!("blobs/{number}"));
        tries(&backend, &mut whole_upload, &named(&unit, &name)).await;
        tried.push(fake.streamed() - before);
    }
    assert_eq!(tried, [1, 0, 1, 0, 0, 1, 0, 0]);
}

#[test]
fn trust_comes_back_with_one_request_that_comes_through() {
    let mut whole_upload = WholeUploadBackoff::default();
    for _ in 0..20 {
        whole_upload.broke_off();
    }
    assert_eq!(whole_upload.in_parts, PARTS_IN_A_ROW_MAX + 1);
    for _ in 0..=PARTS_IN_A_ROW_MAX {
        assert!(!whole_upload.is_given());
        whole_upload.went_in_parts();
    }
    assert!(whole_upload.is_given());
    whole_upload.whole_upload_succeeded();
    whole_upload.broke_off();
    assert_eq!(whole_upload.in_parts, 2);
}

/// Plants faults of the way there, as a seed says.
fn plant(fake: &Fake, rng: &mut SeededRng, len: usize) {
    match rng.below(8) {
        0 => fake.will(&[Fate::BreaksOff(PART + rng.below((len - PART) as u64) as usize)]),
        1 => fake.will(&[Fate::AnswerLost]),
        2 => fake.will(&[Fate::Refused(413)]),
        3 => fake.refuse_parts(&["1", "3"]),
        4 => fake.will(&[Fate::Refused(503)]),
        5 => fake.will(&[Fate::RefusedAtOnce(413)]),
        6 => fake.will(&[Fate::TakenEmpty]),
        _ => {}
    }
    if rng.one_in(3) {
        fake.refuse_parts(&["2"]);
    }
    fake.fail_reads(rng.below(4) as u32);
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_on_the_way_every_blob_arrives_as_it_is() {
    for seed in 0..16 {
        let mut rng = SeededRng::new(seed);
        let (backend, fake) = fakes::google();
        let mut whole_upload = WholeUploadBackoff::default();
        for number in 0..3 {
            let (unit, whole) = unit(2 * PART + rng.below(1000) as usize, 777 * number);
            let mut progress = Progress::default();
            let (before, mut tries) = (fake.streamed(), 0);
            let uploaded_before = uploaded(&backend);
            let name = format!("blobs/{number}");
            let bound = named(&unit, &name);
            plant(&fake, &mut rng, whole.len());
            while bring(&backend, &mut whole_upload, &mut progress, &bound).await.is_err() {
                if rng.one_in(4) {
                    fake.forget_uploads();
                }
                tries += 1;
                assert!(tries < TRIES_MAX, "seed {seed}");
            }
            assert_eq!(backend.at_once(&name).await.unwrap(), whole, "seed {seed}");
            // A part that was sent twice counts twice.
            assert!(uploaded(&backend) - uploaded_before >= whole.len() as u64, "seed {seed}");
            assert!(fake.streamed() - before <= 1, "seed {seed}: one request for a blob at most");
        }
    }
}
