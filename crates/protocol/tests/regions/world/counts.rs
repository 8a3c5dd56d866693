//! Counts of what happened in runs: runs without something show nothing of it.

/// Counts of runs.
#[derive(Debug, Default)]
pub struct Counts {
    pub changes: u64,
    pub merges: u64,
    /// Tokens that were void, and comparisons of regions that were begun for them.
    pub voids: u64,
    pub resyncs: u64,
    pub clocks_ahead: u64,
    /// Changes that were dated by other regions' clocks.
    pub held_back: u64,
    pub crashes: u64,
    pub wipes: u64,
    /// Regions that were removed for good.
    pub leaves: u64,
    pub cuts: u64,
    pub freed: u64,
    /// Parts of versions that came, but for the last of each.
    pub parts: u64,
    pub lost_with_a_region: u64,
    /// Times that a region became the home, and locks that a home made.
    pub homes: u64,
    pub locks: u64,
    /// Looks for buckets that are not known, and times that a region went back in a journal to what it had passed over.
    pub looks: u64,
    pub went_back: u64,
    /// Entries that a region without room did not take.
    pub untaken: u64,
}

impl Counts {
    pub fn add(&mut self, of: &Self) {
        self.changes += of.changes;
        self.merges += of.merges;
        self.voids += of.voids;
        self.resyncs += of.resyncs;
        self.clocks_ahead += of.clocks_ahead;
        self.held_back += of.held_back;
        self.crashes += of.crashes;
        self.wipes += of.wipes;
        self.leaves += of.leaves;
        self.cuts += of.cuts;
        self.freed += of.freed;
        self.parts += of.parts;
        self.lost_with_a_region += of.lost_with_a_region;
        self.homes += of.homes;
        self.locks += of.locks;
        self.looks += of.looks;
        self.went_back += of.went_back;
        self.untaken += of.untaken;
    }

    pub fn has_all(&self) -> bool {
        let Self { changes, merges, resyncs, clocks_ahead, crashes, wipes, cuts, freed, .. } = self;
        let stores = [changes, merges, crashes, wipes, freed, &self.parts];
        let regions = [resyncs, cuts, &self.leaves, &self.homes, &self.locks];
        let clocks = [clocks_ahead, &self.held_back];
        let lacks = [&self.looks, &self.went_back, &self.untaken];
        stores.into_iter().chain(regions).chain(clocks).chain(lacks).all(|it| *it > 0)
    }
}
