//! A map that comes in pages, while it changes and while it does not.

use super::changes::Showing;
use super::*;

fn page(showing: &Showing, from: Option<&MapPlace>, page_bytes: usize) -> MapPage {
    let page = showing.shown.page(from, showing.recent.records_sum(), page_bytes, true);
    MapPage::decode(&page.encode()).unwrap()
}

/// Takes all pages that are left, of a map that does not change.
fn take_all(gathering: &mut MapGathering, showing: &Showing, page_bytes: usize) -> usize {
    let mut pages = 0;
    while let Some(from) = gathering.next().cloned() {
        gathering.take(page(showing, Some(&from), page_bytes)).unwrap();
        pages += 1;
    }
    pages
}

/// A cluster with a record in each table.
fn full() -> Log {
    let mut log = Log::cluster(3);
    log.view(0, 0, &[0, 1, 2]).unwrap();
    log.lv(&[0, 1, 2]).unwrap();
    log.done(Command::CreateBucket(BucketName::new("abc").unwrap(), None, 11));
    log.done(Command::OpenSession(SessionId(300), ServerId(0), BootId(1)));
    log.done(Command::OpenSession(SessionId(301), ServerId(0), BootId(1)));
    log.done(Command::CloseSession(SessionId(301)));
    log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn pages_of_a_map_that_changes_make_its_latest_version(
        commands in proptest::collection::vec((any_command(), any::<bool>()), 1..80),
        page_bytes in 1..600_usize,
    ) {
        let mut log = Log::cluster(5);
        for pg in 0..4 {
            log.view(pg, 0, &[pg, (pg + 1) % 5, (pg + 2) % 5]).unwrap();
        }
        let mut showing = Showing::of(&log.0);
        let mut gathering = MapGathering::begin(page(&showing, None, page_bytes)).unwrap();
        let mut at_last = showing.shown.clone();
        for (command, is_asked) in commands {
            let _ = log.apply(command);
            if log.0.version > showing.shown.version {
                showing.show(&log.0);
            }
            if is_asked && let Some(from) = gathering.next().cloned() {
                gathering.take(page(&showing, Some(&from), page_bytes)).unwrap();
                at_last = showing.shown.clone();
            }
        }
        if take_all(&mut gathering, &showing, page_bytes) > 0 {
            at_last = showing.shown.clone();
        }
        let changes = gathering.lacks().map(|(known, timeline)| {
            assert_eq!(timeline, showing.shown.timeline_at(known).map(|it| it.id));
            showing.recent.since(known, &showing.shown, true).unwrap()
        });
        let latest = if changes.is_some() { showing.shown } else { at_last };
        let sum = latest.records_sum();
        prop_assert_eq!(gathering.end(changes.as_ref()), Ok((latest, sum)));
    }
}

#[test]
fn a_page_has_as_many_records_as_fill_it_and_one_at_least() {
    let showing = Showing::of(&full().0);
    let records = 3 + 4 + 1 + 1 + 1 + 1 + 1;
    for (page_bytes, pages) in [(1, records), (usize::MAX, 1)] {
        let mut gathering = MapGathering::begin(page(&showing, None, page_bytes)).unwrap();
        assert_eq!(1 + take_all(&mut gathering, &showing, page_bytes), pages);
        assert_eq!(gathering.lacks(), None);
        let whole = (showing.shown.clone(), showing.shown.records_sum());
        assert_eq!(gathering.end(None), Ok(whole));
    }
}

