//! Members among servers whose certificates are good and whose words are not. What they say goes through the same door
//! as in production, and whatever gets through must not end the member.
//!
//! `LARDER_FUZZ_SECONDS` sets how long it runs, `LARDER_FUZZ_SEED` repeats one case.

pub mod draw;
mod managers;
mod remote_change;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use larder_protocol::manager::state::MapVersion;
use larder_protocol::pg::Role;
use larder_protocol::{Effect, Event, LvInfo, PeerMessage};
use larder_types::codec::{decode, encode};
use larder_types::{RegionId, ServerId, SessionId, View};

use crate::support::{LV, LV_BLOCKS, Member, info};
use draw::Draw;

/// Counts of hostile events, by their results.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    cases: u64,
    refused: u64,
    stepped: u64,
    halted: u64,
}

/// A member, and what it is doing when the others turn on it.
fn member(draw: &mut Draw) -> Member {
    let member = member_alone(draw);
    if draw.one_in(2) {
        member.table.1.set(RegionId(1));
    }
    member
}

fn member_alone(draw: &mut Draw) -> Member {
    match draw.below(5) {
        0 => Member::alone(2),
        1 => {
            let mut member = Member::alone(2);
            member.store("a", 3, 2);
            member.put_data("b", 2);
            member
        }
        2 => {
            let mut member = Member::new(1);
            member.begin(3, &[1, 2]);
            member
        }
        3 => {
            let mut member = Member::new(1);
            member.step(Event::Learn { view: View(3), primary: ServerId(2) });
            member
        }
        _ => {
            let mut member = Member::new(1);
            member.begin(3, &[2, 1]);
            member
        }
    }
}

/// Turns bits of an encoded message, cuts it, or joins two.
fn turned(draw: &mut Draw, message: &PeerMessage, other: &PeerMessage) -> Vec<u8> {
    let mut bytes = encode(message);
    match draw.below(6) {
        0 => {
            let at = draw.below(bytes.len() as u64) as usize;
            let tail = encode(other);
            let from = draw.below(tail.len() as u64) as usize;
            bytes.truncate(at);
            bytes.extend(&tail[from..]);
        }
        1 => bytes.truncate(draw.below(bytes.len() as u64) as usize),
        2 => {
            // A length of all ones.
            let at = draw.below(bytes.len() as u64) as usize;
            let bomb = [0xff, 0xff, 0xff, 0xff, 0x0f];
            bytes.splice(at..=at, bomb);
        }
        _ => {
            for _ in 0..=draw.below(3) {
                let at = draw.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << draw.below(8);
            }
        }
    }
    bytes
}

fn hear(member: &mut Member, draw: &mut Draw, from: ServerId, tally: &mut Tally) {
    let taking = member.taking;
    let mut message = draw.message(&member.pg, taking);
    let mut bytes = encode(&message);
    if draw.one_in(4) {
        let other = draw.message(&member.pg, taking);
        bytes = turned(draw, &message, &other);
        match decode("message of a member", &bytes) {
            Ok(decoded) => message = decoded,
            Err(_) => return,
        }
    }
    if member.pg.admits(&message, bytes.len()).is_err() {
        tally.refused += 1;
        return;
    }
    tally.stepped += 1;
    if let PeerMessage::Snapshot { header, .. } = &message {
        member.taking = Some(header.at);
    }
    member.step(Event::Peer { from, message });
}

fn act(member: &mut Member, draw: &mut Draw, tally: &mut Tally) {
    match draw.below(16) {
        0..=6 => {
            let from = ServerId(2 + draw.below(3) as u32 % 3);
            hear(member, draw, from, tally);
        }
        7 | 8 => {
            let call = draw.call(&member.pg);
            if member.pg.admits_call(&call).is_err() {
                tally.refused += 1;
                return;
            }
            tally.stepped += 1;
            member.call(call);
        }
        9 => {
            let answer = draw.data_answer(&member.pg);
            let replica = draw.below(2) as usize;
            member.answer(replica, answer);
        }
        10 => {
            let replicas = draw.num(2).min(20) as usize;
            let blocks = draw.num(u64::from(LV_BLOCKS)) as u32;
            let lv = LvInfo { blocks, as_of: MapVersion(draw.num(2)), ..info(replicas) };
            if member.pg.admits_lv(&lv).is_ok() {
                member.step(Event::Lv(lv));
            }
        }
        11 => {
            let replica = draw.num(1) as usize;
            let (order, is_lost) = (MapVersion(draw.num(1)), draw.one_in(2));
            member.step(Event::Vacate {
                lv: LV,
                replica,
                order,
                is_lost,
                away: larder_types::Holders::default(),
            });
        }
        12 => {
            let (session, floor) = (SessionId(draw.below(3)), draw.num(2));
            member.step(Event::Floor { session, floor });
        }
        13 => {
            member.now_ms += draw.below(70_000);
            member.step(Event::Tick);
        }
        14 => {
            member.flush();
            member.sync();
        }
        _ => {
            member.sync();
            member.apply();
        }
    }
}

fn case(seed: u64, tally: &mut Tally) {
    let mut draw = Draw::new(seed);
    let mut member = member(&mut draw);
    for _ in 0..10 + draw.below(60) {
        act(&mut member, &mut draw, tally);
        member.effects.retain(|effect| matches!(effect, Effect::FlushIndex(_)));
        if draw.one_in(40) {
            let view = member.pg.view().0.saturating_add(1);
            member.begin(view, if draw.one_in(2) { &[1, 2] } else { &[2, 1] });
        }
        if member.pg.role() == Role::Halted {
            tally.halted += 1;
            return;
        }
    }
    if member.pg.role() == Role::Serving {
        serves_on(&mut member);
    }
    // It can begin again with what it has logged.
    if member.taking.is_none() {
        member.sync();
        let pg = member.restart().pg;
        assert!(pg.applied() <= pg.last(), "nothing is applied that is not there");
    }
}

/// A request that is good is served.
fn serves_on(member: &mut Member) {
    let token = member.request_of(SessionId(77), "good");
    member.settle();
    let answers = member.answers(token);
    assert_eq!(answers.len(), 1, "a good request is answered: {answers:?}");
}

/// Runs cases one after the other: the same few at each run of the tests, others for as long as is wanted.
fn repeat(least: u64, case: fn(u64, &mut Tally)) -> Tally {
    let mut tally = Tally::default();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("LARDER_FUZZ_SEED") {
        case(seed, &mut tally);
        return tally;
    }
    let (begun, seconds) = (Instant::now(), number("LARDER_FUZZ_SECONDS"));
    let until = begun + Duration::from_secs(seconds.unwrap_or(0));
    let first = seconds.map_or(0, |_| u64::from(std::process::id()) << 32);
    let mut seed = first;
    while seed < first + least || Instant::now() < until {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(seed, &mut tally))) {
            eprintln!("LARDER_FUZZ_SEED={seed} repeats this");
            resume_unwind(panic);
        }
        tally.cases += 1;
        seed += 1;
    }
    println!("{tally:?} in {:?}", begun.elapsed());
    tally
}

#[test]
fn hostile_members_and_proxies_end_no_member() {
    let tally = repeat(3000, case);
    assert!(tally.stepped > tally.cases, "much gets past the door: {tally:?}");
    assert!(tally.refused >= tally.cases, "much does not: {tally:?}");
}
