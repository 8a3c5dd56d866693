//! Exhaustively checked models of the protocol: every interleaving within small bounds.
//!
//! A model states what the design means, not what the code does: each module's head has a table that
//! leads from its actions to the code. Each has a list of weaker readings, of which the checker must
//! find a counter-example: that is what shows that the model can see. [`home`] alone steps the state machine that ships.

pub mod copies;
pub mod deletion;
pub mod explore;
pub mod home;
pub mod ids;
pub mod log;
pub mod put;
pub mod space;
