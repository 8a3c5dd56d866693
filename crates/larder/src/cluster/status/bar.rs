//! Bars for people.

/// Characters of a bar.
const BAR: usize = 20;

/// A share as a bar. What is not all is never shown as 100 %.
pub(super) fn bar(done: usize, all: usize) -> String {
    let (filled, percent) = match all {
        0 => (BAR, 100),
        all => (done * BAR / all, done * 100 / all),
    };
    format!("[{}{}] {percent:>3} %", "#".repeat(filled), "-".repeat(BAR - filled))
}
