//! One placement group, driven by hand: each test states an event and looks at the effects.

mod appends;
mod barriers;
mod digest;
mod doubt;
mod moves;
mod orphans;
mod puts;
mod reach;
mod refill;
mod scrub;
mod snapshots;
mod support;
mod tries;
mod views;
