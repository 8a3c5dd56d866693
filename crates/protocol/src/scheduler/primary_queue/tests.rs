//! The three machines together.

use super::*;
use crate::scheduler::counter_rng::CounterRng;
use crate::scheduler::merge::Kind;

const LENGTH_US: u64 = 500;
const LOOK_UP: Kind = Kind::LookUp { version: None };

type Outbox = Vec<Effect<u8, u32>>;

struct Primary {
    front: PrimaryQueue<u8, u32>,
    now_us: u64,
    /// Groups under way, with the key and whether they change it.
    begun: BTreeMap<u64, Group<u8, u32>>,
    wakes_us: Option<u64>,
}

impl Primary {
    fn new(loaded_from: usize) -> Self {
        let front = PrimaryQueue::new(Window::new(LENGTH_US, loaded_from), ReadWrite::Passes);
        Self { front, now_us: 0, begun: BTreeMap::new(), wakes_us: None }
    }

    fn perform(&mut self, outbox: Outbox) -> Vec<Vec<u32>> {
        let mut began = Vec::new();
        for effect in outbox {
            match effect {
                Effect::WakeAt(at_us) => self.wakes_us = Some(at_us),
                Effect::Begin(number, group) => {
                    began.push(group.members.clone());
                    assert!(self.begun.insert(number, group).is_none(), "each begins once");
                }
            }
        }
        began
    }

    fn ask(&mut self, key: u8, token: u32, kind: Kind) -> Vec<Vec<u32>> {
        let mut outbox = Vec::new();
        self.front
            .arrived(self.now_us, key, token, QueuedRequest::plain(kind), &mut outbox)
            .unwrap();
        self.perform(outbox)
    }

    fn at(&mut self, now_us: u64) -> Vec<Vec<u32>> {
        let mut outbox = Vec::new();
        self.now_us = now_us;
        self.front.due(now_us, &mut outbox);
        self.perform(outbox)
    }

    /// The group of this request ends.
    fn end(&mut self, token: u32) -> Vec<Vec<u32>> {
        let mut found = self.begun.iter().filter(|(_, group)| group.members.contains(&token));
        let number = *found.next().expect("it is under way").0;
        self.begun.remove(&number);
        let mut outbox = Vec::new();
        self.front.ended(self.now_us, number, &mut outbox);
        self.perform(outbox)
    }
}

#[test]
fn one_in_flight_goes_at_once_and_wakes_nobody() {
    let mut primary = Primary::new(1);
    for token in 0..10 {
        assert_eq!(primary.ask(0, token, LOOK_UP), [[token]]);
        assert!(primary.end(token).is_empty());
    }
    assert_eq!(primary.wakes_us, None);
}

#[test]
fn under_load_equal_look_ups_begin_as_one_when_the_window_closes() {
    let mut primary = Primary::new(1);
    primary.ask(0, 0, LOOK_UP);
    assert!(primary.ask(1, 1, LOOK_UP).is_empty());
    assert!(primary.ask(1, 2, LOOK_UP).is_empty());
    assert_eq!(primary.wakes_us, Some(LENGTH_US));
    assert!(primary.at(LENGTH_US - 1).is_empty());
    assert_eq!(primary.at(LENGTH_US), [[1, 2]]);
    assert_eq!(primary.front.under_way(), 3);
}

#[test]
fn a_window_closes_when_nothing_is_under_way_any_more() {
    let mut primary = Primary::new(1);
    primary.ask(0, 0, LOOK_UP);
    assert!(primary.ask(1, 1, LOOK_UP).is_empty());
    assert_eq!(primary.end(0), [[1]]);
}

#[test]
fn a_look_up_waits_for_the_put_before_it_and_not_for_the_one_after() {
    let mut primary = Primary::new(4);
    assert_eq!(primary.ask(0, 0, Kind::InlinePut), [[0]]);
    assert!(primary.ask(0, 1, LOOK_UP).is_empty());
    assert!(primary.ask(0, 2, Kind::InlinePut).is_empty());
    assert_eq!(primary.end(0), [[1], [2]], "the second put passes the look-up");
}

#[test]
fn a_window_that_is_full_closes() {
    let mut primary = Primary::new(1);
    primary.ask(0, 0, LOOK_UP);
    let last = WINDOW_REQUESTS_MAX as u32;
    assert!((1..last).all(|token| primary.ask(1, token, LOOK_UP).is_empty()));
    assert_eq!(primary.ask(1, last, LOOK_UP), [(1..=last).collect::<Vec<_>>()]);
}

#[test]
fn requests_are_turned_away_when_as_many_wait_as_may() {
    let mut primary = Primary::new(usize::MAX);
    primary.ask(0, 0, Kind::OtherChange);
    for token in 1..=DEPENDENT_REQUESTS_MAX as u32 {
        assert!(primary.ask(0, token, LOOK_UP).is_empty());
    }
    let mut outbox = Vec::new();
    let refused = primary.front.arrived(0, 1, u32::MAX, QueuedRequest::plain(LOOK_UP), &mut outbox);
    assert_eq!((refused, outbox.len()), (Err(Full), 0));
    assert_eq!(primary.end(0).len(), DEPENDENT_REQUESTS_MAX);
    assert_eq!(primary.ask(1, u32::MAX, LOOK_UP), [[u32::MAX]]);
}

/// Random requests, each of which takes a random time: all begin once. A look-up finds the put that was finished last
/// when it came, or one that came before it, and never an older one.
#[test]
fn look_ups_find_what_was_finished_when_they_came() {
    for seed in 0..300 {
        let mut rng = CounterRng(seed, 0);
        let mut primary = Primary::new(1 + rng.below(8) as usize);
        // By key: the put that takes effect, and by look-up: the least that it may find.
        let (mut effective, mut least) = ([0_u32; 3], BTreeMap::new());
        let mut found = BTreeMap::new();
        let mut next = 1;
        while next < 200 || primary.front.under_way() > 0 {
            let now_us = primary.now_us + rng.below(200);
            primary.at(now_us);
            if next < 200 && rng.below(2) == 0 {
                let key = rng.below(3) as u8;
                let kind = if rng.below(3) == 0 { Kind::InlinePut } else { LOOK_UP };
                if kind == LOOK_UP {
                    least.insert(next, effective[usize::from(key)]);
                }
                primary.ask(key, next, kind);
                next += 1;
            }
            for group in primary.begun.values().filter(|group| !group.is_change()) {
                for member in &group.members {
                    found.entry(*member).or_insert(effective[usize::from(group.key)]);
                }
            }
            let begun: Vec<u32> = primary.begun.values().map(|it| it.members[0]).collect();
            if !begun.is_empty() && rng.below(2) == 0 {
                let first = begun[rng.below(begun.len() as u64) as usize];
                let mut groups = primary.begun.values();
                let group = groups.find(|it| it.members[0] == first).unwrap();
                if group.is_change() {
                    effective[usize::from(group.key)] = group.acting();
                }
                // A request that begins now finds it.
                primary.end(first);
            }
            if next == 200 {
                primary.at(primary.now_us + LENGTH_US);
            }
        }
        assert_eq!(found.len(), least.len(), "seed {seed}: all look-ups have begun");
        for (look_up, least) in least {
            assert!(found[&look_up] >= least, "seed {seed}: {look_up} finds what was overwritten");
        }
    }
}
