//! Pages merged from regions with different changes, against the list of all of them together.

use std::collections::BTreeSet;

use bytes::Bytes;
use larder_types::{Body, ETag, HybridClock, OpId, VersionRow};
use proptest::prelude::*;

use super::*;

/// The rows of a key in a region: the stamps of its version and of its tombstone.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    version: Option<Stamp>,
    tombstone: Option<Stamp>,
}

type Rows = BTreeMap<ObjectKey, Row>;

/// A change: the key, its stamp, and true for a put, false for a deletion.
type Change = (ObjectKey, Stamp, bool);

/// Makes a change as a store does: a put leaves an older tombstone alone.
fn apply(rows: &mut Rows, (key, at, is_put): &Change) {
    let row = rows.entry(key.clone()).or_default();
    if row.version.max(row.tombstone) >= Some(*at) {
        return;
    }
    match is_put {
        true => row.version = Some(*at),
        false => *row = Row { version: None, tombstone: Some(*at) },
    }
}

fn stamp(clock: u64, region: u16) -> Stamp {
    Stamp { clock: HybridClock(clock), region: RegionId(region) }
}

fn version(at: Stamp) -> ObjectEntry {
    let metax = Metax {
        region: at.region,
        attributes: Attributes {
            user: vec![("a".into(), "b".into())],
            storage_class: Some("STANDARD".into()),
            ..Attributes::default()
        },
        ..Metax::new(at.clock.0, at.clock, ETag::Md5([7; 16]))
    };
    let body = Body::Inline(Bytes::new());
    ObjectEntry::of_row(VersionRow { op: OpId::default(), metax, body })
}

/// Answers as a region's driver does: walks over its versions, then over its tombstones.
fn answer(rows: &Rows, ask: &KeysRequest) -> KeysAnswer {
    let mut answering = Answering::new(ask, RegionId(1));
    for is_put in [true, false] {
        let of_table = |row: &Row| if is_put { row.version } else { row.tombstone };
        let mut from = ask.from.clone();
        let selected = |key: &ObjectKey| key.as_str().starts_with(&ask.selection.prefix);
        loop {
            let mut later = rows.iter().filter_map(|(key, row)| Some((key, of_table(row)?)));
            let next = later.find(|(key, _)| key.as_bytes() >= &from[..] && selected(key));
            let Some((key, at)) = next else { break };
            let onward = if is_put {
                answering.version(key.clone(), version(at))
            } else {
                let tombstone = Tombstone { op: OpId::default(), at, origin: None };
                answering.tombstone(key.clone(), &tombstone)
            };
            match onward {
                ScanStep::Next => from = behind(key.as_bytes()),
                ScanStep::Past(place) => from = place,
                ScanStep::Stop => break,
            }
        }
    }
    let answer = answering.finish();
    assert!(answer.answers(ask), "{answer:?} to {ask:?}");
    answer
}

