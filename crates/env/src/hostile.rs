//! Bytes as others may have made them: good ones that a few things happened to. For tests of what reads bytes.
//!
//! `LARDER_FUZZ_SECONDS` sets how long the tests that draw from here run, `LARDER_FUZZ_SEED` where they begin.

use std::iter::repeat_n;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::SeededRng;

/// Panics of this process, since one was asked for.
static PANICS: AtomicU64 = AtomicU64::new(0);
static COUNTED: Once = Once::new();

/// Panics so far, of tasks and threads too: those of a test are caught by its runtime, and end a release.
pub fn panics() -> u64 {
    COUNTED.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            previous(panic);
        }));
    });
    PANICS.load(Ordering::Relaxed)
}

/// One of these values with bits turned, its end cut, the tail of another, or lengths and numbers that are none.
///
/// # Panics
/// If there are no values, or empty ones among them.
pub fn spoiled(draw: &mut SeededRng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = pick(draw, corpus).clone();
    for _ in 0..draw.below(4) {
        let at = below(draw, bytes.len().max(1));
        match draw.below(7) {
            0 => bytes.truncate(at),
            1 => {
                let other = pick(draw, corpus);
                let from = below(draw, other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            // A length in pieces of seven bits.
            2 => {
                let len = below(draw, 10) + 1;
                bytes.splice(at..at, repeat_n(0xff, len).chain([0x01]));
            }
            // A fixed number of all ones, or nearly.
            3 => bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = 0xff),
            4 if !bytes.is_empty() => bytes[at] = draw.next_u64() as u8,
            _ if !bytes.is_empty() => bytes[at] ^= 1 << draw.below(8),
            _ => {}
        }
    }
    bytes
}

fn pick<'a, T>(draw: &mut SeededRng, from: &'a [T]) -> &'a T {
    &from[below(draw, from.len())]
}

fn below(draw: &mut SeededRng, bound: usize) -> usize {
    draw.below(bound as u64) as usize
}

/// So many rounds, or as many as the time that was asked for allows, each with draws of its own. The first one's seed is
/// printed.
pub fn rounds(at_least: u64) -> impl Iterator<Item = SeededRng> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("LARDER_FUZZ_SECONDS");
    let elsewhere = seconds.map_or(0, |_| u64::from(std::process::id()) << 32);
    let first = number("LARDER_FUZZ_SEED").unwrap_or(elsewhere);
    println!("LARDER_FUZZ_SEED={first}");
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    let goes_on = move |seed: &u64| *seed < first + at_least || Instant::now() < until;
    (first..).take_while(goes_on).map(SeededRng::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_bytes_and_some_are_spoiled() {
        let corpus = [b"abcdefgh".to_vec(), b"0123".to_vec()];
        let of = |seed| spoiled(&mut SeededRng::new(seed), &corpus);
        let whole = (0..1000).filter(|seed| corpus.contains(&of(*seed))).count();
        assert!((100..900).contains(&whole), "{whole} of 1000 are as they were");
        assert!((0..1000).all(|seed| of(seed) == of(seed)));
    }
}
