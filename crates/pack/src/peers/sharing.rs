//! The settings by which a worker shares its bucket.

use std::time::Duration;

use crate::error::PackError;
use crate::limits::{POLL_PERIOD_DEFAULT, SUPERSEDED_KEPT_DEFAULT, UNSEEN_MAX_DEFAULT};
use crate::owner::name::WorkerName;

/// Settings of a worker that shares its bucket with others.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// Its name: no other has it.
    pub name: WorkerName,
    /// Where it answers the others, such as `127.0.0.1:9002`; `None` if they learn from the bucket alone.
    pub listen: Option<String>,
    /// Where they reach it, if that is not where it listens.
    pub advertise: Option<String>,
    /// Time from one look in the bucket to the next.
    pub look_period: Duration,
    /// Time for which superseded versions are kept, that another worker replaced.
    pub kept: Duration,
    /// Age of the last look, from its beginning, up to which requests are answered.
    pub unseen_max: Duration,
}

impl Sharing {
    /// The defaults, for a name.
    #[must_use]
    pub fn new(name: WorkerName) -> Self {
        Self {
            name,
            listen: None,
            advertise: None,
            look_period: POLL_PERIOD_DEFAULT,
            kept: SUPERSEDED_KEPT_DEFAULT,
            unseen_max: UNSEEN_MAX_DEFAULT,
        }
    }

    pub(crate) fn check(&self, grace: Duration) -> Result<(), PackError> {
        let refuse = |what, found: Duration, remedy: String| {
            Err(PackError::Config { what, found: format!("{found:?}"), remedy })
        };
        if self.look_period.is_zero() || self.look_period > self.unseen_max / 2 {
            let remedy = format!("more than nothing, and at most {:?}", self.unseen_max / 2);
            return refuse("the time between two looks in the bucket", self.look_period, remedy);
        }
        if self.unseen_max > self.kept / 2 {
            let remedy = format!("at most {:?}", self.kept / 2);
            return refuse("the time without a look in the bucket", self.unseen_max, remedy);
        }
        if grace < self.kept {
            let remedy = format!("{:?}, which others may need to see it, at least", self.kept);
            return refuse("the time for which what nothing needs stays", grace, remedy);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::GRACE_DEFAULT;

    #[test]
    fn times_that_do_not_fit_each_other_are_refused() {
        let good = Sharing::new(WorkerName::new("a").unwrap());
        assert!(good.check(GRACE_DEFAULT).is_ok());
        assert!(good.check(good.kept).is_ok());
        assert!(good.check(good.kept - Duration::from_secs(1)).is_err());
        let second = Duration::from_secs(1);
        assert!(
            Sharing { kept: 2 * good.unseen_max - second, ..good.clone() }
                .check(GRACE_DEFAULT)
                .is_err()
        );
        assert!(
            Sharing { look_period: good.unseen_max, ..good.clone() }.check(GRACE_DEFAULT).is_err()
        );
        assert!(Sharing { look_period: Duration::ZERO, ..good }.check(GRACE_DEFAULT).is_err());
    }
}
