//! The calls that a seed's clients make, and its faults. Half of all seeds have the usual mix, the others a mix of their
//! own that leaves much out. So what is seldom in one is frequent in another (Groce et al., "Swarm testing", 2012).

use larder_env::SeededRng;

use crate::faults::{FAMILIES, FaultKind};

/// Kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Get,
    List,
    Delete,
    SetTags,
    Upload,
    PutStream,
    /// Of keys that are appended to; of others a put.
    Append,
    Put,
}

/// Kinds, and how often each is called in the usual mix.
const USUAL: [(CallKind, u64); 8] = [
    (CallKind::Get, 28),
    (CallKind::List, 6),
    (CallKind::Delete, 9),
    (CallKind::SetTags, 4),
    (CallKind::Upload, 5),
    (CallKind::PutStream, 6),
    (CallKind::Append, 28),
    (CallKind::Put, 14),
];
/// The factors by which a kind is called more often than usual in a mix of its own.
const TIMES: [u64; 4] = [0, 1, 1, 6];
/// Draws of a fault after which one comes that the seed leaves out.
const DRAWS_MAX: u32 = 100;

/// A seed's mix.
#[derive(Debug, Clone)]
pub(crate) struct Mix {
    calls: [u64; USUAL.len()],
    /// Families of faults that do not come.
    without: [bool; FAMILIES],
    pub(crate) is_usual: bool,
}

impl Mix {
    /// Of draws of its own, so that it says nothing of the rest of the seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = SeededRng::new(seed ^ 0x3A17);
        let mut mix = Self {
            calls: USUAL.map(|(_, times)| times),
            without: [false; FAMILIES],
            is_usual: true,
        };
        if rng.one_in(2) {
            return mix;
        }
        mix.is_usual = false;
        for (times, (kind, usual)) in mix.calls.iter_mut().zip(USUAL) {
            *times *= TIMES[rng.below(TIMES.len() as u64) as usize];
            if kind == CallKind::Put {
                // Without objects there is little to do.
                *times = (*times).max(usual);
            }
        }
        mix.without = mix.without.map(|_| rng.one_in(2));
        mix
    }

    pub(crate) fn draw_call(&self, rng: &mut SeededRng) -> CallKind {
        let mut drawn = rng.below(self.calls.iter().sum());
        for (times, (kind, _)) in self.calls.iter().zip(USUAL) {
            match drawn.checked_sub(*times) {
                Some(left) => drawn = left,
                None => return kind,
            }
        }
        CallKind::Put
    }

    /// A fault of those that `draw` gives and the mix has.
    pub(crate) fn draw_fault(&self, mut draw: impl FnMut() -> FaultKind) -> FaultKind {
        let mut drawn = draw();
        for _ in 0..DRAWS_MAX {
            if !self.without[drawn.family()] {
                break;
            }
            drawn = draw();
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_seeds_leave_out_what_others_have_and_all_put() {
        let mixes: Vec<Mix> = (0..200).map(Mix::draw).collect();
        for (at, (kind, _)) in USUAL.iter().enumerate() {
            let without = mixes.iter().filter(|mix| mix.calls[at] == 0).count();
            assert_eq!(without > 0, *kind != CallKind::Put, "{kind:?}: {without}");
        }
        for family in 0..FAMILIES {
            let without = mixes.iter().filter(|mix| mix.without[family]).count();
            assert!((20..80).contains(&without), "family {family}: {without}");
        }
        let usual = mixes.iter().filter(|mix| mix.is_usual).count();
        assert!((70..130).contains(&usual), "{usual}");
    }

    #[test]
    fn a_mix_draws_what_it_has() {
        let mut rng = SeededRng::new(1);
        for seed in 0..50 {
            let mix = Mix::draw(seed);
            for _ in 0..100 {
                let kind = mix.draw_call(&mut rng);
                let at = USUAL.iter().position(|(it, _)| *it == kind);
                assert!(at.is_some_and(|at| mix.calls[at] > 0), "{kind:?}");
            }
        }
    }
}
