//! A packed store, through the interface that faces use, over backends in memory that can fail.

mod backends;
mod crashes;
mod objects;
mod support;
mod uploads;
