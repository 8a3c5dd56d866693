//! Conditions of puts and deletes, decided at the primary and therefore atomic.

use serde::{Deserialize, Serialize};

use crate::metax::Metax;

/// The demands that a key's current version must meet for an op to take effect.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Condition {
    /// `If-Match`: the version exists and has one of these etags, or `*`.
    pub if_match: Option<EtagList>,
    /// `If-None-Match`: no version exists with one of these etags, or at all with `*`.
    pub if_none_match: Option<EtagList>,
    /// `x-amz-if-match-size` of a delete.
    pub if_match_size: Option<u64>,
    /// `x-amz-if-match-last-modified-time` of a delete, in seconds since 1970.
    pub if_match_modified_s: Option<u64>,
}

/// Entity tags of a condition, without quotes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EtagList {
    /// `*`.
    Any,
    /// One of these.
    Of(Vec<String>),
}

impl EtagList {
    fn holds(&self, current: &Metax) -> bool {
        match self {
            EtagList::Any => true,
            EtagList::Of(tags) => {
                let text = current.etag.text();
                tags.contains(&text)
            }
        }
    }
}

/// The reason for which a condition does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmet {
    /// 412.
    Failed,
    /// `If-Match` on a key that does not exist: 404.
    NoSuchKey,
}

impl Condition {
    /// Returns true if there is nothing to decide.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Decides against the key's current version.
    ///
    /// # Errors
    /// [`Unmet`] if it does not hold.
    pub fn check(&self, current: Option<&Metax>) -> Result<(), Unmet> {
        let ensure = |holds: bool| if holds { Ok(()) } else { Err(Unmet::Failed) };
        if let Some(tags) = &self.if_match {
            ensure(tags.holds(current.ok_or(Unmet::NoSuchKey)?))?;
        }
        if let Some(tags) = &self.if_none_match {
            ensure(!current.is_some_and(|metax| tags.holds(metax)))?;
        }
        if let Some(size) = self.if_match_size {
            ensure(current.is_none_or(|metax| metax.size == size))?;
        }
        if let Some(seconds) = self.if_match_modified_s {
            ensure(current.is_none_or(|metax| metax.clock.ms() / 1000 == seconds))?;
        }
        Ok(())
    }
}
