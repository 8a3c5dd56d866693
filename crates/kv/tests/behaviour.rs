//! The behaviour of every index, checked on the real and on the simulated one.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use larder_kv::{Batch, FlushFault, Kv, KvError, KvReader, LsmKv, SimKv};
use proptest::prelude::*;
use tempfile::TempDir;

/// An index that can lose its process.
trait Fixture {
    fn new() -> Self;
    fn kv(&self) -> &dyn Kv;
    fn crash(&mut self);
}

struct Lsm {
    dir: TempDir,
    kv: Option<LsmKv>,
}

impl Fixture for Lsm {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kv = LsmKv::open(&dir.path().join("index"), 1 << 20).unwrap();
        Self { dir, kv: Some(kv) }
    }

    fn kv(&self) -> &dyn Kv {
        self.kv.as_ref().unwrap()
    }

    fn crash(&mut self) {
        self.kv = None;
        self.kv = Some(LsmKv::open(&self.dir.path().join("index"), 1 << 20).unwrap());
    }
}

impl Fixture for SimKv {
    fn new() -> Self {
        SimKv::new()
    }

    fn kv(&self) -> &dyn Kv {
        self
    }

    fn crash(&mut self) {
        SimKv::crash(self);
    }
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn rows(reader: &(impl KvReader + ?Sized), from: &[u8], to: Option<&[u8]>) -> Rows {
    let mut rows = Vec::new();
    reader
        .scan(from, to, &mut |key, value| {
            rows.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    rows
}

fn batch(changes: &[(&str, Option<&str>)]) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(key.as_bytes(), value.as_bytes()),
            None => batch.delete(key.as_bytes()),
        }
    }
    batch
}

