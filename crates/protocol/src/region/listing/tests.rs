//! Pages merged from regions with different changes, against the list of all of them together.

use std::collections::BTreeSet;

use bytes::Bytes;
use larder_types::{Body, ETag, HybridClock, OpId, VersionRow};
use proptest::prelude::*;

use super::*;

/// What regions have of keys: the stamp of the last change, and true for a put, false for a deletion.
type Rows = BTreeMap<ObjectKey, (Stamp, bool)>;

fn stamp(clock: u64, region: u16) -> Stamp {
    Stamp { clock: HybridClock(clock), region: RegionId(region) }
}

fn version(at: Stamp) -> ObjectEntry {
    let metax = Metax {
        size: at.clock.0,
        clock: at.clock,
        region: at.region,
        etag: ETag::Md5([7; 16]),
        checksum: None,
        attributes: Attributes {
            user: vec![("a".into(), "b".into())],
            storage_class: Some("STANDARD".into()),
            ..Attributes::default()
        },
        expires_ms: None,
        encryption: None,
        retention: None,
    };
    let body = Body::Inline(Bytes::new());
    ObjectEntry::of_row(VersionRow { op: OpId::default(), metax, body })
}

/// Answers as a region's driver does: walks over its versions, then over its tombstones.
fn answer(rows: &Rows, ask: &KeysAsk) -> KeysAnswer {
    let mut answering = Answering::new(ask);
    for is_put in [true, false] {
        let mut from = ask.from.clone();
        let of_table = |(_, (_, is)): &(&ObjectKey, &(Stamp, bool))| *is == is_put;
        let selected = |key: &ObjectKey| key.as_str().starts_with(&ask.selection.prefix);
        loop {
            let mut later = rows.iter().filter(of_table);
            let next = later.find(|(key, _)| key.as_bytes() >= &from[..] && selected(key));
            let Some((key, (at, _))) = next else { break };
            let onward = if is_put {
                answering.version(key.clone(), version(*at))
            } else {
                let tombstone = Tombstone { op: OpId::default(), at: *at, origin: None };
                answering.tombstone(key.clone(), tombstone)
            };
            match onward {
                Onward::Next => from = behind(key.as_bytes()),
                Onward::Past(place) => from = place,
                Onward::Stop => break,
            }
        }
    }
    let answer = answering.finish(RegionId(1), |_| PgId(0));
    assert!(answer.answers(ask), "{answer:?} to {ask:?}");
    answer
}

/// Asks for a page; also returns how many questions that took.
fn page(regions: &[Rows], ask: &PageAsk) -> (ListedPage, usize) {
    let number = |index: usize| RegionId(index as u16 + 1);
    let mut merging = Merging::new(ask.clone(), (0..regions.len()).map(number));
    let mut asked = 0;
    loop {
        let asks = merging.step();
        if asks.is_empty() {
            return (merging.finish(), asked);
        }
        for (region, ask) in asks {
            assert!(ask.is_sound(), "{ask:?}");
            asked += 1;
            merging.take(region, &ask, answer(&regions[usize::from(region.0) - 1], &ask));
        }
    }
}

/// The items of the whole list, from a single region that has all changes.
fn whole(regions: &[Rows], selection: &Selection) -> Vec<(String, Option<Stamp>)> {
    let mut all = Rows::new();
    for (key, change) in regions.iter().flatten() {
        let newest = all.entry(key.clone()).or_insert(*change);
        *newest = (*newest).max(*change);
    }
    let (mut items, mut groups) = (Vec::new(), BTreeSet::new());
    for (key, (at, is_put)) in all {
        match selection.group_of(&key) {
            _ if !is_put || !key.as_str().starts_with(&selection.prefix) => {}
            None => items.push((key.as_str().to_owned(), Some(at))),
            Some(group) if groups.insert(group.to_owned()) => items.push((group.to_owned(), None)),
            Some(_) => {}
        }
    }
    items
}

fn shown(item: &Item) -> (String, Option<Stamp>) {
    match item {
        Item::Key(key, metax) => (key.as_str().to_owned(), Some(metax.stamp())),
        Item::Group(group) => (group.clone(), None),
    }
}

