//! Sizes and durations as people write them: `8KiB`, `10MB`, `512`, `500ms`, `10s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Most bytes of one object that the driver puts: S3's limit for a single put.
pub const OBJECT_BYTES_MAX: u64 = 5 * 1024 * 1024 * 1024;

const SIZE_UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

const TIME_UNITS: [(&str, u64); 5] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A number of bytes, at most [`OBJECT_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A size or duration that cannot be read; says what would be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a size.
    #[error("{0:?} is not a size: write a whole number and a unit, as in 512, 8KiB, 1MiB or 10MB")]
    Size(String),
    /// More than an object may have.
    #[error("{0:?} is more than the 5GiB that one put may have: give a smaller size")]
    TooLarge(String),
    /// Not a duration.
    #[error("{0:?} is not a duration: write a whole number and a unit, as in 500ms, 10s or 2m")]
    Duration(String),
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let unreadable = || UnitError::Size(text.to_owned());
        let (number, unit) = split(text).ok_or_else(unreadable)?;
        let factor = match unit {
            "" | "B" => 1,
            unit => factor(&SIZE_UNITS, unit).ok_or_else(unreadable)?,
        };
        match number.checked_mul(factor) {
            Some(bytes) if bytes <= OBJECT_BYTES_MAX => Ok(Self(bytes)),
            _ => Err(UnitError::TooLarge(text.to_owned())),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// Reads a duration.
///
/// # Errors
/// [`UnitError::Duration`].
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let unreadable = || UnitError::Duration(text.to_owned());
    let (number, unit) = split(text).ok_or_else(unreadable)?;
    let factor = factor(&TIME_UNITS, unit).ok_or_else(unreadable)?;
    number.checked_mul(factor).map(Duration::from_nanos).ok_or_else(unreadable)
}

/// The number at the beginning and what follows it.
fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start()))
}

fn factor(units: &[(&str, u64)], name: &str) -> Option<u64> {
    units.iter().find(|(unit, _)| *unit == name).map(|(_, factor)| *factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_written() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("8KiB", 8192),
            ("1 MiB", 1 << 20),
            ("10MB", 10_000_000),
            ("64kB", 64_000),
            ("5GiB", OBJECT_BYTES_MAX),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn other_sizes_are_refused_with_a_remedy() {
        for text in ["", "KiB", "8kib", "-1", "1.5MiB", "8KiBs", "99999999999999999999"] {
            let error = text.parse::<ByteSize>().expect_err(text).to_string();
            assert!(error.contains("8KiB"), "{error}");
        }
        assert!(matches!("6GiB".parse::<ByteSize>(), Err(UnitError::TooLarge(_))));
        assert!(matches!(
            "18446744073709551615GiB".parse::<ByteSize>(),
            Err(UnitError::TooLarge(_))
        ));
    }

    #[test]
    fn sizes_print_in_the_largest_whole_unit() {
        assert_eq!(ByteSize(8192).to_string(), "8KiB");
        assert_eq!(ByteSize(8193).to_string(), "8193B");
        assert_eq!(ByteSize(10 << 20).to_string(), "10MiB");
    }

    #[test]
    fn durations_read_as_written() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "10", "s", "1.5s", "10 days", "99999999999999999999s", "9999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
