//! Regions that join, tell each other of each other, and are removed.

use larder_protocol::region::home::HomeRequest;
use larder_protocol::region::listing::{KeysRequest, Selection};
use larder_types::BucketName;

use super::*;
use crate::error::{Later, Refused, TokenFault, Usage};
use crate::limits::{CHANGE_BYTES_MAX, REGIONS_MAX, TOKEN_LIFE};
use crate::members::Known;
use crate::message::JoinRefused;
use crate::registry::now_ms;

/// The list of regions is an older copy: it lacks one whose changes are here.
#[tokio::test]
async fn a_number_that_was_met_is_not_given_again() {
    let first = Region::first().await;
    *first.source.met.lock() = RegionId(2);
    let another = first.joined("another", How::Bytes(10)).await;
    assert_eq!(another.region_endpoint.number(), RegionId(3));
    *first.source.met.lock() = RegionId(1);
    let third = first.joined("third", How::Bytes(10)).await;
    assert_eq!(third.region_endpoint.number(), RegionId(4));
}

#[tokio::test]
async fn a_region_joins_with_a_token_and_both_send_requests() {
    let (first, second) = two(How::Bytes(10)).await;
    assert_eq!(second.region_endpoint.number(), RegionId(2));
    let hello = second.to(&first).hello().await.unwrap();
    assert_eq!(hello, Hello { number: RegionId(1), pg_count: 256, now_ms: 7 });
    assert_eq!(first.to(&second).hello().await.unwrap().number, RegionId(2));
    let reported = second.to(&first).query_ids(ask()).await.unwrap();
    assert_eq!(reported.buckets, [(BucketId(1), bucket())]);
    assert!(reported.pgs[0].1.is_err());
    let range = larder_protocol::region::Range { from: vec![1], to: None };
    let walk = Walk { range: range.clone() };
    assert_eq!(second.to(&first).walk(walk).await.unwrap().summed.rest, Some(range.clone()));
    let list = List { range: range.clone() };
    assert_eq!(second.to(&first).list(list).await.unwrap().listed.rest, Some(range));
    let metrics = second.region_endpoint.metrics().of(RegionId(1));
    assert_eq!((metrics.asked.get(), metrics.failed.get(), metrics.connected.get()), (4, 0, 1));
    let ask =
        crate::AskHome { bucket: bucket(), ask: HomeRequest::Look, regions: vec![RegionId(2)] };
    let known = second.to(&first).ask_home(ask).await.unwrap();
    let HomeAnswer::Knows(Some(home)) = known else { panic!("{known:?}") };
    assert_eq!(home.term.of, RegionId(2), "the answering one knows which asks");
    let homes = vec![(bucket(), home)];
    second.to(&first).tell_homes(crate::TellHomes { homes }).await.unwrap();
    assert!(metrics.bytes_requested.get() > 0 && metrics.bytes_told.get() > 0);
    let metrics = first.region_endpoint.metrics().of(RegionId(2));
    assert_eq!((metrics.answered.get(), metrics.declined.get()), (6, 0));
}

/// A change, and so many bytes that it puts.
fn changes(len: usize) -> crate::Change {
    let (md5, bytes) = ([7; 16], vec![1; len].into());
    let attributes = Box::default();
    let kind = ChangeKind::Put { attributes, md5, checksum: None, bytes };
    let (key, condition) = (ObjectKey::new("a").unwrap(), larder_types::Condition::default());
    crate::Change { bucket: bucket(), key, condition, kind }
}

#[tokio::test]
async fn a_change_is_as_large_as_it_may_be_and_no_other_request_is() {
    let (first, second) = two(How::Bytes(10)).await;
    let link = second.to(&first);
    for len in [0, 5, CHANGE_BYTES_MAX] {
        let made = link.change(changes(len)).await.unwrap();
        assert_eq!(made, ChangeAnswer::Made(Some(HybridClock(len as u64))));
    }
    let refused = link.change(changes(CHANGE_BYTES_MAX + 1)).await;
    assert!(matches!(refused, Err(LinkError::Unsound(_))), "{refused:?}");
}

pub(super) fn keys_ask(bucket: BucketName) -> crate::Keys {
    let selection = Selection { prefix: String::new(), delimiter: None };
    let ask = KeysRequest { selection, from: b"b".to_vec(), keys_max: 2 };
    crate::Keys { bucket, ask, regions: vec![RegionId(1), RegionId(2)] }
}

