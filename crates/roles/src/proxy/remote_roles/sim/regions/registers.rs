//! Registers: keys of a bucket with a home that clients of all regions change under the condition that each
//! is as they saw it, while the home moves. One order explains all that they were answered, and what is
//! there in the end. A checker that others have written looks for it, `todc-utils`, by the search of Wing
//! and Gong as Horn and Kroening describe it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_objects::{ObjectError, Objects, PutOptions, ReplicationStatus};
use larder_types::{Condition, ETag, EtagList};
use parking_lot::Mutex;
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;
use tokio::time::{Instant, sleep, timeout};

use super::clients::{Body, CALL_MAX, Client, Sum, key_of, sum_of};
use super::locks::Locks;
use super::region::{PROXIES_OF_EACH, Region};
use crate::proxy::RegionAccess;

const REGISTERS: usize = 3;
/// Calls of one client.
const CALLS: u64 = 12;
/// Time for a look at another region: no tombstone is freed so soon.
const READ_DELAY_MAX: Duration = Duration::from_secs(5);
/// Times that the home is to move.
const MOVES: u64 = 5;
/// Calls on a register that are open at once, if it is judged: orders grow exponentially with them.
const OPEN_MAX: usize = 14;
/// Moment at which calls end that were not answered.
const NEVER: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// It was not as expected.
    Unmet,
    /// There was nothing, and something was expected.
    Absent,
    Unknown,
    /// It was read at the end, and is as expected.
    Shown,
}

/// A change of what was expected to something else.
#[derive(Debug, Clone, Copy)]
struct Call {
    register: usize,
    expected: Option<Sum>,
    new: Option<Sum>,
    outcome: Outcome,
    begun: u64,
    ended: u64,
}

/// The rules of a register.
struct Register;

impl Specification for Register {
    type State = Option<Sum>;
    type Operation = Call;

    fn init() -> Self::State {
        None
    }

    fn apply(call: &Call, state: &Self::State) -> (bool, Self::State) {
        let is_expected = call.expected == *state;
        match call.outcome {
            Outcome::Done => (is_expected, call.new),
            Outcome::Unmet => (!is_expected, *state),
            Outcome::Absent => (!is_expected && state.is_none(), *state),
            Outcome::Unknown => (true, if is_expected { call.new } else { *state }),
            Outcome::Shown => (is_expected, *state),
        }
    }
}

/// Counts over all registers.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) done: u64,
    pub(super) unmet: u64,
    pub(super) unknown: u64,
    /// Registers of which an order was looked for.
    pub(super) judged: u64,
    /// Versions that were said to be in all regions.
    pub(super) completed: u64,
}

/// See the module's head.
pub(super) struct Registers {
    locks: Arc<Locks>,
    calls: Mutex<Vec<Call>>,
    moment: AtomicU64,
    judged: AtomicU64,
    completed: AtomicU64,
}

impl Registers {
    pub(super) fn new(locks: Arc<Locks>) -> Arc<Self> {
        let (moment, judged, completed) = (AtomicU64::new(1), AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { locks, calls: Mutex::default(), moment, judged, completed })
    }

