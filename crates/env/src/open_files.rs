//! The limit of open files of the process, sockets among them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as the system lets the process. Returns it in open files, `u64::MAX` for none. Systems set it low for programs that keep sets of
/// files in bits, of which this is none.
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let _refused = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    allowed()
}

/// The limit as it is now, in open files; `u64::MAX` if there is none.
#[must_use]
pub fn allowed() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_what_the_system_allows() {
        let limit = getrlimit(Resource::Nofile);
        // Enough for the tests that run at the same time.
        let low = allowed() / 2;
        setrlimit(Resource::Nofile, Rlimit { current: Some(low), ..limit }).unwrap();
        assert_eq!(allowed(), low);
        assert_eq!(raise(), limit.maximum.unwrap_or(u64::MAX));
    }
}
