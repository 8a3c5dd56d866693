//! One placement group, driven by hand: each test states an event and looks at the effects. And what
//! servers of the cluster may do to each other, managers too, if one is in other hands (`hostile`).

mod appends;
mod barriers;
mod busy;
mod coalesce;
mod counts;
mod digest;
mod doubt;
mod early;
mod gaps;
mod garbage;
mod grown;
mod hostile;
mod long;
mod moves;
mod orphans;
mod puts;
mod reach;
mod refill;
mod remote_change;
mod replays;
mod rotten;
mod scrub;
mod sessions;
mod snapshots;
mod support;
mod tries;
mod unreachable;
mod validation;
mod views;
