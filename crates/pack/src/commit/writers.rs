//! Writes the bodies of one group of changes: each unit into a file of its own, several at once. So
//! a group takes about as long as the slowest sync and not as all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use larder_env::{DiskError, DiskFile};

use crate::commit::spool::Spool;
use crate::format::upload_unit::UploadUnit;

/// Bodies of one unit.
#[derive(Debug)]
pub(crate) struct UnitWrite {
    /// The number of its blob.
    pub(crate) blob: u64,
    pub(crate) unit: UploadUnit,
    /// Where the first of them goes.
    pub(crate) offset: u64,
    pub(crate) pieces: Vec<Bytes>,
}

/// The units and files that one thread wrote.
type Written = Result<Vec<(UploadUnit, Arc<dyn DiskFile>)>, DiskError>;

/// Writes and syncs all of them, on so many threads at most; gives their files.
///
/// # Errors
/// As [`Spool::write`]. [`DiskError::Full`] only if nothing worse happened to any.
pub(crate) fn write_lots(
    spool: &Spool,
    units: Vec<UnitWrite>,
    threads: usize,
) -> Result<BTreeMap<UploadUnit, Arc<dyn DiskFile>>, DiskError> {
    let each = units.len().div_ceil(threads.max(1)).max(1);
    let some = |units: &[UnitWrite]| -> Written {
        let write = |write: &UnitWrite| {
            let file = spool.write(write.blob, write.unit, write.offset, &write.pieces)?;
            Ok((write.unit, file))
        };
        units.iter().map(write).collect()
    };
    let mut shares = units.chunks(each);
    // The usual case, of one unit, needs no other thread.
    let own = shares.next().unwrap_or_default();
    let written: Vec<Written> = std::thread::scope(|scope| {
        let some = &some;
        let others: Vec<_> = shares.map(|share| scope.spawn(move || some(share))).collect();
        let own = some(own);
        let join = |other: std::thread::ScopedJoinHandle<'_, Written>| match other.join() {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        std::iter::once(own).chain(others.into_iter().map(join)).collect()
    });
    let (mut files, mut full) = (BTreeMap::new(), None);
    for written in written {
        match written {
            Ok(some) => files.extend(some),
            Err(error @ DiskError::Full { .. }) => full = Some(error),
            Err(error) => return Err(error),
        }
    }
    full.map_or(Ok(files), Err)
}
