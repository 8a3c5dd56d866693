//! The budget of bytes a second that a region is asked for.

/// Bytes that may be asked for: they grow with time, and the last entry may overdraw them.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_per_s: u64,
    /// Thousandths of a byte, so that no share of a short time is lost.
    left: i128,
    at_ms: u64,
}

impl Budget {
    /// Begins with the bytes of one second, the most that it holds.
    pub(super) fn new(now_ms: u64, bytes_per_s: u64) -> Self {
        Self { bytes_per_s, left: i128::from(bytes_per_s) * 1000, at_ms: now_ms }
    }

    /// Whole bytes that may be asked for now, at least 1 if there are any.
    pub(super) fn left(&mut self, now_ms: u64) -> u64 {
        let passed = i128::from(now_ms.saturating_sub(self.at_ms));
        let rate = i128::from(self.bytes_per_s);
        self.left = (self.left + passed * rate).min(rate * 1000);
        self.at_ms = self.at_ms.max(now_ms);
        u64::try_from((self.left + 999) / 1000).unwrap_or(0)
    }

    pub(super) fn take(&mut self, bytes: u64) {
        self.left -= i128::from(bytes) * 1000;
    }

    /// Bytes that were taken did not come.
    pub(super) fn give_back(&mut self, bytes: u64) {
        let most = i128::from(self.bytes_per_s) * 1000;
        self.left = (self.left + i128::from(bytes) * 1000).min(most);
    }
}
