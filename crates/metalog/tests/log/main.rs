//! A log on a simulated disk: what was synced survives, damage is told from a torn tail.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod damage;
mod durability;
mod harness;
#[cfg(feature = "planted-bugs")]
mod planted;
mod space;
