//! The model of the reuse of space: its bounds, the readings of the design that it can take, and what must hold.

/// The size of the model.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Bounds {
    /// Replicas of the LV.
    #[arg(long, default_value_t = 1)]
    pub replicas: usize,
    /// Puts, those of a replaced primary included.
    #[arg(long, default_value_t = 3)]
    pub puts: usize,
    /// Views.
    #[arg(long, default_value_t = 2)]
    pub views: u8,
    /// Restarts of data servers.
    #[arg(long, default_value_t = 1)]
    pub restarts: u8,
    /// Repair copies.
    #[arg(long, default_value_t = 0)]
    pub repairs: u8,
}

/// The text of the design, or a weaker reading of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Variant {
    /// As the text stands.
    #[default]
    Safe,
    /// A restart forgets view and floor.
    FloorInMemory,
    /// `Open` is answered while writes of older views are queued.
    OpenAnsweredBeforeDrain,
    /// A raise is answered while writes below it are queued.
    RaiseAnsweredBeforeDrain,
    /// An `Open` sets view and floor to what it says.
    OpenLowers,
    /// One replica's floor is enough.
    ReuseAfterOneFloor,
    /// A committed outcome frees at once.
    ReuseAfterOutcome,
    /// An outcome frees before it is below the commit point.
    UncommittedOutcomeFrees,
    /// An extent is free when the lowest floor *equals* the freeing op. Harmless: the floor is then above
    /// every grant of the extent.
    FloorAtTheFreeingOp,
    /// A primary grants before every replica has answered its `Open`.
    GrantsBeforeOpened,
    /// A new primary takes the extents of puts without an outcome for free.
    ForgetsPending,
    /// Writes are admitted after a restart without an `Open`, and view and floor are lost.
    OpenAfterRestart,
    /// Repair copies are written by no right at all.
    RepairsHoldNoGrant,
    /// An `Open` meant for an earlier run is accepted. Harmless to space while view and floor are durable.
    OpenOfAnyBoot,
    /// A floor is raised over open grants. Harmless: it refuses their writes as a void does, and they are resolved. The
    /// code does so where replicas remember no more voids.
    RaisesOverOpen,
}

/// The properties that must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// Each replica has the bytes of an acknowledged put until an op below the commit point freed it.
    AcknowledgedStays,
    /// No extent belongs to two puts.
    OneOwner,
}