fn get(reader: &(impl KvReader + ?Sized), key: &str) -> Option<String> {
    let value = reader.get(key.as_bytes()).unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn later_changes_win<F: Fixture>() {
    let fixture = F::new();
    let kv = fixture.kv();
    kv.apply(&batch(&[("a", Some("1")), ("b", Some("1")), ("a", Some("2")), ("b", None)])).unwrap();
    assert_eq!((get(kv, "a"), get(kv, "b")), (Some("2".into()), None));
    kv.apply(&batch(&[("b", None), ("b", Some("3")), ("a", None), ("c", Some(""))])).unwrap();
    assert_eq!((get(kv, "a"), get(kv, "b")), (None, Some("3".into())));
    assert_eq!(get(kv, "c"), Some(String::new()));
    kv.apply(&Batch::new()).unwrap();
    kv.flush().unwrap();
    assert_eq!((get(kv, "a"), get(kv, "b")), (None, Some("3".into())));
}

fn scans_are_ordered_and_bounded<F: Fixture>() {
    let fixture = F::new();
    let kv = fixture.kv();
    kv.apply(&batch(&[("b", Some("2")), ("d", Some("4"))])).unwrap();
    kv.flush().unwrap();
    kv.apply(&batch(&[("a", Some("1")), ("c", Some("3")), ("b\0", Some("2.5"))])).unwrap();
    let keys = |from: &str, to: Option<&str>| -> Vec<String> {
        rows(kv, from.as_bytes(), to.map(str::as_bytes))
            .into_iter()
            .map(|(key, _)| String::from_utf8(key).unwrap())
            .collect()
    };
    assert_eq!(keys("", None), ["a", "b", "b\0", "c", "d"]);
    assert_eq!(keys("b", Some("d")), ["b", "b\0", "c"]);
    assert_eq!(keys("b\0", Some("b\0\0")), ["b\0"]);
    assert_eq!(keys("e", None), [""; 0]);
    assert_eq!(keys("c", Some("c")), [""; 0]);
    assert_eq!(keys("d", Some("a")), [""; 0]);
    let mut seen = 0;
    kv.scan(b"", None, &mut |_, _| {
        seen += 1;
        if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!(seen, 2);
}

fn snapshots_stay_as_they_were<F: Fixture>() {
    let fixture = F::new();
    let kv = fixture.kv();
    kv.apply(&batch(&[("a", Some("1")), ("b", Some("1"))])).unwrap();
    let old = kv.snapshot().unwrap();
    kv.apply(&batch(&[("a", Some("2")), ("b", None), ("c", Some("2"))])).unwrap();
    kv.flush().unwrap();
    let middle = kv.snapshot().unwrap();
    for round in 0..8 {
        let value = format!("{round}");
        kv.apply(&batch(&[("a", Some(&value)), ("z", Some(&value))])).unwrap();
        kv.flush().unwrap();
        while kv.maintain().unwrap() == larder_kv::Progress::Worked {}
    }
    assert_eq!(
        (get(&*old, "a"), get(&*old, "b"), get(&*old, "c")),
        (Some("1".into()), Some("1".into()), None)
    );
    assert_eq!(rows(&*old, b"", None).len(), 2);
    assert_eq!(
        rows(&*middle, b"", None),
        [(b"a".to_vec(), b"2".to_vec()), (b"c".to_vec(), b"2".to_vec())]
    );
    drop(old);
    drop(middle);
    assert_eq!(get(kv, "a"), Some("7".into()));
}

fn a_snapshot_gives_the_positions_of_what_it_shows<F: Fixture>() {
    let fixture = F::new();
    let put = |value: &str| {
        let mut batch = batch(&[("row", Some(value))]);
        batch.position(b"at", value.as_bytes());
        fixture.kv().apply(&batch).unwrap();
    };
    let shows = |reader: &dyn KvReader, value: Option<&str>| {
        for key in ["row", "at"] {
            assert_eq!(get(reader, key).as_deref(), value, "{key}");
        }
    };
    let mut taken = vec![(fixture.kv().snapshot().unwrap(), None)];
    for value in ["1", "2", "3", "4"] {
        put(value);
        taken.push((fixture.kv().snapshot().unwrap(), Some(value)));
        if value == "2" {
            fixture.kv().flush().unwrap();
            taken.push((fixture.kv().snapshot().unwrap(), Some(value)));
        }
    }
    for (reader, value) in taken {
        shows(&*reader, value);
    }
}

fn a_crash_returns_to_the_last_flush<F: Fixture>() {
    let mut fixture = F::new();
    fixture.kv().apply(&batch(&[("a", Some("1")), ("b", Some("1"))])).unwrap();
    assert!(fixture.kv().unflushed_bytes() > 0);
    assert!(fixture.kv().flush().unwrap().bytes > 0);
    assert_eq!(fixture.kv().unflushed_bytes(), 0);
    assert_eq!(fixture.kv().flush().unwrap().bytes, 0);
    assert!(fixture.kv().disk_bytes() > 0);
    fixture.kv().apply(&batch(&[("a", Some("2")), ("b", None), ("c", Some("2"))])).unwrap();
    fixture.crash();
    assert_eq!(
        rows(fixture.kv(), b"", None),
        [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"1".to_vec())]
    );
    // Changes after the crash must win over those before it.
    fixture.kv().apply(&batch(&[("a", Some("3")), ("b", None)])).unwrap();
    assert_eq!((get(fixture.kv(), "a"), get(fixture.kv(), "b")), (Some("3".into()), None));
    fixture.kv().flush().unwrap();
    fixture.crash();
    assert_eq!(rows(fixture.kv(), b"", None), [(b"a".to_vec(), b"3".to_vec())]);
}

fn a_reused_batch_changes_nothing_it_changed_before<F: Fixture>() {
    let fixture = F::new();
    let mut batch = Batch::new();
    batch.put(b"a", b"first");
    fixture.kv().apply(&batch).unwrap();
    let value = fixture.kv().get(b"a").unwrap().unwrap();
    batch.clear();
    batch.put(b"b", b"other");
    fixture.kv().apply(&batch).unwrap();
    assert_eq!((&value[..], get(fixture.kv(), "a")), (&b"first"[..], Some("first".into())));
}

macro_rules! on_both {
    ($($behaviour:ident),* $(,)?) => {
        mod real {
            $(#[test] fn $behaviour() { super::$behaviour::<super::Lsm>() })*
        }
        mod simulated {
            $(#[test] fn $behaviour() { super::$behaviour::<super::SimKv>() })*
        }
    };
}

on_both!(
    later_changes_win,
    scans_are_ordered_and_bounded,
    snapshots_stay_as_they_were,
    a_snapshot_gives_the_positions_of_what_it_shows,
    a_crash_returns_to_the_last_flush,
    a_reused_batch_changes_nothing_it_changed_before,
);

#[derive(Debug, Clone)]
enum Step {
    Apply(Vec<(u8, Option<u8>)>),
    Flush,
    Maintain,
    Snapshot,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec((0u8..12, prop::option::of(any::<u8>())), 1..5)
            .prop_map(Step::Apply),
        3 => Just(Step::Flush),
        2 => Just(Step::Maintain),
        2 => Just(Step::Snapshot),
        1 => Just(Step::Crash),
    ]
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn behaves_as_the_model<F: Fixture>(steps: &[Step]) {
    let mut fixture = F::new();
    let (mut live, mut durable) = (Model::new(), Model::new());
    let mut snapshots: Vec<(Box<dyn KvReader>, Model)> = Vec::new();
    for step in steps {
        match step {
            Step::Apply(changes) => {
                let mut batch = Batch::new();
                for (key, value) in changes {
                    let key = format!("key {key}").into_bytes();
                    if let Some(value) = value {
                        batch.put(&key, &[*value; 40]);
                        live.insert(key, vec![*value; 40]);
                    } else {
                        batch.delete(&key);
                        live.remove(&key);
                    }
                }
                fixture.kv().apply(&batch).unwrap();
            }
            Step::Flush => {
                fixture.kv().flush().unwrap();
                durable.clone_from(&live);
            }
            Step::Maintain => {
                fixture.kv().maintain().unwrap();
            }
            Step::Snapshot => {
                snapshots.push((fixture.kv().snapshot().unwrap(), live.clone()));
            }
            Step::Crash => {
                snapshots.clear();
                fixture.crash();
                live.clone_from(&durable);
            }
        }
        assert_eq!(rows(fixture.kv(), b"", None), live.clone().into_iter().collect::<Rows>());
        for (reader, model) in &snapshots {
            assert_eq!(rows(&**reader, b"", None), model.clone().into_iter().collect::<Rows>());
            for key in (0..12).map(|key| format!("key {key}").into_bytes()) {
                assert_eq!(reader.get(&key).unwrap().as_deref(), model.get(&key).map(|v| &v[..]));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn both_behave_as_the_model(steps in prop::collection::vec(step(), 1..40)) {
        behaves_as_the_model::<Lsm>(&steps);
        behaves_as_the_model::<SimKv>(&steps);
    }
}

#[test]
fn simulated_flushes_fail_as_told() {
    let kv = SimKv::new();
    let put = |value: &str| kv.apply(&batch(&[("a", Some(value))]));
    let broken = |result| matches!(result, Err(KvError::Broken { .. }));

    put("full").unwrap();
    kv.fail_next_flush(FlushFault::Full);
    assert!(matches!(kv.flush(), Err(KvError::Full { .. })));
    kv.flush().unwrap();

    put("not durable").unwrap();
    kv.fail_next_flush(FlushFault::FailBefore);
    assert!(broken(kv.flush()) && broken(kv.flush()), "a failed flush is never made up for");
    assert_eq!(get(&kv, "a").as_deref(), Some("not durable"), "reads go on");
    kv.crash();
    assert_eq!(get(&kv, "a").as_deref(), Some("full"));

    put("durable after all").unwrap();
    kv.fail_next_flush(FlushFault::FailAfter);
    assert!(broken(kv.flush()));
    kv.crash();
    assert_eq!(get(&kv, "a").as_deref(), Some("durable after all"));

    for (fault, left) in
        [(FlushFault::CrashBefore, "durable after all"), (FlushFault::CrashAfter, "next")]
    {
        put("next").unwrap();
        kv.fail_next_flush(fault);
        assert_eq!(kv.flush(), Err(KvError::PoweredOff));
        assert_eq!(kv.get(b"a"), Err(KvError::PoweredOff));
        assert_eq!(put("nobody"), Err(KvError::PoweredOff));
        kv.crash();
        assert_eq!(get(&kv, "a").as_deref(), Some(left));
    }
}

#[test]
fn simulated_rot_is_found_on_get_and_scan() {
    let kv = SimKv::new();
    kv.apply(&batch(&[("a", Some("1")), ("b", Some("2"))])).unwrap();
    kv.flush().unwrap();
    assert!(kv.rot(b"b", 3) && !kv.rot(b"c", 3));
    assert_eq!(get(&kv, "a").as_deref(), Some("1"));
    let damaged = |result: Result<(), KvError>| matches!(result, Err(KvError::Damaged { key: Some(key), .. }) if key == "b");
    assert!(damaged(kv.get(b"b").map(|_| ())));
    assert!(damaged(kv.scan(b"", None, &mut |_, _| ControlFlow::Continue(()))));
    kv.crash();
    assert!(damaged(kv.get(b"b").map(|_| ())));
}
