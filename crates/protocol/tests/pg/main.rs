//! One placement group, driven by hand: each test states an event and looks at the effects.

mod appends;
mod digest;
mod doubt;
mod moves;
mod puts;
mod reach;
mod refill;
mod replays;
mod scrub;
mod snapshots;
mod support;
mod tries;
mod views;
