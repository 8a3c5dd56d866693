use std::collections::BTreeSet;

use super::*;

fn keyspace() -> Keyspace {
    Keyspace { prefix: "run/".into(), size: 8192, preloaded: 10, floor: false }
}

fn page(keys: &Keyspace, indices: impl IntoIterator<Item = u64>) -> String {
    let entries = indices
        .into_iter()
        .map(|index| format!("<Contents><Key>{}</Key></Contents>", keys.key(index)));
    format!(
        "<ListBucketResult><Prefix>run/</Prefix>{}</ListBucketResult>",
        entries.collect::<String>()
    )
}

#[test]
fn every_put_makes_a_new_object() {
    let supply = Supply::new(3);
    let mut sources = [0, 1].map(|worker| Source::new(Operation::Put, &supply, worker, 2));
    let calls: Vec<Call> =
        (0..4).map(|turn| sources[turn % 2].choose().expect("puts never end")).collect();
    assert_eq!(calls, [Call::Put(3), Call::Put(4), Call::Put(5), Call::Put(6)]);
}

#[test]
fn gets_reach_every_preloaded_object_and_no_other() {
    let mut source = Source::new(Operation::Get, &Supply::new(10), 0, 1);
    let read: BTreeSet<u64> = (0..1000)
        .map(|_| match source.choose() {
            Some(Call::Get(index)) => index,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(read, (0..10).collect());
}

#[test]
fn deletes_take_each_object_once_and_then_end() {
    let supply = Supply::new(5);
    let mut sources = [0, 1].map(|worker| Source::new(Operation::Delete, &supply, worker, 2));
    for index in 0..5 {
        assert_eq!(sources[index as usize % 2].choose(), Some(Call::Delete(index)));
    }
    assert_eq!(sources[0].choose(), None);
    assert_eq!(sources[1].choose(), None);
}

#[test]
fn a_mixed_load_keeps_its_shares_and_touches_only_what_exists() {
    let supply = Supply::new(1000);
    let mix = "70,25,5".parse().unwrap();
    let mut sources = [0, 1].map(|worker| Source::new(Operation::Mixed(mix), &supply, worker, 2));
    let mut alive: BTreeSet<u64> = (0..1000).collect();
    let mut counts = [0u32; 3];
    for turn in 0..20_000 {
        let source = &mut sources[turn % 2];
        let call = source.choose().expect("a mixed load never ends");
        match call {
            Call::Get(index) => assert!(alive.contains(&index)),
            Call::Put(index) => assert!(alive.insert(index)),
            Call::Delete(index) => assert!(alive.remove(&index)),
            Call::Append(_) | Call::Head(_) | Call::List { .. } => panic!("not part of the mix"),
        }
        counts[match call {
            Call::Get(_) => 0,
            Call::Put(_) => 1,
            _ => 2,
        }] += 1;
        source.settle(call, true);
    }
    assert!((13_600..14_400).contains(&counts[0]), "{counts:?}");
    assert!((4_700..5_300).contains(&counts[1]), "{counts:?}");
    assert!((850..1_150).contains(&counts[2]), "{counts:?}");
}

#[test]
fn a_failed_put_is_never_read() {
    let mix = "50,50,0".parse().unwrap();
    let mut source = Source::new(Operation::Mixed(mix), &Supply::new(0), 0, 1);
    for _ in 0..100 {
        let call = source.choose().expect("a mixed load never ends");
        assert!(matches!(call, Call::Put(_)), "{call:?}");
        source.settle(call, false);
    }
}

#[test]
fn mixes_add_up_to_a_hundred() {
    assert_eq!("70,25,5".parse(), Ok(Mix { get: 70, put: 25 }));
    for text in ["70,25", "70,25,6", "70,25,5,0", "a,b,c", "", "200,200,212"] {
        let error = text.parse::<Mix>().expect_err(text);
        assert!(error.contains("70,25,5"), "{error}");
    }
}

#[test]
fn keys_sort_as_numbers_and_end_in_the_size() {
    let keys = keyspace();
    assert_eq!(keys.key(7), "run/0000000007-8192");
    assert!(keys.key(9) < keys.key(10) && keys.key(99_999) < keys.key(100_000));
    assert_eq!(
        keys.page_query(7, 5),
        "list-type=2&max-keys=5&prefix=run%2F&start-after=run%2F0000000007-8192"
    );
}

#[test]
fn a_page_must_have_the_preloaded_keys_and_no_other() {
    let keys = keyspace();
    assert!(keys.check_page(&page(&keys, 3..6), 2, 3).is_ok());
    assert!(keys.check_page(&page(&keys, 8..10), 7, 3).is_ok(), "the last page is short");
    for wrong in [vec![3, 4], vec![3, 4, 5, 6], vec![3, 5, 4], vec![], vec![2, 3, 4]] {
        assert!(keys.check_page(&page(&keys, wrong.clone()), 2, 3).is_err(), "{wrong:?}");
    }
    let floor = Keyspace { floor: true, ..keys };
    assert!(floor.check_page(&page(&floor, []), 2, 3).is_ok());
}