/// Asks for a page; also returns how many questions that took.
fn page(regions: &[Rows], ask: &PageRequest) -> (ListedPage, usize) {
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

/// The items of the whole list, of a single region that has all changes.
fn whole(regions: &[Rows], selection: &Selection) -> Vec<(String, Option<Stamp>)> {
    let mut all = Rows::new();
    for (key, row) in regions.iter().flatten() {
        for (at, is_put) in [(row.version, true), (row.tombstone, false)] {
            if let Some(at) = at {
                apply(&mut all, &(key.clone(), at, is_put));
            }
        }
    }
    let (mut items, mut groups) = (Vec::new(), BTreeSet::new());
    for (key, row) in all {
        let Some(at) = row.version else { continue };
        match selection.group_of(&key) {
            _ if !key.as_str().starts_with(&selection.prefix) => {}
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

/// Regions each of which has some of the changes of few keys, so that groups are large and many keys were deleted.
fn regions() -> impl Strategy<Value = Vec<Rows>> {
    let key = prop_oneof![
        "[ab]/[ab]/[0-9]{1,2}",
        "[ab]/[0-9]{1,2}",
        "[ab]{1,5}",
        "[ab]é[abé]{0,2}",
        Just("a/\u{0}".to_owned()),
        Just("a/\u{0}/".to_owned())
    ];
    let change =
        (key, 1u64..60, 1u16..4, prop::bool::weighted(0.6), prop::array::uniform3(any::<bool>()));
    prop::collection::vec(change, 0..200).prop_flat_map(|changes| {
        (Just(changes), 1usize..4).prop_map(|(mut changes, count)| {
            // Each stamp is given once for a key.
            changes.sort_by_key(|(key, clock, region, ..)| (key.clone(), *clock, *region));
            changes.dedup_by_key(|(key, clock, region, ..)| (key.clone(), *clock, *region));
            let mut regions = vec![Rows::new(); count];
            for (key, clock, region, is_put, has) in changes {
                let change = (ObjectKey::new(&key).unwrap(), stamp(clock, region), is_put);
                let having = regions.iter_mut().zip(has).filter(|(_, has)| *has);
                having.for_each(|(rows, _)| apply(rows, &change));
            }
            regions
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn pages_of_all_regions_are_the_list_of_all_their_changes(
        regions in regions(),
        prefix in prop_oneof![Just(""), Just("a"), Just("a/"), Just("b/a/"), Just("x")],
        delimiter in prop_oneof![Just(None), Just(Some("/")), Just(Some("é")), Just(Some("ab")), Just(Some("/a/"))],
        items_max in 1u32..12,
        elsewhere in "[ab/é]{0,5}",
    ) {
        let delimiter = delimiter.map(str::to_owned);
        let selection = Selection { prefix: prefix.to_owned(), delimiter };
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let ask = PageRequest { selection: selection.clone(), after, items_max };
            let (page, _) = page(&regions, &ask);
            prop_assert!(page.items.len() <= items_max as usize);
            found.extend(page.items.iter().map(shown));
            after = page.items.last().map(|item| shown(item).0);
            if !page.is_truncated {
                break;
            }
            prop_assert_eq!(page.items.len(), items_max as usize);
        }
        let all = whole(&regions, &selection);
        prop_assert_eq!(&found, &all);
        // From any place, a page has what is behind it.
        let ask = PageRequest { selection: selection.clone(), after: Some(elsewhere.clone()), items_max: 100 };
        let (page, _) = page(&regions, &ask);
        prop_assert!(page.answers(&ask), "{:?}", page);
        let is_behind = |(name, at): &&(String, Option<Stamp>)| match at {
            Some(_) => *name > elsewhere,
            // Some of its keys are.
            None => *name > elsewhere || elsewhere.starts_with(name) && *name != elsewhere,
        };
        let behind: Vec<_> = all.iter().filter(is_behind).map(|(name, _)| name.clone()).collect();
        let listed: Vec<_> = page.items.iter().map(|item| shown(item).0).collect();
        let is_certain = |name: &&String| !elsewhere.starts_with(*name) || **name == elsewhere;
        let certain = |names: &[String]| names.iter().filter(is_certain).cloned().collect::<Vec<_>>();
        prop_assert_eq!(certain(&listed), certain(&behind));
    }
}

fn rows(keys: impl Iterator<Item = (String, u64, bool)>, region: u16) -> Rows {
    let mut rows = Rows::new();
    for (key, clock, is_put) in keys {
        apply(&mut rows, &(ObjectKey::new(&key).unwrap(), stamp(clock, region), is_put));
    }
    rows
}

fn ask(delimiter: Option<&str>, items_max: u32) -> PageRequest {
    let selection = Selection { prefix: String::new(), delimiter: delimiter.map(str::to_owned) };
    PageRequest { selection, after: None, items_max }
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
fn keys_that_were_deleted_elsewhere_take_few_questions() {
    let keys = |count: usize| (0..count).map(|at| format!("a/{at:05}"));
    let there = |count| rows(keys(count).map(|key| (key, 5, true)), 1);
    let deleted = |count| rows(keys(count).map(|key| (key, 9, false)), 2);
    for (delimiter, items_max) in [(Some("/"), 1), (Some("/"), 1000), (None, 1), (None, 1000)] {
        let (none, asked) = page(&[there(3000), deleted(3000)], &ask(delimiter, items_max));
        assert!(none.items.is_empty() && !none.is_truncated);
        assert!(asked <= 22, "{asked} questions, {delimiter:?}, {items_max}");
    }
    let mut but_one = deleted(3000);
    but_one.remove(&ObjectKey::new("a/02000").unwrap());
    let (one, _) = page(&[there(3000), but_one], &ask(Some("/"), 10));
    assert_eq!(one.items, [Item::Group("a/".to_owned())]);
}

#[test]
fn many_groups_with_deleted_first_keys_take_few_requests() {
    for keys in [1, 3] {
        let all =
            || (0..1000).flat_map(move |at| (0..keys).map(move |key| format!("{at:04}/{key}")));
        let first = || (0..1000).map(|at| format!("{at:04}/0"));
        let there = rows(all().map(|key| (key, 5, true)), 1);
        let deleted = rows(first().map(|key| (key, 9, false)), 2);
        let (groups, asked) = page(&[there, deleted], &ask(Some("/"), 1000));
        assert_eq!(groups.items.len(), if keys == 1 { 0 } else { 1000 });
        assert!(!groups.is_truncated && asked <= 20, "{asked} questions");
    }
}

#[test]
fn what_was_told_behind_a_group_is_not_asked_for_again() {
    let first = || (0..30).map(|at| format!("a/{at:02}"));
    let behind = (0..500).map(|at| (format!("b{at:03}/x"), 5, true));
    let there = rows(first().map(|key| (key, 5, true)).chain(behind), 1);
    let deleted = rows(first().map(|key| (key, 9, false)), 2);
    let (groups, asked) = page(&[there, deleted], &ask(Some("/"), 1000));
    assert_eq!((groups.items.len(), groups.is_truncated), (500, false));
    assert!(asked <= 4, "{asked} questions");
}

#[test]
fn a_page_behind_a_group_takes_one_question() {
    let keys = (0..3000).map(|at| (format!("{at:04}/x"), 5, true));
    let regions = [rows(keys, 1)];
    let ask = PageRequest { after: Some("0999/".to_owned()), ..ask(Some("/"), 1000) };
    let (second, asked) = page(&regions, &ask);
    assert_eq!((second.items.len(), second.is_truncated, asked), (1000, true, 1));
    assert_eq!(second.items[0], Item::Group("1000/".to_owned()));
}

#[test]
fn a_page_that_is_cut_goes_on_from_its_last_item() {
    // The second region tells its keys late: behind the first ones nothing is certain.
    let one = rows((0..100).map(|at| (format!("k{at:03}"), 5, true)), 1);
    let two = rows((0..100).map(|at| (format!("k{at:03}"), 9, at < 20)), 2);
    let regions = [one, two];
    let mut merging = Merging::new(ask(None, 30), [RegionId(1), RegionId(2)].into_iter());
    for (region, ask) in merging.step() {
        // As if it had no time for more.
        let ask = KeysRequest { keys_max: 10, ..ask };
        merging.take(region, &ask, answer(&regions[usize::from(region.0) - 1], &ask));
    }
    assert!(!merging.step().is_empty(), "more is asked for");
    let cut = merging.cut().unwrap();
    assert!(cut.is_truncated && cut.items.len() == 10);
    let after = cut.items.last().map(|item| item.name().to_owned());
    let (rest, _) = page(&regions, &PageRequest { after, ..ask(None, 1000) });
    let names: Vec<_> = cut.items.iter().chain(&rest.items).map(|item| shown(item).0).collect();
    let whole = whole(&regions, &ask(None, 1).selection).into_iter().map(|(name, _)| name);
    assert_eq!(names, whole.collect::<Vec<_>>());
    let unrequested = Merging::new(ask(None, 5), [RegionId(1)].into_iter());
    assert!(unrequested.cut().is_none(), "no page goes on from there");
}

#[test]
fn answers_that_are_none_are_known() {
    let ask = KeysRequest {
        selection: Selection { prefix: "a".into(), delimiter: Some("/".into()) },
        from: b"a/5".to_vec(),
        keys_max: 2,
    };
    let reported = |key: &str, leaves_out| {
        let key = ObjectKey::new(key).unwrap();
        RegionKey { key, at: stamp(1, 1), object: None, leaves_out }
    };
    let answer = |keys: &[(&str, bool)], rest: Option<&str>| {
        let keys = keys.iter().map(|(key, leaves_out)| reported(key, *leaves_out)).collect();
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
    let many = |count: usize, object: Option<Metax>| {
        let mut answer = KeysAnswer::default();
        for at in 0..count {
            let object = object.clone().map(Box::new);
            answer.keys.push(RegionKey { object, ..reported(&format!("ab{at:05}"), false) });
        }
        answer
    };
    let metax = || Some(version(stamp(1, 1)).row.metax);
    assert!(many(2, metax()).answers(&ask) && !many(3, metax()).answers(&ask), "more than asked");
    let deleted_max = 2 + REGION_LISTED_KEYS_MAX as usize;
    assert!(many(deleted_max, None).answers(&ask) && !many(deleted_max + 1, None).answers(&ask));
    let mut of_nobody = answer(&[("ab", false)], None);
    of_nobody.keys[0].at = stamp(1, 0);
    assert!(!of_nobody.answers(&ask));
    assert!(!is_right(&[], Some(&"b".repeat(KEY_BYTES_MAX + 2))), "longer than a key");
    let longest = "k".repeat(KEY_BYTES_MAX);
    let sound = KeysRequest { from: longest.clone().into(), ..ask.clone() };
    assert!(ask.is_sound() && sound.is_sound());
    let longer = || [&longest[..], "kk"].concat();
    assert!(!KeysRequest { from: longer().into(), ..ask.clone() }.is_sound());
    assert!(!KeysRequest { keys_max: 0, ..ask.clone() }.is_sound());
    assert!(!KeysRequest { keys_max: 1002, ..ask.clone() }.is_sound());
    let prefixed = Selection { prefix: longer(), delimiter: None };
    assert!(!KeysRequest { selection: prefixed, ..ask.clone() }.is_sound());
    let empty = Selection { prefix: String::new(), delimiter: Some(String::new()) };
    assert!(!KeysRequest { selection: empty, ..ask }.is_sound());
}

#[test]
fn lists_begin_behind_keys_of_any_length() {
    let regions =
        [rows([("k".repeat(KEY_BYTES_MAX), 1, true), ("l".to_owned(), 1, true)].into_iter(), 1)];
    let listed = |after: String| {
        let ask = PageRequest { after: Some(after), ..ask(None, 10) };
        page(&regions, &ask).0.items.len()
    };
    assert_eq!(listed("k".repeat(KEY_BYTES_MAX - 1)), 2);
    assert_eq!(listed("k".repeat(KEY_BYTES_MAX)), 1);
    assert_eq!(listed("k".repeat(5000)), 1);
    assert_eq!(listed("l".to_owned()), 0);
}
