//! Bugs that the simulator must find, to show its power (`docs/planted-bugs.md`). Without the `planted-bugs` feature
//! none can be chosen and every question below is a constant `false`.

/// One planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Planted {
    /// None: production.
    #[default]
    None,
    /// Answers leave when METAX is appended, not when it is durable on all members.
    #[cfg(feature = "planted-bugs")]
    AnswerBeforeCommit,
    /// Freed extents are free at once.
    #[cfg(feature = "planted-bugs")]
    ReuseAtOnce,
    /// A put in doubt is verified without being fenced first.
    #[cfg(feature = "planted-bugs")]
    NoFence,
    /// A put in doubt is revoked without looking at its data.
    #[cfg(feature = "planted-bugs")]
    RevokeUnseen,
    /// A delete leaves no mark for older puts that are still pending.
    #[cfg(feature = "planted-bugs")]
    NoTombstone,
    /// A read does not wait for pending versions.
    #[cfg(feature = "planted-bugs")]
    ReadPastPending,
    /// The allocator forgets puts that were open at the restart.
    #[cfg(feature = "planted-bugs")]
    ForgetOpenExtents,
    /// A snapshot leaves out the puts that are open.
    #[cfg(feature = "planted-bugs")]
    SnapshotWithoutOpen,
    /// Rows that a snapshot does not have stay.
    #[cfg(feature = "planted-bugs")]
    SnapshotKeepsOldRows,
    /// Another server leads before the leases of the one before have run out.
    #[cfg(feature = "planted-bugs")]
    LeaseNotWaitedOut,
    /// Leases are told without asking whether this manager still leads.
    #[cfg(feature = "planted-bugs")]
    LeaseNotConfirmed,
    /// A copy is made under a grant that no floor voids.
    #[cfg(feature = "planted-bugs")]
    CopyUnderLastingGrant,
    /// A replica is said to be vacated while puts are open that will name it.
    #[cfg(feature = "planted-bugs")]
    VacatedWithOpenPuts,
    /// A put in doubt is revoked as soon as one replica never had it, though fewer are enough.
    #[cfg(feature = "planted-bugs")]
    PolicyTakenForAll,
    /// An append does not wait for puts whose outcome is open.
    #[cfg(feature = "planted-bugs")]
    AppendPastPending,
    /// A chunk that a walk for the ledger has seen already is taken again.
    #[cfg(feature = "planted-bugs")]
    LedgerTakesTwice,
    /// High-water marks are believed whatever the applied position beside them.
    #[cfg(feature = "planted-bugs")]
    MarksBelieved,
    /// A start gives blocks below the marks before the rows are read.
    #[cfg(feature = "planted-bugs")]
    UnreadGiven,
    /// An append that is repeated is made again.
    #[cfg(feature = "planted-bugs")]
    AppendRepeated,
    /// A digest does not end its batch: members sum their rows as of different ops.
    #[cfg(feature = "planted-bugs")]
    DigestAfterBatch,
    /// A member whose sum differs from the primary's is odd, whatever the others have.
    #[cfg(feature = "planted-bugs")]
    PrimaryIsRight,
    /// A member whose rows are odd keeps them when it follows anew.
    #[cfg(feature = "planted-bugs")]
    OddOneFollows,
    /// A chunk is given its new place though its row has another by then.
    #[cfg(feature = "planted-bugs")]
    MovedUnchecked,
    /// The extents that a chunk leaves by moving, or was to have, are free at once.
    #[cfg(feature = "planted-bugs")]
    MovedReusedAtOnce,
    /// Of two versions with one clock the one that came first stays, whatever their regions.
    #[cfg(feature = "planted-bugs")]
    TieByClock,
    /// Regions compare what they have without tombstones.
    #[cfg(feature = "planted-bugs")]
    ResyncWithoutTombstones,
    /// A region's token moves when a version has come, before its bytes are durable.
    #[cfg(feature = "planted-bugs")]
    TokenBeforeBytes,
    /// A region takes a change that was there already, and its own.
    #[cfg(feature = "planted-bugs")]
    ForgottenOrigins,
    /// A region takes changes whose clock is any time ahead.
    #[cfg(feature = "planted-bugs")]
    ClocksAheadTaken,
    /// A PG takes what another region tells though what is here is newer.
    #[cfg(feature = "planted-bugs")]
    BeatenTaken,
    /// Pieces are coalesced of which a repeat may still ask where they began.
    #[cfg(feature = "planted-bugs")]
    CoalescedTooSoon,
}

macro_rules! asks {
    ($($name:ident => $bug:ident),* $(,)?) => {
        impl Planted {
            $(
                #[cfg(feature = "planted-bugs")]
                pub(crate) fn $name(self) -> bool {
                    self == Planted::$bug
                }
                #[cfg(not(feature = "planted-bugs"))]
                pub(crate) const fn $name(self) -> bool {
                    false
                }
            )*
        }
    };
}

asks! {
    answers_before_commit => AnswerBeforeCommit,
    reuses_at_once => ReuseAtOnce,
    skips_fence => NoFence,
    revokes_unseen => RevokeUnseen,
    leaves_no_tombstone => NoTombstone,
    reads_past_pending => ReadPastPending,
    forgets_open_extents => ForgetOpenExtents,
    leaves_out_open => SnapshotWithoutOpen,
    keeps_old_rows => SnapshotKeepsOldRows,
    waits_out_no_lease => LeaseNotWaitedOut,
    confirms_no_lease => LeaseNotConfirmed,
    copies_under_lasting_grants => CopyUnderLastingGrant,
    vacates_with_open_puts => VacatedWithOpenPuts,
    takes_policies_for_all => PolicyTakenForAll,
    appends_past_pending => AppendPastPending,
    takes_changes_twice => LedgerTakesTwice,
    believes_marks => MarksBelieved,
    gives_unread => UnreadGiven,
    repeats_appends => AppendRepeated,
    sums_after_batch => DigestAfterBatch,
    takes_primary_for_right => PrimaryIsRight,
    follows_though_odd => OddOneFollows,
    moves_unchecked => MovedUnchecked,
    reuses_moves_at_once => MovedReusedAtOnce,
    ties_by_clock => TieByClock,
    compares_no_tombstones => ResyncWithoutTombstones,
    moves_tokens_early => TokenBeforeBytes,
    forgets_origins => ForgottenOrigins,
    takes_clocks_ahead => ClocksAheadTaken,
    takes_what_is_beaten => BeatenTaken,
    coalesces_too_soon => CoalescedTooSoon,
}
