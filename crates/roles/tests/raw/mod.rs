//! Bytes in place of messages, for servers whose certificates are good: golden messages of every service, with bits
//! turned, ends cut, tails of others and lengths that are none.
//!
//! `LARDER_FUZZ_SECONDS` sets how long the tests that draw from here run, `LARDER_FUZZ_SEED` where they begin.

use std::marker::PhantomData;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_net::{Role, Service};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const GOLDEN: &str = include_str!("../golden/roles.hex");
/// Rounds of a short run.
const ROUNDS: u64 = 300;

/// Panics of this process, since one was asked for.
static PANICS: AtomicU64 = AtomicU64::new(0);
static COUNTED: Once = Once::new();

/// Panics so far, of tasks and threads too: those of a test are caught by its runtime, and end a release.
pub fn panics() -> u64 {
    COUNTED.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            told(panic);
        }));
    });
    PANICS.load(Ordering::Relaxed)
}

/// What is sent as it is.
pub struct Raw(pub Vec<u8>);

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // A tuple has no length of its own on the wire.
        let mut tuple = to.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // An answer says nothing here.
        <() as Deserialize>::deserialize(from).map(|()| Self(Vec::new()))
    }
}

/// The service of a real one's role, spoken in bytes.
pub struct InBytes<S>(PhantomData<S>);

impl<S: Service> Service for InBytes<S> {
    const ROLE: Role = S::ROLE;
    type Request = Raw;
    type Answer = Raw;
    type Message = Raw;
}

/// Numbers from a seed: splitmix64.
pub struct Draw(u64);

impl Draw {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// A golden message that a few things happened to.
    pub fn frame(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = corpus[self.below(corpus.len())].clone();
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len());
            match self.below(6) {
                0 => bytes.truncate(at),
                1 => {
                    let other = &corpus[self.below(corpus.len())];
                    let from = self.below(other.len());
                    bytes.truncate(at);
                    bytes.extend(&other[from..]);
                }
                2 => {
                    let len = self.below(10) + 1;
                    bytes.splice(at..at, std::iter::repeat_n(0xff, len).chain([0x01]));
                }
                3 if !bytes.is_empty() => bytes[at] = self.next() as u8,
                _ if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                _ => {}
            }
        }
        bytes
    }
}

/// Golden messages, without the byte of the version.
pub fn corpus() -> Vec<Vec<u8>> {
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).expect("hex");
        u8::from_str_radix(text, 16).expect("hex")
    };
    let line = |line: &str| line.as_bytes().chunks(2).map(byte).skip(1).collect::<Vec<u8>>();
    GOLDEN.lines().map(line).filter(|bytes| !bytes.is_empty()).collect()
}

/// Rounds to be run, each with draws of its own; the seed is printed before the first.
pub fn rounds() -> impl Iterator<Item = Draw> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("LARDER_FUZZ_SECONDS");
    let elsewhere = seconds.map_or(0, |_| u64::from(std::process::id()) << 32);
    let first = number("LARDER_FUZZ_SEED").unwrap_or(elsewhere);
    println!("LARDER_FUZZ_SEED={first}");
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    let goes_on = move |seed: &u64| *seed < first + ROUNDS || Instant::now() < until;
    (first..).take_while(goes_on).map(Draw)
}
