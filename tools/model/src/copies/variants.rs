//! The model of copied directories: its bounds, the readings of the design that it can take, and what must hold.

/// The size of the model.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Bounds {
    /// Directories: the first, and copies.
    #[arg(long, default_value_t = 2)]
    pub directories: usize,
    /// Numbers that processes may take.
    #[arg(long, default_value_t = 3)]
    pub numbers: u8,
    /// Blobs that a directory makes.
    #[arg(long, default_value_t = 2)]
    pub blobs: u8,
    /// Processes that are killed, heirs included.
    #[arg(long, default_value_t = 2)]
    pub kills: u8,
    /// Directories that lose their log and index.
    #[arg(long, default_value_t = 0)]
    pub losses: u8,
    /// True if another worker may take over.
    #[arg(long)]
    pub heir: bool,
}

/// The text of the design, or a weaker reading of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Variant {
    /// As the text stands.
    #[default]
    Safe,
    /// A process closes no number.
    NumbersNotClosed,
    /// A blob is adopted though a record says that it is void.
    AdoptsVoid,
    /// A blob is adopted from the process right before only, and uploaded again otherwise.
    AdoptsFromTheLastOnly,
    /// A blob that is not of the process right before is unknown, though it is the same.
    KnowsFromTheLastOnly,
    /// A blob counts as uploaded once it is there.
    NoLookAfterUpload,
    /// Where a process begins is decided by the list that it made before it had a number.
    DecidesBeforeNumbered,
    /// The directory keeps the draw of a process for its number, and copies have it too.
    DrawnByDirectory,
    /// A reader does not look for numbers without a record.
    ReaderIgnoresNumbers,
    /// A reader does not look for claims.
    ReaderIgnoresClaims,
    /// A reader reads numbers and records first, and lists blobs after that.
    ReaderListsLast,
    /// A reader leaves out the last blob of each process that has a number without a record after it, and all behind.
    ReaderDoubtsEachLast,
    /// A reader doubts what an heir has decided.
    ReaderDoubtsTakeoverFence,
    /// An heir closes no number.
    HeirDoesNotClose,
    /// An heir lists before it closes numbers.
    HeirListsFirst,
    /// A process does not ask for the owner before it writes its record.
    RecordsUnasked,
    /// A process does not look for claims after an upload.
    NoOwnerAfterUpload,
}

/// The properties that must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// A blob that was acknowledged, or recorded as uploaded, is there and counts, with what the directory has in it.
    UploadedCounts,
    /// A blob that a reader accepted counts.
    AcceptedCounts,
    /// No two blobs of one number in the worker's order count.
    OneCounts,
    /// The process that may upload knows every blob that counts.
    OwnerKnows,
    /// There is a directory that would not be refused.
    SomeMayStart,
    /// A reader leaves out at most one blob that was acknowledged, and none if an heir has decided.
    ReadersHaveAll,
}
