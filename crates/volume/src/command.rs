//! The commands to a volume and their answers.

use bytes::Bytes;
use larder_types::{BootId, Chunk, Extent, Grant, GrantKey, LvId, MapVersion, PvId, View};

/// Something to be done; its completion carries the same tag.
#[derive(Debug, Clone)]
pub struct Command {
    /// The driver's own number for it.
    pub tag: u64,
    /// The action to take.
    pub action: Action,
}

/// The action to take.
#[derive(Debug, Clone)]
pub enum Action {
    /// Give a PV to an LV. It begins closed, with view and floor 0. The PV's former owner loses it, and the LV
    /// lets go of what it had here. Repeating it is harmless, and so is doing it late: see [`Refusal::Outdated`].
    CreatePv {
        /// The range.
        pv: PvId,
        /// Its new owner.
        lv: LvId,
        /// Index of this replica in the LV.
        replica: u8,
        /// A map that says so.
        map: MapVersion,
    },
    /// Take a PV from its owner, as nobody has it, and give a part of its space back to the file system. Repeated until all of
    /// it has gone back; doing it late is harmless: see [`Refusal::Outdated`].
    FreePv {
        /// The range.
        pv: PvId,
        /// A map in which no LV has it.
        map: MapVersion,
    },
    /// Write one put's data.
    Write {
        /// Where.
        lv: LvId,
        /// By what right.
        grant: Grant,
        /// Blocks, which cover `len` exactly; the last one is filled up with zeros.
        extents: Vec<Extent>,
        /// The data, in pieces of any size.
        data: Vec<Bytes>,
        /// Bytes of data; not 0.
        len: u32,
    },
    /// Admit writes of a view.
    Open {
        /// The LV.
        lv: LvId,
        /// View whose writes are admitted from now on, and no other's.
        view: View,
        /// Grants below it are void.
        floor: GrantKey,
        /// Run of the server that is meant.
        boot: BootId,
    },
    /// Void every grant below a floor.
    RaiseFloor {
        /// The LV.
        lv: LvId,
        /// The new floor; one below the floor in force changes nothing.
        floor: GrantKey,
    },
    /// Void one grant.
    Void {
        /// The LV.
        lv: LvId,
        /// The grant.
        grant: Grant,
    },
    /// Sync, then compare what the device holds with a chunk's checksums.
    Verify {
        /// The chunk, with its LV, extents and checksums.
        chunk: Box<Chunk>,
    },
}

/// The outcome of a command: durable once its part of the group is.
pub(crate) type Verdict = Result<Answer, Refusal>;

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Tag of the command.
    pub tag: u64,
    /// The answer, durable; or why nothing was done.
    pub result: Result<Answer, Refusal>,
}

/// A command was done, durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The LV has its PV.
    Created,
    /// Nobody has the PV.
    Freed {
        /// Bytes that went back.
        bytes: u64,
        /// False if there are more to go.
        is_all: bool,
    },
    /// The data is on the device.
    Written,
    /// `Open` or `RaiseFloor` took effect; the floor in force.
    Floor(GrantKey),
    /// No write of the grant will be admitted any more.
    Voided,
    /// Every checksum of the chunk is right on the device.
    Verified {
        /// Run of the server: if it is the grant's, what was not written was never acknowledged.
        boot: BootId,
    },
    /// The device holds other bytes.
    Mismatch {
        /// Run of the server.
        boot: BootId,
        /// Index of the first 64 KiB that differ.
        first_bad_sum: u32,
        /// The grant is fenced, was issued in this run, and no write of it was ever done here: the
        /// data was never acknowledged and never will be. `false` says nothing.
        is_unacknowledged: bool,
    },
}

/// The refusal of a command; nothing of it has taken effect, except that the blocks of a write refused with
/// `Full` or `Broken` may hold any part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Send `Open` first: the server restarted, or the LV is new.
    #[error("the LV was not opened since the server started")]
    Closed,
    /// Ask for the map again, or take a new view.
    #[error("the LV is in view {current}")]
    WrongView {
        /// View in force.
        current: View,
    },
    /// The grant has ended: ask for a new attempt.
    #[error("the grant is below the LV's floor")]
    BelowFloor,
    /// The grant has ended: ask for a new attempt.
    #[error("the grant is void")]
    Voided,
    /// Fix the command: its extents leave the PV or do not cover the data, its data is not as long
    /// as it says, or there is no such PV.
    #[error("the command's extents, data or PV are out of range")]
    OutOfRange,
    /// Write elsewhere; nothing is wrong with this disk.
    #[error("no space is left on the disk")]
    Full,
    /// Look at the map again.
    #[error("the LV is not on this disk")]
    UnknownLv,
    /// Ask for the current run and decide anew.
    #[error("the command is for another run of the server than {current}")]
    WrongBoot {
        /// The run that this is.
        current: BootId,
    },
    /// Raise the floor first: as many grants are void as a PV can remember.
    #[error("the LV has as many voided grants as it can remember")]
    Busy,
    /// Look at the map again: the PV was given to another, or the LV another PV here, and not under an older map.
    #[error("the PV or the LV was given elsewhere, and not under an older map")]
    Outdated,
    /// Choose another PV: whether this one was given to anybody is not known any more.
    #[error("the PV's header is lost")]
    Damaged,
    /// Leave it so: neither block devices nor some file systems give the space of a range back.
    #[error("the file system does not give the space of a range back")]
    KeepsSpace,
    /// Ask again or ask another replica: the device did not give the bytes to be verified. This says
    /// nothing about whether they were written.
    #[error("the device could not be read")]
    Unreadable,
    /// Replace the disk: a write or a sync failed, and it is out for good.
    #[error("the disk is broken")]
    Broken,
}
