//! Breadth first through every state that a model can reach.
//!
//! # Invariants
//!
//! 1. A path that is reported is a shortest one; it is found again by doing its actions.
//! 2. `exhausted` means that every reachable state was looked at. Two states are taken for one only
//!    if their 64-bit fingerprints collide: with 10⁸ states a chance of 3 in 10,000 per run.
//!
//! No symmetry is used: servers differ by their index, so that a model cannot be wrong about what is
//! alike.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};

/// Something that must happen somewhere, and whether it has.
pub type Sometimes<State> = (&'static str, fn(&State) -> bool);

/// A state machine with all its choices.
pub trait Model {
    /// All there is at one moment.
    type State: Clone + Hash + Debug + 'static;
    /// One step of one party, with whatever chance decides in it.
    type Action: Copy + Debug;
    /// Properties that must hold in every state.
    type Property: Copy + PartialEq + Debug;

    /// Situations that some state must reach, so that no check passes because nothing happens.
    const SOMETIMES: &'static [Sometimes<Self::State>];

    /// Where everything begins.
    fn initial(&self) -> Self::State;

    /// Lists the actions that may happen next.
    fn actions(&self, state: &Self::State, out: &mut Vec<Self::Action>);

    /// Does one of those.
    fn apply(&self, state: &mut Self::State, action: Self::Action);

    /// The property that does not hold, if one does not.
    fn broken(&self, state: &Self::State) -> Option<Self::Property>;
}

/// The result of an exploration.
#[derive(Debug, Clone)]
pub struct Report<M: Model> {
    /// Different states seen.
    pub states: usize,
    /// Steps taken, those to states seen before included.
    pub steps: u64,
    /// Steps from the beginning to the farthest state looked at.
    pub depth: usize,
    /// The time it took.
    pub took: Duration,
    /// True if nothing is left to look at.
    pub exhausted: bool,
    /// The property that was broken and a shortest way there.
    pub violation: Option<(M::Property, Vec<M::Action>)>,
    /// The situations of [`Model::SOMETIMES`] that were reached.
    pub reached: Vec<(&'static str, bool)>,
}

/// Looks at states until none is left, one breaks a property, or `states_max` were seen.
///
/// # Panics
/// If the model's actions do not lead twice to the same states.
pub fn explore<M: Model>(model: &M, states_max: usize) -> Report<M> {
    let begun = Instant::now();
    let first = model.initial();
    let mut seen: Seen = HashMap::default();
    let mut reached = vec![false; M::SOMETIMES.len()];
    let mut actions = Vec::new();
    let (mut steps, mut depth) = (0, 0);
    let mut violation = model.broken(&first).map(|property| (property, fingerprint(&first)));
    seen.insert(fingerprint(&first), NONE);
    let mut frontier = vec![first];
    'levels: while violation.is_none() && !frontier.is_empty() && seen.len() < states_max {
        let mut next = Vec::new();
        for state in frontier.drain(..) {
            for (reached, (_, test)) in reached.iter_mut().zip(M::SOMETIMES) {
                *reached = *reached || test(&state);
            }
            let from = fingerprint(&state);
            model.actions(&state, &mut actions);
            for action in actions.drain(..) {
                let mut after = state.clone();
                model.apply(&mut after, action);
                steps += 1;
                let at = fingerprint(&after);
                if let std::collections::hash_map::Entry::Vacant(place) = seen.entry(at) {
                    place.insert(from);
                    if let Some(property) = model.broken(&after) {
                        violation = Some((property, at));
                        depth += 1;
                        break 'levels;
                    }
                    next.push(after);
                }
            }
        }
        frontier = next;
        depth += usize::from(!frontier.is_empty());
    }
    let names = M::SOMETIMES.iter().map(|(name, _)| *name);
    Report {
        states: seen.len(),
        steps,
        depth,
        took: begun.elapsed(),
        exhausted: violation.is_none() && frontier.is_empty(),
        violation: violation.map(|(property, at)| (property, way_to(model, &seen, at))),
        reached: names.zip(reached).collect(),
    }
}

fn way_to<M: Model>(model: &M, seen: &Seen, end: u64) -> Vec<M::Action> {
    let mut way: Vec<u64> =
        std::iter::successors(Some(end), |at| Some(seen[at]).filter(|from| *from != NONE))
            .collect();
    way.reverse();
    let mut state = model.initial();
    let mut actions = Vec::new();
    let step = |at: &u64| {
        model.actions(&state, &mut actions);
        for action in actions.drain(..) {
            let mut after = state.clone();
            model.apply(&mut after, action);
            if fingerprint(&after) == *at {
                state = after;
                return action;
            }
        }
        panic!("the way to a state can be gone again");
    };
    way[1..].iter().map(step).collect()
}

/// From each state's fingerprint to that of the state it was first reached from.
type Seen = HashMap<u64, u64, BuildHasherDefault<Taken>>;

/// Stands for "from nowhere".
const NONE: u64 = 0;

fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = Mixed::default();
    state.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Two lanes of multiply-and-fold over words of eight bytes.
#[derive(Default)]
struct Mixed(u64, u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word, 0x9e37_79b9_7f4a_7c15) ^ self.1;
        self.1 = self.1.rotate_left(23).wrapping_add(word ^ 0x5851_f42d_4c95_7f2d);
    }

    fn finish(&self) -> u64 {
        fold(self.0 ^ 0xd6e8_feb8_6659_fd93, self.1 | 1)
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Fingerprints are mixed already.
#[derive(Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are looked up");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
