//! The model of a bucket's deletion: its bounds, the readings of the design that it can take, and what must hold.

/// Bounds of the model.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Bounds {
    /// Regions, at most three.
    #[arg(long, default_value_t = 3)]
    pub regions: usize,
    /// Deletions that clients ask for.
    #[arg(long, default_value_t = 1)]
    pub deletions: u8,
    /// Questions for names of buckets.
    #[arg(long, default_value_t = 1)]
    pub asks: u8,
    /// Objects that clients put.
    #[arg(long, default_value_t = 0)]
    pub puts: u8,
    /// An object may be purged.
    #[arg(long)]
    pub purges: bool,
    /// Closed buckets that are opened again as nobody ends their closing.
    #[arg(long, default_value_t = 1)]
    pub reopenings: u8,
    /// The last region joins somewhere on the way, through the first one.
    #[arg(long)]
    pub joins: bool,
}

/// The text of the design, or a weaker reading of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Variant {
    /// As the text stands.
    #[default]
    Safe,
    /// A region is asked to delete as soon as it has closed the bucket, whatever the others say.
    DeletesOneByOne,
    /// Regions are not asked once more when all have closed it.
    AskedOnce,
    /// The region that was asked does not look again whether its own bucket is closed.
    OwnIsNotConfirmed,
    /// A region deletes whatever bucket of that name is closed.
    DeletesByName,
    /// A region says that it has deleted what it closed, when another deletion has. Harmless since all are asked once more.
    GoneIsDeleted,
    /// An answer makes buckets, however long ago it was asked for.
    OldAnswersMake,
    /// A region that has no such bucket is not asked to stay without it. Harmless since all are asked once more.
    AbsentIsAskedOnce,
    /// Names of closed buckets are told, too.
    ClosedNamesTold,
    /// Objects of other regions are taken into a closed bucket.
    ClosedTakesObjects,
    /// An object is taken into a bucket that was closed and opened again since it was asked for.
    AnyEpochTakes,
    /// A bucket that a client deletes here is closed under that client's mark.
    ClientsMarkIsTaken,
    /// A region closes a bucket for one that does not know all regions.
    UnknownRegionsPass,
    /// The region that was asked deletes its own bucket first. Harmless: the client gets its answer
    /// only at the end.
    OwnFirst,
}

/// Properties of every state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// Once a client heard that the bucket is deleted, no region has it.
    DeletedStays,
    /// No bucket is deleted with an object in it.
    ObjectsStay,
    /// No region has a purged object without one that tells of the purge.
    PurgedStays,
}
