//! Random numbers for the tests of managers.

/// A seed, and how many numbers were drawn from it.
pub(super) struct CounterRng(pub(super) u64, pub(super) u64);

impl CounterRng {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.1 += 1;
        crate::placement::hash(self.0, &[self.1]) % bound
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
}
