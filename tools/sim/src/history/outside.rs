//! The same question put to a checker that others have written: `todc-utils`, the search of Wing and Gong as Horn and
//! Kroening describe it. Both know from `after` what a call does; the search for an order, where this module's own takes
//! short cuts, is theirs alone.
//!
//! It tries calls without an answer everywhere and has no limit, so it is asked only of keys of which few calls are open at
//! once.

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

use super::{CallResult, Entry, Invocation, NEVER, Shown, after};

/// Calls that may be open at once, those that were never answered among them: orders grow exponentially with them.
const OPEN_MAX: usize = 10;
/// Calls of a key: what is kept grows with their square.
const CALLS_MAX: usize = 300;

/// One key.
struct Key;

impl Specification for Key {
    type State = Option<Shown>;
    type Operation = Entry;

    fn init() -> Self::State {
        None
    }

    fn apply(entry: &Entry, state: &Self::State) -> (bool, Self::State) {
        match after(entry, *state) {
            Some(next) => (true, next),
            // One that was not answered changes nothing where it would have been refused.
            None => (entry.answered == CallResult::Unknown, *state),
        }
    }
}

/// Calls that say or may do something: more than this module's own search takes, which leaves out what nobody saw.
fn relevant(entries: &[Entry]) -> Vec<Entry> {
    let says = |entry: &&Entry| {
        let is_lost = entry.answered == CallResult::Unknown && entry.asked == Invocation::Get;
        entry.answered != CallResult::Refused && !is_lost
    };
    entries.iter().filter(says).copied().collect()
}

/// True if it is asked of a key.
pub(super) fn judges(entries: &[Entry]) -> bool {
    let calls = relevant(entries);
    calls.len() <= CALLS_MAX && open_most(&moments_of(&calls)) <= OPEN_MAX
}

/// True if an order explains a key's calls; `None` if too many are open at once.
pub(super) fn is_explained(entries: &[Entry]) -> Option<bool> {
    let calls = relevant(entries);
    let moments = moments_of(&calls);
    if calls.len() > CALLS_MAX || open_most(&moments) > OPEN_MAX {
        return None;
    }
    let action = |(_, call, is_end): (u64, usize, bool)| {
        let entry = calls[call];
        (call, if is_end { Action::Response(entry) } else { Action::Call(entry) })
    };
    let actions: Vec<_> = moments.into_iter().map(action).collect();
    // It takes no empty history.
    Some(actions.is_empty() || WGLChecker::<Key>::is_linearizable(History::from_actions(actions)))
}

/// Begins and ends of calls, in their order.
fn moments_of(calls: &[Entry]) -> Vec<(u64, usize, bool)> {
    // Begins and ends have a moment each; calls that were never answered end behind all others, whose effects they may
    // have had before.
    let begins = calls.iter().enumerate().map(|(call, entry)| (entry.begun, call, false));
    let ends = calls.iter().enumerate().map(|(call, entry)| (entry.ended, call, true));
    let mut moments: Vec<(u64, usize, bool)> = begins.chain(ends).collect();
    moments.sort_unstable_by_key(|(moment, ..)| *moment);
    moments
}

/// The most calls that are open at once.
fn open_most(moments: &[(u64, usize, bool)]) -> usize {
    let mut open = 0;
    let before_end = moments.iter().filter(|(moment, ..)| *moment != NEVER);
    let counts = before_end.map(|(.., is_end)| {
        open = if *is_end { open - 1 } else { open + 1 };
        open
    });
    counts.max().unwrap_or(0)
}
