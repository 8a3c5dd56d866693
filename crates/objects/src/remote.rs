//! Objects whose bytes another store has.

use std::ops::Range;

use futures::future::BoxFuture;

use crate::{ObjectError, ReadBody};

/// The bytes of a version that another store has.
pub trait Remote: std::fmt::Debug + Send + Sync {
    /// Reads bytes of it.
    ///
    /// # Errors
    /// [`ObjectError::Changed`] if it has been replaced there, [`ObjectError::Unavailable`] if it cannot be had from there now.
    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<ReadBody, ObjectError>>;
}
