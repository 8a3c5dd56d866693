//! Random numbers for the tests of the scheduler.

/// A seed, and how many numbers were drawn from it.
pub(super) struct CounterRng(pub(super) u64, pub(super) u64);

impl CounterRng {
    pub(super) fn next(&mut self) -> u64 {
        self.1 += 1;
        crate::placement::hash(self.0, &[self.1])
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