#[tokio::test]
async fn a_region_sends_keys_and_unrequested_ones_are_refused() {
    let (first, second) = two(How::Bytes(10)).await;
    let reported = second.to(&first).keys(keys_ask(bucket())).await.unwrap();
    assert!(matches!(reported, crate::KeysReply::Keys(answer) if answer.keys.len() == 2));
    let other = BucketName::new("other").unwrap();
    assert_eq!(second.to(&first).keys(keys_ask(other)).await.unwrap(), crate::KeysReply::NoBucket);
    let (first, second) = two(How::Breaks).await;
    let reported = second.to(&first).keys(keys_ask(bucket())).await;
    assert!(matches!(reported, Err(LinkError::Unsound(_))), "{reported:?}");
}

/// Another store that tries to join.
async fn tries(token: &JoinToken, name: &str) -> Result<RegionId, LinkError> {
    let dir = tempfile::tempdir().unwrap();
    tries_in(dir.path(), token, name).await
}

async fn tries_in(dir: &Path, token: &JoinToken, name: &str) -> Result<RegionId, LinkError> {
    let (_socket, address) = a_socket().await;
    let joined = join(dir, token, region_name(name), address.to_string(), address).await;
    joined.map(|members| members.own.number)
}

fn refused(tried: Result<RegionId, LinkError>) -> JoinRefused {
    match tried {
        Err(LinkError::Refused(Refused::Join(refused))) => refused,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_token_lets_one_region_in() {
    let first = Region::first().await;
    let token = first.token();
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(tries_in(dir.path(), &token, "two").await.unwrap(), RegionId(2));
    assert_eq!(refused(tries(&token, "three").await), JoinRefused::TokenUsed);
    // The answer was lost: the same key asks again, and is the same region.
    std::fs::remove_file(dir.path().join("region/members")).unwrap();
    assert_eq!(tries_in(dir.path(), &token, "two").await.unwrap(), RegionId(2));
    let again = tries_in(dir.path(), &token, "two").await;
    assert!(matches!(again, Err(LinkError::Usage(Usage::AlreadyRegion { .. }))), "{again:?}");
    assert_eq!(first.members().peers.len(), 1);
    assert_eq!(first.region_endpoint.metrics().joins_refused.get(), 1);
}

#[tokio::test]
async fn a_number_is_kept_beside_the_directory_before_it_is_given() {
    let first = Region::first().await;
    let token = first.token();
    let dir = tempfile::tempdir().unwrap();
    let kept = first.source.kept.lock().take();
    let failed = tries_in(dir.path(), &token, "two").await;
    assert!(matches!(failed, Err(LinkError::Later(_))), "{failed:?}");
    let has_two = |reported: &[Known]| reported.iter().any(|it| it.number == RegionId(2));
    assert!(
        has_two(&first.region_endpoint.known().regions)
            && !has_two(&first.region_endpoint.exchanged()),
        "nobody hears of it"
    );
    *first.source.kept.lock() = kept;
    assert_eq!(tries_in(dir.path(), &token, "two").await.unwrap(), RegionId(2));
    let kept = first.source.kept.lock().take().unwrap();
    assert_eq!(kept, [first.region_endpoint.known()]);
    assert_eq!(first.region_endpoint.exchanged(), first.region_endpoint.known().regions);
    // The directory is an older copy: it takes what was kept, and goes on behind it.
    let older = Region::first().await;
    let mut known = kept.into_iter().next_back().unwrap();
    known.regions[0] = older.region_endpoint.known().regions[0].clone();
    older.region_endpoint.learn(&known).unwrap();
    assert_eq!(tries(&older.token(), "three").await.unwrap(), RegionId(3));
    let contradicts = first.region_endpoint.learn(&older.region_endpoint.known());
    assert!(matches!(contradicts, Err(LinkError::Unsound(_))), "{contradicts:?}");
}

#[tokio::test]
async fn a_wrong_or_old_token_admits_nobody() {
    let first = Region::first().await;
    let old = now_ms() - TOKEN_LIFE.as_millis() as u64 - 1;
    let expired = change(first.path(), |members| members.issue(old)).unwrap().0;
    assert_eq!(refused(tries(&expired, "two").await), JoinRefused::TokenExpired);
    // Another issue forgets it.
    let good = first.token();
    assert_eq!(refused(tries(&expired, "two").await), JoinRefused::TokenUnknown);
    // The right id with another secret.
    assert_eq!(refused(tries(&good.with_another_secret(), "two").await), JoinRefused::TokenUnknown);
    assert_eq!(refused(tries(&good, "one").await), JoinRefused::NameTaken);
    assert_eq!(tries(&good, "two").await.unwrap(), RegionId(2));
    assert_eq!("larder-region-1.x".parse::<JoinToken>(), Err(TokenFault::Mistyped));
}

#[tokio::test]
async fn a_region_beyond_the_most_is_refused_and_a_number_is_given_once() {
    let first = Region::first().await;
    let full = first.token();
    for number in 2..=REGIONS_MAX {
        let token = first.token();
        let joined = tries(&token, &format!("r{number}")).await.unwrap();
        assert_eq!(joined, RegionId(number as u16));
    }
    assert_eq!(refused(tries(&full, "more").await), JoinRefused::Full);
    let more = change(first.path(), |members| members.issue(now_ms())).map(drop);
    assert!(matches!(more, Err(LinkError::Usage(Usage::Full))), "{more:?}");
    let last = format!("r{REGIONS_MAX}");
    change(first.path(), |members| members.remove(&last)).unwrap();
    assert_eq!(tries(&full, &last).await.unwrap(), RegionId(REGIONS_MAX as u16 + 1));
}

#[tokio::test]
async fn only_the_first_region_gives_tokens() {
    let (_first, second) = two(How::Bytes(10)).await;
    let issued = change(second.path(), |members| members.issue(now_ms())).map(drop).unwrap_err();
    assert!(issued.to_string().contains("only region 1 (one) gives tokens"), "{issued}");
}

#[tokio::test]
async fn a_third_region_becomes_known_to_the_second_and_a_removal_wins() {
    let (first, second) = two(How::Bytes(10)).await;
    let third = first.joined("three", How::Bytes(10)).await;
    assert!(third.members().peer(RegionId(2)).is_some(), "the first tells who joins");
    assert!(second.members().peer(RegionId(3)).is_none());
    let early = third.to(&second).hello().await;
    assert!(matches!(early, Err(LinkError::Refused(Refused::Stranger))), "{early:?}");
    second.region_endpoint.exchange_lists().await;
    assert_eq!(second.members().peer(RegionId(3)).unwrap().name, region_name("three"));
    assert_eq!(third.to(&second).hello().await.unwrap().number, RegionId(2));
    assert_eq!(second.to(&third).hello().await.unwrap().number, RegionId(3));
    // Its list is kept.
    assert_eq!(*second.members(), crate::read(second.path()).unwrap().unwrap());

    change(second.path(), |members| members.remove("three")).unwrap();
    second.region_endpoint.reload_once().unwrap();
    // Over the connection that it has.
    let removed = third.to(&second).hello().await;
    assert!(matches!(removed, Err(LinkError::Refused(Refused::Removed))), "{removed:?}");
    assert!(second.region_endpoint.link_to(RegionId(3)).unwrap().is_none());
    assert_eq!(third.to(&first).hello().await.unwrap().number, RegionId(1), "it was not told yet");
    second.region_endpoint.exchange_lists().await;
    let removed = third.to(&first).hello().await;
    assert!(matches!(removed, Err(LinkError::Refused(Refused::Removed))), "{removed:?}");
    third.region_endpoint.exchange_lists().await;
    assert!(third.members().own.removed);
}

#[tokio::test]
async fn a_running_server_notices_what_commands_change() {
    let (first, second) = two(How::Bytes(10)).await;
    let mut members = second.region_endpoint.members();
    let tending = tokio::spawn(second.region_endpoint.clone().tend());
    members.mark_unchanged();
    change(second.path(), |members| members.pause("one", true)).unwrap();
    members.changed().await.unwrap();
    assert!(members.borrow().peer(RegionId(1)).unwrap().paused);
    assert!(!first.members().peer(RegionId(2)).unwrap().paused, "nobody is told");
    change(second.path(), |members| members.pause("one", false)).unwrap();
    members.changed().await.unwrap();
    assert!(!members.borrow().peer(RegionId(1)).unwrap().paused);
    tending.abort();
}

#[tokio::test]
async fn an_unreachable_region_is_reported_and_found_again() {
    let (first, second) = two(How::Bytes(10)).await;
    let address = first.listening.address();
    assert!(second.to(&first).hello().await.is_ok());
    let Region { dir, region_endpoint, source, listening } = first;
    drop(listening);
    let away = second.region_endpoint.link_to(RegionId(1)).unwrap().unwrap().hello().await;
    let is_later = |error: &LinkError| {
        matches!(error, LinkError::Later(Later::Unreachable { .. } | Later::Broken(_)))
    };
    assert!(away.as_ref().is_err_and(is_later), "{away:?}");
    drop((region_endpoint, source));
    let first = Region::start(dir, TcpListener::bind(address).await.unwrap(), How::Bytes(10));
    assert_eq!(second.to(&first).hello().await.unwrap().number, RegionId(1));
}

#[tokio::test]
async fn a_busy_region_is_retried_later() {
    let (first, second) = two(How::Busy).await;
    let busy = second.to(&first).query_ids(ask()).await;
    assert!(matches!(busy, Err(LinkError::Later(Later::Busy))), "{busy:?}");
    assert_eq!(first.region_endpoint.metrics().of(RegionId(2)).declined.get(), 1);
    assert_eq!(second.region_endpoint.metrics().of(RegionId(1)).failed.get(), 1);
}
