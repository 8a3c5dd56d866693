//! The S3 face over the least store, asked by a client that knows nothing but HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client;
mod memory;

mod appends;
mod auth;
mod buckets;
mod characters;
mod checksums;
mod conditions;
mod copies;
mod forms;
mod lists;
mod objects;
mod serving;
mod settings;
mod uploads;