    fn moment(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::Relaxed)
    }

    /// Has a proxy of a region change registers.
    pub(super) async fn run_client(
        self: Arc<Self>,
        regions: Vec<Arc<Region>>,
        number: usize,
        at: usize,
    ) {
        let region = regions[number].clone();
        let client = self.locks.client(&region, at);
        for _ in 0..CALLS {
            let sim_rng = &region.sim_rng;
            sleep(sim_rng.ms(if sim_rng.one_in(4) { 6000 } else { 500 })).await;
            let register = sim_rng.below(REGISTERS as u64) as usize;
            // Its region's state may be an old one. Others tell what they did.
            let expected = match sim_rng.one_in(2) {
                true => client.get(register).await.map(|it| it.map(|it| sum_of(&it.etag))),
                false => Some(self.last(register)),
            };
            if let Some(expected) = expected {
                self.change(&client, register, expected).await;
            }
            if sim_rng.one_in(2) {
                self.look(&regions, &client, register).await;
            }
        }
    }

    /// Finds a version that is said to be in all regions, and that one of them lacks.
    async fn look(&self, regions: &[Arc<Region>], client: &Client, register: usize) {
        let (bucket, key) = (self.locks.bucket(), key_of(register));
        let seen = client.at(async |proxy| {
            let opened = proxy.open(bucket, &key).await.ok()?;
            let seen = proxy.replication(bucket, &opened).await.ok()??;
            (seen.status == ReplicationStatus::Completed).then_some(opened.metax)
        });
        let Some(metax) = seen.await.flatten() else { return };
        self.completed.fetch_add(1, Ordering::Relaxed);
        let at = metax.stamp().qualified_by(client.region.number);
        for region in regions.iter().filter(|it| it.number != client.region.number) {
            let other = self.locks.client(region, 0);
            let latest = other.at(async |proxy| {
                let id = proxy.bucket(bucket).ok()?.id;
                let deadline = Instant::now() + READ_DELAY_MAX;
                let kept = proxy.access.kept(&[(id, key.clone())], deadline).await.pop()??;
                Some(kept.latest(region.number))
            });
            if let Some(latest) = latest.await.flatten()
                && latest < Some(at)
            {
                let region = region.number;
                client.violated(&format!(
                    "register {register} of {at:?} is in all regions, and {region} has {latest:?}"
                ));
            }
        }
    }

    /// Orders now and then that another region becomes the home.
    pub(super) async fn move_about(self: Arc<Self>, regions: Vec<Arc<Region>>) {
        let sim_rng = regions[0].sim_rng.clone();
        for _ in 0..MOVES {
            sleep(sim_rng.ms(8_000)).await;
            self.locks.order(&regions[sim_rng.below(regions.len() as u64) as usize]);
        }
    }

    /// The change that was answered last.
    fn last(&self, register: usize) -> Option<Sum> {
        let calls = self.calls.lock();
        let done = |it: &&Call| it.register == register && it.outcome == Outcome::Done;
        calls.iter().rev().find(done).and_then(|it| it.new)
    }

    async fn change(&self, client: &Client, register: usize, expected: Option<Sum>) {
        let condition = match expected {
            Some(sum) => {
                let tags = EtagList::Of(vec![ETag::Md5(sum).text()]);
                Condition { if_match: Some(tags), ..Condition::default() }
            }
            None => Condition { if_none_match: Some(EtagList::Any), ..Condition::default() },
        };
        let (key, is_deleted) =
            (key_of(register), expected.is_some() && client.region.sim_rng.one_in(5));
        let (sum, bytes) = client.draw_content();
        let new = (!is_deleted).then_some(sum);
        let begun = self.moment();
        let changing = client.at(async |proxy| {
            if is_deleted {
                return proxy.delete(self.locks.bucket(), &key, condition).await;
            }
            let options = PutOptions { condition, ..PutOptions::default() };
            let body = Body { bytes: Some(bytes), sum };
            proxy.put(self.locks.bucket(), &key, options, body).await.map(drop)
        });
        let outcome = match timeout(CALL_MAX, changing).await {
            Ok(Some(Ok(()))) => Outcome::Done,
            Ok(Some(Err(ObjectError::PreconditionFailed))) => Outcome::Unmet,
            Ok(Some(Err(ObjectError::NoSuchKey))) => Outcome::Absent,
            Ok(_) => Outcome::Unknown,
            Err(_) => {
                client.violated("a change with a condition does not end");
                Outcome::Unknown
            }
        };
        let ended = if outcome == Outcome::Unknown { NEVER } else { self.moment() };
        let call = Call { register, expected, new, outcome, begun, ended };
        tracing::info!(region = %client.region.number, ?call, "a register is changed");
        self.calls.lock().push(call);
    }

    /// Says of which registers no order explains what was answered.
    pub(super) async fn judge(&self, regions: &[Arc<Region>]) {
        for register in 0..REGISTERS {
            let mut calls = self.calls.lock().clone();
            calls.retain(|it| it.register == register);
            for region in regions {
                for at in 0..PROXIES_OF_EACH {
                    let client = self.locks.client(region, at);
                    let Some(found) = client.get(register).await else {
                        client.violated(&format!("register {register} is not read"));
                        continue;
                    };
                    let expected = found.map(|metax| sum_of(&metax.etag));
                    let (begun, ended) = (self.moment(), self.moment());
                    let outcome = Outcome::Shown;
                    calls.push(Call { register, expected, new: expected, outcome, begun, ended });
                }
            }
            match is_explained(&calls) {
                Some(true) => drop(self.judged.fetch_add(1, Ordering::Relaxed)),
                Some(false) => {
                    calls.sort_unstable_by_key(|it| it.begun);
                    let what = format!("no order explains register {register}: {calls:#?}");
                    regions[0].world.violated(what);
                }
                None => {}
            }
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let calls = self.calls.lock();
        let count = |outcome| calls.iter().filter(|it| it.outcome == outcome).count() as u64;
        let (done, unmet) = (count(Outcome::Done), count(Outcome::Unmet) + count(Outcome::Absent));
        let judged = self.judged.load(Ordering::Relaxed);
        let completed = self.completed.load(Ordering::Relaxed);
        Counts { done, unmet, unknown: count(Outcome::Unknown), judged, completed }
    }
}

