//! The work that one walk leaves because it has found too much, and that a later one does it.

use larder_protocol::Call;
use larder_protocol::limits::{HOLDERS_WAITING_MAX, REFILLS_MAX, SUSPECTS_MAX};
use larder_types::LvId;

use super::*;

impl Member {
    /// Returns the number of these objects that have these holders.
    fn held_by(&self, names: &[String], holders: Holders) -> usize {
        names.iter().filter(|name| self.holders(name) == holders).count()
    }

    /// Notes what a walk has changed, and ends it.
    fn end_settled(&mut self, walk: &Walk) {
        self.end(walk);
        self.step(Event::Tick);
        self.settle();
    }
}

#[test]
fn copies_beyond_what_may_be_under_way_are_made_by_the_next_walk() {
    let mut pg = Member::alone(2);
    let names: Vec<String> = (0..REFILLS_MAX + 8).map(|number| format!("k{number}")).collect();
    for name in &names {
        pg.store(name, 1, 2);
    }
    pg.widen();
    for (made, all) in [(REFILLS_MAX, REFILLS_MAX), (8, names.len())] {
        let (refills, walk) = pg.walk(2);
        assert_eq!(refills.len(), made);
        assert!(pg.pg.wants_walk().is_none(), "copies are under way");
        refills.iter().for_each(|refill| pg.refilled(refill, true));
        pg.end_settled(&walk);
        assert_eq!(pg.held_by(&names, ALL), all);
        assert_eq!(pg.said(), [], "it is said after a walk that finds nothing");
    }
    let (refills, walk) = pg.walk(2);
    assert!(refills.is_empty());
    pg.end(&walk);
    assert_eq!(pg.said(), [REBUILT]);
}

#[test]
fn holders_beyond_what_may_wait_are_given_up_by_the_next_walk() {
    let mut pg = Member::alone(3);
    // The first volume has room for few.
    let large = LvId(LV.0 + 1);
    pg.step(Event::Lv(LvInfo { lv: large, blocks: 4096, ..info(3) }));
    for replica in 0..3 {
        pg.step(Event::Data { lv: large, replica, answer: DataAnswer::Floor(key(1, 0)) });
    }
    let more = 20;
    let mut names = Vec::new();
    while names.len() < HOLDERS_WAITING_MAX + more {
        let name = format!("k{}-{}", names.len(), pg.log.len());
        pg.store(&name, 1, 3);
        let larder_types::Body::Chunk(chunk) = pg.row(&name).expect("an object").body else {
            panic!("it has a chunk")
        };
        if chunk.lv == large {
            names.push(name);
        }
    }
    let (lv, order) = (large, MapVersion(5));
    pg.step(Event::Vacate {
        lv,
        replica: 0,
        order,
        is_lost: true,
        away: larder_types::Holders::default(),
    });
    for given_up in [HOLDERS_WAITING_MAX, names.len()] {
        let (refills, walk) = pg.walk(1);
        assert!(refills.is_empty(), "two copies can be read");
        assert!(pg.pg.wants_walk().is_none(), "what was given up is not noted yet");
        pg.end_settled(&walk);
        assert_eq!(pg.held_by(&names, Holders(0b110)), given_up);
        assert_eq!(pg.said(), [], "it is said after a walk that finds nothing");
    }
    let (_, walk) = pg.walk(1);
    pg.end(&walk);
    assert_eq!(pg.said(), [Effect::Vacated { lv, replica: 0, order }]);
}

#[test]
fn a_damaged_copy_too_many_is_mended_when_it_is_found_again() {
    let mut pg = Member::alone(3);
    let grant = pg.store("a", 1, 3);
    let suspect = |grant| Call::Suspect { grant, server: ServerId(1) };
    // Of what is not there any more.
    for attempt in 0..SUSPECTS_MAX as u32 {
        pg.call(suspect(Grant { attempt: attempt + 1, ..grant }));
    }
    pg.call(suspect(grant));
    assert!(!pg.pg.is_suspected(grant, ServerId(1)), "there is no room to remember it");
    let (refills, walk) = pg.walk(2);
    assert!(refills.is_empty());
    pg.end(&walk);
    pg.call(suspect(grant));
    assert!(pg.pg.is_suspected(grant, ServerId(1)), "the others are forgotten");
    let (refills, walk) = pg.walk(2);
    let [refill] = &refills[..] else { panic!("one copy is to be mended: {refills:?}") };
    assert_eq!((refill.chunk.grant, refill.from, refill.to), (grant, Holders(0b101), 1));
    pg.refilled(refill, true);
    pg.end_settled(&walk);
    assert!(!pg.pg.is_suspected(grant, ServerId(1)), "it is mended");
}
