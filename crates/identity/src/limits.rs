//! Lifetimes of certificates, and how they relate.

use std::time::Duration;

/// The most by which a server's clock may be behind its authority's: certificates are valid from this long before they are
/// made. A day covers a clock that runs on local time where the authority's runs on UTC.
pub const CLOCK_MARGIN: Duration = Duration::from_secs(24 * 3600);
/// The time for which a server's certificate is valid.
pub const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(90 * 24 * 3600);
/// One part in this many of a certificate's life is left when it should be renewed: a month in which somebody can look
/// why it was not.
pub const RENEWAL_PART: u32 = 3;
/// One part in this many is left when it is worth a warning that it was not: a fortnight.
pub const WARNING_PART: u32 = 6;
/// The time for which an authority's own certificate is valid.
pub const AUTHORITY_VALIDITY: Duration = Duration::from_secs(20 * 365 * 24 * 3600);

const _: () = assert!(
    1 < RENEWAL_PART && RENEWAL_PART < WARNING_PART,
    "a new certificate is not yet due, and a warning comes after tries"
);
