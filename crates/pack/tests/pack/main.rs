//! A packed store, through the interface that faces use, over backends in memory that can fail.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backends;
mod backups;
mod copies;
mod crashes;
mod earlier;
mod embed;
mod missing;
mod objects;
mod owners;
mod policies;
mod processes;
mod reads;
mod repacking;
mod support;
mod uploads;
mod workers;
mod workers_losses;
mod workers_policies;
mod workers_uploads;
