//! The model of one put: its bounds, the readings of the design that it can take, and what must hold.

/// The size of the model.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Bounds {
    /// Replicas of the LV.
    #[arg(long, default_value_t = 2)]
    pub replicas: usize,
    /// Acknowledgements that the policy wants.
    #[arg(long, default_value_t = 2)]
    pub policy: usize,
    /// Attempts.
    #[arg(long, default_value_t = 2)]
    pub attempts: usize,
    /// Restarts of data servers.
    #[arg(long, default_value_t = 1)]
    pub restarts: u8,
    /// Synced copies that rot, and replicas removed for good.
    #[arg(long, default_value_t = 1)]
    pub losses: u8,
    /// Restarts of the meta primary.
    #[arg(long, default_value_t = 1)]
    pub views: u8,
}

/// The text of the design, or a weaker reading of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Variant {
    /// As the text stands, with what ADR 9 adds to it.
    #[default]
    Safe,
    /// A replica is verified without a fence.
    VerifyBeforeFence,
    /// A restart forgets voids.
    VoidInMemory,
    /// A void is answered while writes of the grant are queued.
    VoidBeforeDrain,
    /// A verification does not sync first, and believes the cache.
    VerifyFromCache,
    /// A write is answered before it is synced.
    AckBeforeSync,
    /// One replica that mismatches is enough to revoke.
    RevokeOnOneMismatch,
    /// One replica that never acknowledged is enough to revoke, whatever the policy.
    PolicyTakenForAll,
    /// A mismatch counts as "never acknowledged".
    MismatchMeansNeverWritten,
    /// A server that restarted since the grant is believed when it says "never acknowledged".
    BootIgnored,
    /// Acknowledgements of all attempts are counted together.
    MixedAttempts,
    /// The proxy counts an earlier attempt after it asked for another.
    EarlierAttemptCounts,
    /// The proxy takes an earlier attempt's `Persisted` for the latest one's.
    PersistedOfAnyAttempt,
    /// The proxy does not wait for `Persisted`.
    AnswerWithoutPersisted,
    /// A new attempt is granted while an earlier one is resolved.
    RegrantWhileResolving,
    /// A new view counts attempts on from the last that it knows: an attempt's number is issued twice.
    AttemptsNumberedAnew,
    /// The proxy answers its client though it has taken the put back.
    AnswerAfterWithdrawal,
    /// A put whose METAX is above the commit point is rolled forward.
    RollForwardUnpersisted,
    /// Readers are shown a version that was rolled forward before its outcome is below the commit point.
    ReadBeforeOutcomeCommitted,
    /// Readers are shown pending versions.
    ReadPending,
}

/// The properties that must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// An acknowledged put is never revoked, a revoked one never acknowledged.
    AcknowledgedIsNotRevoked,
    /// Some replica has the bytes of an acknowledged put, of the attempt that its outcome names. An
    /// early roll-forward names fewer holders than there are: repair finds the others.
    AcknowledgedIsReadable,
    /// An object that was read once does not vanish.
    SeenStays,
    /// The holders that an outcome names have synced copies of its attempt, but for what was lost since.
    HoldersHold,
}
