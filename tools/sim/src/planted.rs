//! Bugs by name, in whichever crate they are planted: the simulator must find each
//! (`docs/planted-bugs.md`).

/// The bugs that a run has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bugs {
    pub(crate) protocol: larder_protocol::Planted,
    pub(crate) volume: larder_volume::Planted,
    pub(crate) driver: Driver,
    #[cfg(feature = "planted-bugs")]
    pub(crate) log: larder_metalog::Bugs,
}

/// A bug in the simulated drivers: what a real driver may get wrong as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Driver {
    /// None.
    #[default]
    None,
    /// A manager says that a write is persisted before it is.
    #[cfg(feature = "planted-bugs")]
    SaysPersistedAtOnce,
    /// A meta server that lost its disk says that it has everything.
    #[cfg(feature = "planted-bugs")]
    ClaimsAll,
    /// A meta server counts a lease from its arrival.
    #[cfg(feature = "planted-bugs")]
    LeaseFromArrival,
    /// A meta server counts a copy when it has sent it.
    #[cfg(feature = "planted-bugs")]
    CountsCopyUnwritten,
    /// A meta server counts a chunk as copied to its new place when it has sent it there.
    #[cfg(feature = "planted-bugs")]
    CountsMoveUnwritten,
    /// A proxy reads any replica of the volume, whether METAX says that it has the chunk or not.
    #[cfg(feature = "planted-bugs")]
    ReadsNonHolders,
    /// A meta server asks a data server once, and waits for ever for an answer that is lost.
    #[cfg(feature = "planted-bugs")]
    AsksDataOnce,
    /// A proxy gives out what a data server sent without verifying it.
    #[cfg(feature = "planted-bugs")]
    ReadsUnverified,
    /// A meta server tells what is there without looking at its lease.
    #[cfg(feature = "planted-bugs")]
    ReadsWithoutLease,
    /// A snapshot is read from the index as it is, not as it was when the snapshot began.
    #[cfg(feature = "planted-bugs")]
    CopiesLiveRows,
    /// A sum is made of the index as it is, not as it was at the digest.
    #[cfg(feature = "planted-bugs")]
    SumsLiveRows,
    /// A meta server does not hear that a session is closed.
    #[cfg(feature = "planted-bugs")]
    IgnoresClosedSessions,
    /// A proxy lists of each PG what comes before the first put under way.
    #[cfg(feature = "planted-bugs")]
    ListsFirstPart,
    /// A data server says that a write is done when it has taken it.
    #[cfg(feature = "planted-bugs")]
    AcksUnexecuted,
}

