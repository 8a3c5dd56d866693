//! The model of a bucket's home: its bounds, the readings of the design that it can take, and what must hold.

/// Bounds of the model.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Bounds {
    /// Regions, at most three.
    #[arg(long, default_value_t = 3)]
    pub regions: usize,
    /// Orders of operators that a region become the home.
    #[arg(long, default_value_t = 1)]
    pub begun: u8,
    /// Restarts after which a region goes on with a claim, and times that it tries again by itself.
    #[arg(long, default_value_t = 1)]
    pub resumed: u8,
    /// Orders that a home be given up.
    #[arg(long, default_value_t = 0)]
    pub ended: u8,
    /// Answers that do not come in time, and restarts that forget what was asked.
    #[arg(long, default_value_t = 0)]
    pub lost: u8,
    /// Records that regions tell each other.
    #[arg(long, default_value_t = 0)]
    pub reported: u8,
    /// Changes that are decided.
    #[arg(long, default_value_t = 1)]
    pub changes: u8,
    /// The first region is the home at the start.
    #[arg(long)]
    pub given: bool,
    /// The first region is removed somewhere on the way.
    #[arg(long)]
    pub removes: bool,
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
    /// A region that has the home accepts a claim. Harmless: that is as if it gave it.
    HomeAcceptsClaims,
    /// A claim counts though a region did not answer.
    SilenceAccepts,
    /// A region says that it gave the home before it has written that down.
    GivesUnwritten,
    /// A region that knows who was given the home answers as if it had given it. Harmless: only who gave it is asked.
    AnyoneGives,
    /// A region becomes the home while it lacks changes.
    LevelsNever,
    /// A change is decided by a record that was replaced since.
    DecidesLate,
    /// A region takes its own term from what others tell.
    OwnTermIsHeard,
    /// A region that has the home takes the record of another. Harmless: nobody makes a later one.
    HomeHears,
    /// A region accepts the claim of one that does not know all regions.
    UnknownRegionsPass,
    /// A region becomes the home though another one has joined since it asked.
    JoinedIsIgnored,
    /// A region makes the bucket without the home that it has elsewhere.
    MadeWithoutHome,
}

/// Properties of every state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// No two regions have the home.
    OneHome,
    /// While a region has the home no other decides.
    OthersAsk,
    /// The home has every change that was decided in a region that was not removed.
    NothingMissed,
}
