//! Faults planted on purpose, to prove that the simulation finds such. Only tests can plant any.

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A version is moved as it was read, though its key may have another by now.
    SwapWithoutCompare,
    /// A blob is removed before the backend has what was re-logged of it.
    RemoveBeforeUpload,
    /// Deletes of a blob that goes are not re-logged.
    DeletesNotRelocated,
    /// A backup is completed before the backend has the blobs that it names.
    BackupAheadOfBlobs,
    /// A rebuild reads blobs of a worker that it uploaded after it was superseded.
    TakeoverFenceNotKept,
    /// A blob counts as uploaded though an heir may have listed the blobs without it.
    OwnerReadOnce,
    /// A blob that another process judged void is adopted if it is the same as one that waits.
    AdoptedThoughVoid,
    /// A process does not close numbers before it that have no record.
    NumbersNotClosed,
    /// The number of the last process that began goes as others do.
    LastBegunForgotten,
    /// An heir knows only the first half of a worker's blobs.
    HalfInherited,
    /// A part may move in one group behind what ends the object that it is of.
    PartOutlives,
    /// Deletes are re-logged only for blobs, not for backups that are older.
    BackupsNotCounted,
    /// A second start after a rebuild takes blobs that were uploaded, but not logged as such, for ones that wait.
    RebuiltForgotten,
    /// A blob goes up before its bundles.
    BundleAfterBlob,
    /// Bytes that are removed from a bundle stay counted as live there, so that it is never
    /// repacked.
    BundleNotCounted,
    /// Bodies in another worker's bundle are looked for in the bucket, also while it waits to be uploaded.
    BundleNotAwaited,
    /// A worker gives others bytes of the blob that waits in place of those of its bundle.
    BundleNotAnnounced,
    /// A superseded version is given up before what another worker replaced it with is in the
    /// bucket.
    GivenUpEarly,
    /// A delete is forgotten though another worker may still have what it deleted.
    TombstoneForgottenEarly,
    /// Entries of another worker are shown before they are durable.
    ReceivedNotStored,
    /// A worker's clock does not follow those of the others.
    ClockNotFollowed,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault in all that runs on this thread, or removes it.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Returns true if this fault is planted.
#[cfg(test)]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Returns true if this fault is planted.
#[cfg(not(test))]
pub(crate) const fn planted(_bug: Bug) -> bool {
    false
}
