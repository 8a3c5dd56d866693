//! A volume on a simulated disk: data, space, fencing, and every way to crash.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod crash;
mod fencing;
mod free;
mod reuse;
mod support;
mod volume;
