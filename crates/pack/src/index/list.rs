//! Lists: one scan for a page, of an index that shows all that was answered.

use std::ops::ControlFlow;

use larder_objects::{ListPage, ObjectError, Page, ScanStep};
use larder_types::{ObjectKey, UploadId};

use crate::error::{unavailable, unread};
use crate::index::Index;

/// Fills a page.
///
/// # Errors
/// [`ObjectError::Unavailable`] if the index cannot be read.
pub(crate) fn fill<T>(
    index: &Index,
    mut page: Page<'_, T>,
    after_upload: Option<UploadId>,
    decode: impl Fn(ObjectKey, &[u8]) -> Option<T>,
) -> Result<ListPage<T>, ObjectError> {
    let (mut from, to) = (page.from(after_upload), page.to());
    let mut goes_on = page.wanted() > 0;
    // A scan visits row by row; to skip a group it begins anew behind it.
    while goes_on {
        goes_on = false;
        let scanned = index.scan(&from.clone(), to.as_deref(), &mut |row, value| {
            match page.add(row, value, &decode) {
                ScanStep::Next => return ControlFlow::Continue(()),
                ScanStep::Seek(to) => (from, goes_on) = (to, true),
                ScanStep::Stop => {}
            }
            ControlFlow::Break(())
        });
        scanned.map_err(unread)?;
    }
    page.finish().ok_or_else(|| unavailable("the index holds a row that cannot be used"))
}
