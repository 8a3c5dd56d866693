//! Numbers of what is open. Pure.

use std::collections::HashMap;

use crate::limits::HANDLES_MAX;
use crate::refusal::Refusal;

/// Open files and directories, by number; [`HANDLES_MAX`] at most. A number is never used again.
#[derive(Debug)]
pub struct Handles<T> {
    open: HashMap<u64, T>,
    next: u64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { open: HashMap::new(), next: 1 }
    }
}

impl<T: Clone> Handles<T> {
    /// Refuses if one more has no room.
    ///
    /// # Errors
    /// [`Refusal::TooManyOpen`].
    pub fn has_room(&self) -> Result<(), Refusal> {
        if self.open.len() < HANDLES_MAX { Ok(()) } else { Err(Refusal::TooManyOpen) }
    }

    /// Opens one.
    ///
    /// # Errors
    /// [`Refusal::TooManyOpen`].
    pub fn add(&mut self, what: T) -> Result<u64, Refusal> {
        self.has_room()?;
        let handle = self.next;
        self.next += 1;
        self.open.insert(handle, what);
        Ok(handle)
    }

    /// Finds what is open under a number.
    ///
    /// # Errors
    /// [`Refusal::BadHandle`].
    pub fn get(&self, handle: u64) -> Result<T, Refusal> {
        self.open.get(&handle).cloned().ok_or(Refusal::BadHandle)
    }

    /// Closes it.
    pub fn remove(&mut self, handle: u64) -> Option<T> {
        self.open.remove(&handle)
    }

    /// The number of those that are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_limit_and_closing_makes_room() {
        let mut handles = Handles::default();
        for _ in 0..HANDLES_MAX {
            handles.add(()).unwrap();
        }
        assert_eq!(handles.add(()), Err(Refusal::TooManyOpen));
        handles.remove(1).unwrap();
        let new = handles.add(()).unwrap();
        assert_eq!((handles.get(1), handles.get(new)), (Err(Refusal::BadHandle), Ok(())));
    }
}