/// Regions that have some of the changes of few keys each, so that groups are large and many keys were deleted.
fn regions() -> impl Strategy<Value = Vec<Rows>> {
    let key = prop_oneof![
        "[ab]/[ab]/[0-9]{1,2}",
        "[ab]/[0-9]{1,2}",
        "[abc]",
        Just("a/\u{0}".to_owned()),
        Just("b/é".to_owned())
    ];
    let change = (key, 1u64..60, prop::bool::weighted(0.6));
    let rows = move |region: u16| {
        prop::collection::vec(change.clone(), 0..60).prop_map(move |changes| {
            let changes = changes.into_iter().map(|(key, clock, is_put)| {
                (ObjectKey::new(&key).unwrap(), (stamp(clock, region), is_put))
            });
            changes.collect::<Rows>()
        })
    };
    (rows(1), rows(2), rows(3), 1usize..4).prop_map(|(one, two, three, count)| {
        let mut regions = vec![one, two, three];
        regions.truncate(count);
        regions
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn pages_of_all_regions_are_the_list_of_all_their_changes(
        regions in regions(),
        prefix in prop_oneof![Just(""), Just("a"), Just("a/"), Just("b/a/"), Just("x")],
        delimiter in prop_oneof![Just(None), Just(Some("/")), Just(Some("é"))],
        items_max in 1u32..12,
    ) {
        let delimiter = delimiter.map(str::to_owned);
        let selection = Selection { prefix: prefix.to_owned(), delimiter };
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let ask = PageAsk { selection: selection.clone(), after, items_max };
            let (page, _) = page(&regions, &ask);
            prop_assert!(page.items.len() <= items_max as usize);
            found.extend(page.items.iter().map(shown));
            after = page.items.last().map(|item| shown(item).0);
            if !page.is_truncated {
                break;
            }
            prop_assert_eq!(page.items.len(), items_max as usize);
        }
        prop_assert_eq!(found, whole(&regions, &selection));
    }
}

fn rows(keys: impl Iterator<Item = (String, u64, bool)>, region: u16) -> Rows {
    let row = |(key, clock, is_put): (String, u64, bool)| {
        (ObjectKey::new(&key).unwrap(), (stamp(clock, region), is_put))
    };
    keys.map(row).collect()
}

fn ask(delimiter: Option<&str>, items_max: u32) -> PageAsk {
    let selection = Selection { prefix: String::new(), delimiter: delimiter.map(str::to_owned) };
    PageAsk { selection, after: None, items_max }
}

#[test]
fn a_page_takes_one_question_to_each_region_however_large_its_groups_are() {
    let keys = || (0..20_000).map(|at| (format!("{:02}/{at:06}", at / 1000), 5, true));
    let regions = [rows(keys(), 1), rows(keys().step_by(3), 2)];
    let (grouped, asked) = page(&regions, &ask(Some("/"), 1000));
    assert_eq!((grouped.items.len(), grouped.is_truncated, asked), (20, false, 2));
    let (all, asked) = page(&regions, &ask(None, 1000));
    assert_eq!((all.items.len(), all.is_truncated, asked), (1000, true, 2));
}

#[test]
fn a_group_whose_keys_were_deleted_elsewhere_is_not_listed() {
    let there = rows((0..50).map(|at| (format!("a/{at:02}"), 5, true)), 1);
    let mut deleted = rows((0..50).map(|at| (format!("a/{at:02}"), 9, false)), 2);
    let (none, asked) = page(&[there.clone(), deleted.clone()], &ask(Some("/"), 10));
    assert!(none.items.is_empty() && !none.is_truncated);
    assert!((3..=60).contains(&asked), "the rest of the group was asked for: {asked}");
    deleted.remove(&ObjectKey::new("a/31").unwrap());
    let (one, _) = page(&[there, deleted], &ask(Some("/"), 10));
    assert_eq!(one.items, [Item::Group("a/".to_owned())]);
}

#[test]
fn answers_that_are_none_are_known() {
    let ask = KeysAsk {
        selection: Selection { prefix: "a".into(), delimiter: Some("/".into()) },
        from: b"a/5".to_vec(),
        keys_max: 2,
    };
    let told = |key: &str, leaves_out| {
        let key = ObjectKey::new(key).unwrap();
        RegionKey { key, at: stamp(1, 1), object: None, leaves_out }
    };
    let answer = |keys: &[(&str, bool)], rest: Option<&str>| {
        let keys = keys.iter().map(|(key, leaves_out)| told(key, *leaves_out)).collect();
        KeysAnswer { keys, rest: rest.map(|rest| rest.as_bytes().to_vec()) }
    };
    let is_right = |keys: &[(&str, bool)], rest| answer(keys, rest).answers(&ask);
    assert!(is_right(&[], None) && is_right(&[], Some("a/6")));
    assert!(is_right(&[("a/5", true), ("a0", false), ("ab", false)], Some("ac")));
    assert!(!is_right(&[], Some("a/5")), "no further");
    assert!(!is_right(&[("a/6", false)], Some("a/6")), "no further than its keys");
    assert!(!is_right(&[("a/4", false)], None), "before the place");
    assert!(!is_right(&[("b", false)], None), "not selected");
    assert!(!is_right(&[("ac", false), ("ab", false)], None), "not in order");
    assert!(!is_right(&[("ab", false), ("ab", false)], None), "twice");
    assert!(!is_right(&[("a/5", true), ("a/6", false)], None), "left out, and told");
    assert!(!is_right(&[("ab", true)], None), "left out of no group");
    let five = [("a1", false), ("a2", false), ("a3", false), ("a4", false), ("a5", false)];
    assert!(is_right(&five[..4], None) && !is_right(&five, None), "more than asked for");
    let longest = "k".repeat(KEY_BYTES_MAX);
    let sound = KeysAsk { from: longest.clone().into(), ..ask.clone() };
    assert!(ask.is_sound() && sound.is_sound());
    let longer = || [&longest[..], "kk"].concat();
    assert!(!KeysAsk { from: longer().into(), ..ask.clone() }.is_sound());
    assert!(!KeysAsk { keys_max: 0, ..ask.clone() }.is_sound());
    assert!(!KeysAsk { keys_max: 1002, ..ask.clone() }.is_sound());
    let prefixed = Selection { prefix: longer(), delimiter: None };
    assert!(!KeysAsk { selection: prefixed, ..ask.clone() }.is_sound());
    let empty = Selection { prefix: String::new(), delimiter: Some(String::new()) };
    assert!(!KeysAsk { selection: empty, ..ask }.is_sound());
}

#[test]
fn lists_begin_behind_keys_of_any_length() {
    let regions =
        [rows([("k".repeat(KEY_BYTES_MAX), 1, true), ("l".to_owned(), 1, true)].into_iter(), 1)];
    let listed = |after: String| {
        let ask = PageAsk { after: Some(after), ..ask(None, 10) };
        page(&regions, &ask).0.items.len()
    };
    assert_eq!(listed("k".repeat(KEY_BYTES_MAX - 1)), 2);
    assert_eq!(listed("k".repeat(KEY_BYTES_MAX)), 1);
    assert_eq!(listed("k".repeat(5000)), 1);
    assert_eq!(listed("l".to_owned()), 0);
}
