//! Bugs that the simulator must find, to show its power. Without the `planted-bugs` feature none can
//! be chosen and every question below is a constant `false`.

/// One planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Planted {
    /// None: production.
    #[default]
    None,
    /// A group is answered without a sync.
    #[cfg(feature = "planted-bugs")]
    AckBeforeSync,
    /// A raised floor is not written.
    #[cfg(feature = "planted-bugs")]
    FloorInMemoryOnly,
    /// A void is not written.
    #[cfg(feature = "planted-bugs")]
    VoidNotDurable,
    /// A late duplicate `Open` sets view and floor back.
    #[cfg(feature = "planted-bugs")]
    OpenLowers,
    /// An `Open` for an earlier run of the server is accepted.
    #[cfg(feature = "planted-bugs")]
    OpenOfAnyBoot,
    /// After a restart writes are admitted without an `Open`.
    #[cfg(feature = "planted-bugs")]
    OpenAfterRestart,
    /// Headers are always written to the same slot.
    #[cfg(feature = "planted-bugs")]
    OneHeaderSlot,
    /// The space of a PV goes back before its header says that nobody has it.
    #[cfg(feature = "planted-bugs")]
    FreeBeforeNobodys,
    /// A verification believes the page cache.
    #[cfg(feature = "planted-bugs")]
    VerifyFromCache,
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
    acks_before_sync => AckBeforeSync,
    keeps_floor_in_memory => FloorInMemoryOnly,
    keeps_void_in_memory => VoidNotDurable,
    lowers_on_open => OpenLowers,
    ignores_boot => OpenOfAnyBoot,
    is_open_after_restart => OpenAfterRestart,
    uses_one_slot => OneHeaderSlot,
    frees_before_it_is_nobodys => FreeBeforeNobodys,
    verifies_from_cache => VerifyFromCache,
}