/// Returns true if one order explains a register's calls; `None` if too many are open at once.
fn is_explained(calls: &[Call]) -> Option<bool> {
    let begins = calls.iter().enumerate().map(|(call, it)| (it.begun, call, false));
    let ends = calls.iter().enumerate().map(|(call, it)| (it.ended, call, true));
    let mut moments: Vec<(u64, usize, bool)> = begins.chain(ends).collect();
    moments.sort_unstable();
    let mut open = 0_usize;
    let mut counts = moments.iter().map(|(.., is_end)| {
        open = if *is_end { open - 1 } else { open + 1 };
        open
    });
    if counts.any(|open| open > OPEN_MAX) {
        return None;
    }
    let action = |(_, call, is_end): (u64, usize, bool)| {
        let it = calls[call];
        (call, if is_end { Action::Response(it) } else { Action::Call(it) })
    };
    let actions: Vec<_> = moments.into_iter().map(action).collect();
    // It takes no empty history.
    Some(
        actions.is_empty()
            || WGLChecker::<Register>::is_linearizable(History::from_actions(actions)),
    )
}

#[test]
fn a_change_that_was_seen_and_is_gone_is_not_explained() {
    let sum = |byte: u8| Some([byte; 16]);
    let call = |expected, new, outcome, begun, ended| Call {
        register: 0,
        expected,
        new,
        outcome,
        begun,
        ended,
    };
    let one = call(None, sum(1), Outcome::Done, 1, 2);
    let two = call(sum(1), sum(2), Outcome::Done, 3, 4);
    let shown = |of, begun| call(of, of, Outcome::Shown, begun, begun + 1);
    assert_eq!(is_explained(&[one, two, shown(sum(2), 7)]), Some(true));
    assert_eq!(is_explained(&[one, two, shown(sum(1), 7)]), Some(false), "an update is lost");
    let twice = call(sum(1), sum(3), Outcome::Done, 5, 6);
    assert_eq!(is_explained(&[one, two, twice]), Some(false), "two have changed the same");
    let unmet = call(sum(1), sum(3), Outcome::Unmet, 5, 6);
    assert_eq!(is_explained(&[one, unmet]), Some(false), "it was as expected");
    let unknown = call(sum(1), sum(3), Outcome::Unknown, 3, NEVER);
    assert_eq!(is_explained(&[one, unknown, shown(sum(3), 7)]), Some(true));
    assert_eq!(is_explained(&[one, unknown, shown(sum(1), 7)]), Some(true));
}