macro_rules! asks {
    ($($name:ident => $bug:ident),* $(,)?) => {
        impl Driver {
            $(
                #[cfg(feature = "planted-bugs")]
                pub(crate) fn $name(self) -> bool {
                    self == Driver::$bug
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
    says_persisted_at_once => SaysPersistedAtOnce,
    claims_all => ClaimsAll,
    counts_lease_from_arrival => LeaseFromArrival,
    counts_copy_unwritten => CountsCopyUnwritten,
    counts_move_unwritten => CountsMoveUnwritten,
    reads_non_holders => ReadsNonHolders,
    asks_data_once => AsksDataOnce,
    reads_unverified => ReadsUnverified,
    reads_without_lease => ReadsWithoutLease,
    copies_live_rows => CopiesLiveRows,
    sums_live_rows => SumsLiveRows,
    ignores_closed_sessions => IgnoresClosedSessions,
    lists_first_part => ListsFirstPart,
    acks_unexecuted => AcksUnexecuted,
}

#[cfg(feature = "planted-bugs")]
macro_rules! bugs {
    ($($name:literal => $field:ident: $bug:expr),* $(,)?) => {
        /// Names of all planted bugs.
        pub const NAMES: &[&str] = &[$($name),*];

        /// The name of each in the source, in the same order.
        pub const IN_SOURCE: &[&str] = &[$(stringify!($bug)),*];

        impl Bugs {
            /// The bug of a name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self { $field: $bug, ..Self::default() }),)*
                    _ => None,
                }
            }
        }
    };
}

#[cfg(feature = "planted-bugs")]
bugs! {
    "answer-before-commit" => protocol: larder_protocol::Planted::AnswerBeforeCommit,
    "reuse-at-once" => protocol: larder_protocol::Planted::ReuseAtOnce,
    "no-fence" => protocol: larder_protocol::Planted::NoFence,
    "revoke-unseen" => protocol: larder_protocol::Planted::RevokeUnseen,
    "no-tombstone" => protocol: larder_protocol::Planted::NoTombstone,
    "read-past-pending" => protocol: larder_protocol::Planted::ReadPastPending,
    "forget-open-extents" => protocol: larder_protocol::Planted::ForgetOpenExtents,
    "snapshot-without-open" => protocol: larder_protocol::Planted::SnapshotWithoutOpen,
    "snapshot-keeps-old-rows" => protocol: larder_protocol::Planted::SnapshotKeepsOldRows,
    "lease-not-waited-out" => protocol: larder_protocol::Planted::LeaseNotWaitedOut,
    "lease-not-confirmed" => protocol: larder_protocol::Planted::LeaseNotConfirmed,
    "copy-under-lasting-grant" => protocol: larder_protocol::Planted::CopyUnderLastingGrant,
    "vacated-with-open-puts" => protocol: larder_protocol::Planted::VacatedWithOpenPuts,
    "policy-taken-for-all" => protocol: larder_protocol::Planted::PolicyTakenForAll,
    "append-past-pending" => protocol: larder_protocol::Planted::AppendPastPending,
    "ledger-takes-twice" => protocol: larder_protocol::Planted::LedgerTakesTwice,
    "marks-believed" => protocol: larder_protocol::Planted::MarksBelieved,
    "unread-given" => protocol: larder_protocol::Planted::UnreadGiven,
    "append-repeated" => protocol: larder_protocol::Planted::AppendRepeated,
    "coalesced-too-soon" => protocol: larder_protocol::Planted::CoalescedTooSoon,
    "digest-after-batch" => protocol: larder_protocol::Planted::DigestAfterBatch,
    "primary-is-right" => protocol: larder_protocol::Planted::PrimaryIsRight,
    "odd-one-follows" => protocol: larder_protocol::Planted::OddOneFollows,
    "moved-unchecked" => protocol: larder_protocol::Planted::MovedUnchecked,
    "moved-reused-at-once" => protocol: larder_protocol::Planted::MovedReusedAtOnce,
    "read-of-no-holder" => driver: Driver::ReadsNonHolders,
    "data-asked-once" => driver: Driver::AsksDataOnce,
    "read-unverified" => driver: Driver::ReadsUnverified,
    "read-without-lease" => driver: Driver::ReadsWithoutLease,
    "snapshot-of-live-rows" => driver: Driver::CopiesLiveRows,
    "sum-of-live-rows" => driver: Driver::SumsLiveRows,
    "closed-session-ignored" => driver: Driver::IgnoresClosedSessions,
    "list-ends-early" => driver: Driver::ListsFirstPart,
    "write-acked-unexecuted" => driver: Driver::AcksUnexecuted,
    "move-counted-unwritten" => driver: Driver::CountsMoveUnwritten,
    "copy-counted-unwritten" => driver: Driver::CountsCopyUnwritten,
    "lost-member-leads" => driver: Driver::ClaimsAll,
    "lease-from-arrival" => driver: Driver::LeaseFromArrival,
    "managers-persist-late" => driver: Driver::SaysPersistedAtOnce,
    "data-ack-before-sync" => volume: larder_volume::Planted::AckBeforeSync,
    "floor-in-memory-only" => volume: larder_volume::Planted::FloorInMemoryOnly,
    "void-not-durable" => volume: larder_volume::Planted::VoidNotDurable,
    "open-lowers" => volume: larder_volume::Planted::OpenLowers,
    "open-of-any-boot" => volume: larder_volume::Planted::OpenOfAnyBoot,
    "open-after-restart" => volume: larder_volume::Planted::OpenAfterRestart,
    "one-header-slot" => volume: larder_volume::Planted::OneHeaderSlot,
    "verify-from-cache" => volume: larder_volume::Planted::VerifyFromCache,
    "log-ack-before-sync" => log: larder_metalog::Bugs { ack_before_sync: true, ..Default::default() },
    "chain-not-checked" => log: larder_metalog::Bugs { chain_not_checked: true, ..Default::default() },
    "cut-tail-not-synced" => log: larder_metalog::Bugs { cut_tail_not_synced: true, ..Default::default() },
}

#[cfg(not(feature = "planted-bugs"))]
impl Bugs {
    /// No bug has a name in this build.
    #[must_use]
    pub fn named(_name: &str) -> Option<Self> {
        None
    }
}
