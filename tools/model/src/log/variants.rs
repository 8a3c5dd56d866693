//! The model of the log: its bounds, the readings of the design that it can take, and what must hold.

/// The size of the model.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Bounds {
    /// Views, the first included.
    #[arg(long, default_value_t = 3)]
    pub views: u8,
    /// Ops of a log, starts of views included.
    #[arg(long, default_value_t = 3)]
    pub ops: usize,
    /// Restarts.
    #[arg(long, default_value_t = 1)]
    pub restarts: u8,
    /// Restarts at which synced ops are gone.
    #[arg(long, default_value_t = 1)]
    pub damages: u8,
    /// The manager begins no view before the primary of the latest has heard of it, or restarted: fewer
    /// states, and still enough for the counter-examples.
    #[arg(long)]
    pub patient: bool,
    /// Views after the first have two members.
    #[arg(long)]
    pub pairs: bool,
}

/// The text of the design, or a weaker reading of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Variant {
    /// As the text stands, with what ADR 8 adds to it.
    #[default]
    Safe,
    /// Logs compare by position alone.
    LongestBySeqAlone,
    /// Any member of the latest view may lead the next.
    UnlevelledJoinerLeads,
    /// A server that was levelled once may lead although it was removed since.
    RemovedMemberLeads,
    /// A primary that restarts goes on in its view.
    RestartKeepsView,
    /// An op is committed when two of three members have it.
    MajorityCommits,
    /// A member acknowledges before it has synced.
    AckBeforeSync,
    /// The manager's orders to an earlier run of a member count.
    OrdersOutliveRestart,
    /// A member that lost synced ops may lead.
    DamagedMemberLeads,
    /// Members count as levelled as soon as the primary has all reports.
    LevelledBeforeActive,
    /// Ops of older views are committed before one of the view's own is durable.
    CommitsBeforeOwnOp,
    /// The same, where joiners' logs do not count. Harmless.
    CommitsBeforeOwnOpWithoutJoiners,
    /// A new primary keeps its own log and asks for no other. Harmless: every member that may lead has
    /// every committed op.
    OwnLogAlone,
}

/// The properties that must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Property {
    /// An op that took effect once is in the log of every later primary that levelled, unchanged.
    AnsweredStays,
    /// (view, position) is issued once.
    IssuedOnce,
    /// Two members' logs agree up to their commit points, and none is cut below its own.
    CommittedAgree,
    /// Nothing is committed by a primary after one of a later view committed.
    OnePrimary,
}
