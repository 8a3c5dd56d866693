//! Verification of whole tables. A scan reads no filters, which a read of one row does.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use lsm_tree::AbstractTree;
use xxhash_rust::xxh3::Xxh3Default;

use super::LsmKv;
use crate::error::KvError;

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

impl LsmKv {
    /// Reads each table of the index whole, and compares it with the checksum of the time at which it was written. `goes_on`
    /// is asked before each: with false the rest is left out. Blocks for as long as that takes.
    ///
    /// # Errors
    /// [`KvError::Damaged`], which is [`LsmKv::damage`] from then on, or [`KvError::Broken`] if a table cannot be read.
    pub fn verify_tables(&self, goes_on: &dyn Fn() -> bool) -> Result<(), KvError> {
        let version = self.inner.tree.current_version();
        for table in version.iter_tables() {
            if !goes_on() {
                return Ok(());
            }
            let sum = sum_of(&table.path)
                .map_err(|error| self.inner.unread("verifies a table", None, error.into()))?;
            if sum != table.checksum().into_u128() {
                let reason = format!("{} is not what was written", table.path.display());
                let error = KvError::Damaged { key: None, reason };
                self.inner.note_damage(&error);
                return Err(error);
            }
        }
        Ok(())
    }
}

fn sum_of(path: &Path) -> io::Result<u128> {
    let (mut file, mut sum) = (File::open(path)?, Xxh3Default::new());
    let mut bytes = vec![0; READ_BYTES];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(sum.digest128()),
            read => sum.update(&bytes[..read]),
        }
    }
}
