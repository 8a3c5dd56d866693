//! The S3 face over the least store, asked by a client that knows nothing but HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admitted;
mod appends;
mod auth;
mod buckets;
mod characters;
mod checksums;
mod client;
mod conditions;
mod copies;
mod cors;
mod documents;
mod drawn;
mod elements;
mod forms;
mod forwarding;
mod lists;
mod memory;
mod minio;
mod mutated;
mod objects;
mod refusals;
mod request_log;
mod serving;
mod settings;
mod signed;
mod spellings;
mod strangers;
mod uploads;
mod wire;
mod wrong_requests;
