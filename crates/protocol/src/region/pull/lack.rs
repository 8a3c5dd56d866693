//! The reasons for what a region passes over until later.

/// The reason why a claim is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    /// Too many others are stuck.
    Room,
    /// Its bucket is not known here, and is looked for.
    Name,
    /// Its bucket is not known here, and has no place among those that are looked for.
    Place,
}

/// The reasons for all that was passed over of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Lacks {
    room: bool,
    name: bool,
    place: bool,
    /// It is to be found again now, as one of the reasons may hold no more.
    pub(super) is_due: bool,
}

impl Lacks {
    pub(super) fn add(&mut self, lack: Lack) {
        match lack {
            Lack::Room => self.room = true,
            Lack::Name => self.name = true,
            Lack::Place => self.place = true,
        }
    }

    pub(super) fn any(self) -> bool {
        self.name || self.waits_for_time()
    }

    /// True if time alone may end one of the reasons, as far as is known.
    pub(super) fn waits_for_time(self) -> bool {
        self.room || self.place
    }

    /// Marks it to be found again, if it was passed over for this reason.
    pub(super) fn find_again(&mut self, lack: Lack) {
        self.is_due |= match lack {
            Lack::Room => self.room,
            Lack::Name => self.name,
            Lack::Place => self.place,
        };
    }
}