#[test]
fn records_that_come_and_go_while_pages_are_fetched_are_as_in_the_latest_map() {
    let mut log = full();
    let mut showing = Showing::of(&log.0);
    let mut gathering = MapGathering::begin(page(&showing, None, 1)).unwrap();
    // The first server is here. What goes is still to come, and what comes has a place on either side.
    log.done(Command::SetWeight(ServerId(0), Weight(7)));
    log.done(Command::CloseSession(SessionId(300)));
    log.done(Command::RevokeToken(TokenId(0)));
    log.done(Command::CreateBucket(BucketName::new("abb").unwrap(), None, 12));
    showing.show(&log.0);
    take_all(&mut gathering, &showing, 1);
    log.done(Command::OpenSession(SessionId(302), ServerId(0), BootId(1)));
    log.done(Command::BeginDeletion(BucketName::new("abc").unwrap()));
    showing.show(&log.0);
    let (known, _) = gathering.lacks().unwrap();
    let changes = showing.recent.since(known, &log.0, true).unwrap();
    assert_eq!(gathering.end(Some(&changes)), Ok((log.0.clone(), log.0.records_sum())));
}

#[test]
fn pages_that_make_no_map_are_refused() {
    let mut log = full();
    let before = Showing::of(&log.0);
    log.done(Command::SetWeight(ServerId(0), Weight(7)));
    let showing = Showing::of(&log.0);
    let first = page(&showing, None, 1);
    let at = first.next.clone();
    let begun = || MapGathering::begin(first.clone()).unwrap();
    // A manager that is behind.
    let older = page(&before, at.as_ref(), 1);
    assert_eq!(begun().take(older), Err(BadChanges::OtherMap(before.shown.version)));
    // Pages that do not end.
    let second = page(&showing, at.as_ref(), 1);
    let again = MapPage { next: at.clone(), ..second.clone() };
    assert_eq!(begun().take(again), Err(BadChanges::Gap));
    let nothing = MapChanges::begin(MapVersion(0), &log.0, 0, true);
    let empty = MapPage { next: second.next.clone(), records: nothing };
    assert_eq!(begun().take(empty), Err(BadChanges::Gap));
    // A record twice is one record; a record that is left out is missed in the end.
    let mut twice = begun();
    twice
        .take(MapPage { next: at.clone().map(|_| MapPlace::Token(TokenId(0))), ..first.clone() })
        .unwrap();
    take_all(&mut twice, &showing, 1);
    assert_eq!(twice.end(None).map(|_| ()), Err(BadChanges::Sum));
    // A volume behind one that did not come.
    let lv = page(&showing, Some(&MapPlace::Lv(LvId(0))), 1);
    let mut skips = lv.clone();
    skips.records.lvs[0].0 = LvId(1);
    assert_eq!(begun().take(skips), Err(BadChanges::Gap));
    // A map that managers cannot have made.
    let mut other = log.0.clone();
    other.lvs.push(other.lvs[0].clone());
    other.version = MapVersion(other.version.0 + 1);
    let whole = MapGathering::begin(page(&Showing::of(&other), None, usize::MAX)).unwrap();
    assert!(matches!(whole.end(None), Err(BadChanges::Contradiction(_))));
}

#[test]
fn pages_have_secrets_for_those_alone_that_may_know_them() {
    let mut log = full();
    log.done(Command::RotateRoot(0, root::pair("new"), Keep::Nothing));
    for has_secrets in [true, false] {
        let page = log.0.page(None, log.0.records_sum(), usize::MAX, has_secrets);
        let reported = MapGathering::begin(page).unwrap().end(None).unwrap().0.root.unwrap();
        let own = log.0.root.clone().unwrap();
        assert_eq!(reported, if has_secrets { own } else { own.without_secrets() });
    }
}

#[test]
fn pages_are_encoded_as_ever() {
    let showing = Showing::of(&full().0);
    let places = [
        MapPlace::Server(ServerId(2)),
        MapPlace::Pg(PgId(3)),
        MapPlace::Lv(LvId(0)),
        MapPlace::Session(SessionId(300)),
        MapPlace::Closed(MapVersion(0), SessionId(0)),
        MapPlace::Bucket(BucketName::new("abc").unwrap()),
        MapPlace::Token(TokenId(0)),
    ];
    let pages = places.iter().map(|from| page(&showing, Some(from), 1).encode());
    let hex = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let lines: Vec<String> = pages.map(hex).collect();
    assert_eq!(lines.join("\n"), include_str!("../golden_pages.hex").trim_end());
}
