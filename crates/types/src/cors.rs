//! CORS rules of a bucket: which pages of other origins a browser lets use it. They lie in the bucket's record, which all
//! servers hold in memory.
//!
//! # Invariants
//!
//! 1. Rules keep S3's form and the limits of [`crate::limits`], also when they are read: what others have written or sent is
//!    checked as what a client sends is.
//! 2. The rules of all buckets together are bounded ([`fit`]), as each server holds them and each change of the map sends them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::codec::encoded_len;
use crate::limits::{
    CORS_ALL_BYTES_MAX, CORS_BYTES_MAX, CORS_ID_CHARS_MAX, CORS_MAX_AGE_S_MAX, CORS_RULES_MAX,
};

/// A method that a rule can allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CorsMethod {
    /// `GET`
    Get,
    /// `PUT`
    Put,
    /// `POST`
    Post,
    /// `DELETE`
    Delete,
    /// `HEAD`
    Head,
}

impl CorsMethod {
    /// Its name in HTTP.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Delete => "DELETE",
            Self::Head => "HEAD",
        }
    }
}

/// A method that no rule can allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a rule allows GET, PUT, POST, DELETE or HEAD")]
pub struct NotACorsMethod;

impl FromStr for CorsMethod {
    type Err = NotACorsMethod;

    fn from_str(name: &str) -> Result<Self, NotACorsMethod> {
        let all = [Self::Get, Self::Put, Self::Post, Self::Delete, Self::Head];
        all.into_iter().find(|method| method.as_str() == name).ok_or(NotACorsMethod)
    }
}

/// A rule: its origins may use its methods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorsRule {
    /// A name that its owner gave it.
    pub id: Option<String>,
    /// Methods that are allowed, at least one.
    pub methods: Vec<CorsMethod>,
    /// Origins that are allowed, at least one. `*` stands for any text, once in each.
    pub origins: Vec<String>,
    /// Headers of requests that are allowed. `*` stands for any text, once in each.
    pub headers: Vec<String>,
    /// Headers of answers that a page may see.
    pub exposed: Vec<String>,
    /// Seconds for which a browser may keep the answer to a preflight.
    pub max_age_s: Option<u32>,
}

/// The reason why rules are refused: fix them. Messages are S3's where it has any.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CorsError {
    /// There is none.
    #[error("a CORS configuration has at least one rule")]
    NoRules,
    /// There are too many.
    #[error("The number of CORS rules should not exceed allowed limit of {CORS_RULES_MAX} rules.")]
    TooManyRules,
    /// They are too long together.
    #[error("a CORS configuration has at most {CORS_BYTES_MAX} bytes")]
    TooLong,
    /// A rule allows nobody, or nothing.
    #[error("each CORS rule needs an AllowedMethod and an AllowedOrigin")]
    Empty,
    /// A name is too long.
    #[error("the ID of a CORS rule has at most {CORS_ID_CHARS_MAX} characters")]
    LongId,
    /// A pattern has two wildcards.
    #[error("{element} \"{text}\" can not have more than one wildcard.")]
    Wildcards {
        /// The element of XML that it stands in.
        element: &'static str,
        /// The pattern.
        text: String,
    },
    /// A header that is to be seen is named by a wildcard.
    #[error(
        "ExposeHeader \"{0}\" contains wildcard. We currently do not support wildcard for ExposeHeader."
    )]
    ExposedWildcard(String),
    /// A header's name could not stand in an answer.
    #[error("{element} \"{text}\" is no name of a header")]
    NotAHeader {
        /// The element of XML that it stands in.
        element: &'static str,
        /// The name.
        text: String,
    },
    /// No number of seconds that fits.
    #[error("MaxAgeSeconds is a number from 0 to {CORS_MAX_AGE_S_MAX}")]
    MaxAge,
}

/// The rules of a bucket, the first of which that matches counts. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct CorsRules(Arc<[CorsRule]>);

impl CorsRules {
    /// Rules that are in S3's form and within its limits.
    ///
    /// # Errors
    /// [`CorsError`].
    pub fn new(rules: Vec<CorsRule>) -> Result<Self, CorsError> {
        if rules.is_empty() {
            return Err(CorsError::NoRules);
        }
        if rules.len() > CORS_RULES_MAX {
            return Err(CorsError::TooManyRules);
        }
        rules.iter().try_for_each(check)?;
        let rules = Self(rules.into());
        if rules.bytes() > CORS_BYTES_MAX {
            return Err(CorsError::TooLong);
        }
        Ok(rules)
    }

    /// The rules in their order.
    #[must_use]
    pub fn as_slice(&self) -> &[CorsRule] {
        &self.0
    }

    /// Bytes that they take where they are stored.
    #[must_use]
    pub fn bytes(&self) -> usize {
        encoded_len(&self.0.as_ref())
    }
}

/// Its rules may be many: a log names their number.
impl fmt::Debug for CorsRules {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "CorsRules({})", self.0.len())
    }
}

impl Serialize for CorsRules {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(to)
    }
}

impl<'de> Deserialize<'de> for CorsRules {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(Vec::deserialize(from)?).map_err(de::Error::custom)
    }
}

/// True if a bucket can have these rules beside those that the others have.
pub fn fit<'r>(rules: &CorsRules, others: impl Iterator<Item = &'r CorsRules>) -> bool {
    let taken: usize = others.map(CorsRules::bytes).sum();
    taken + rules.bytes() <= CORS_ALL_BYTES_MAX
}

fn check(rule: &CorsRule) -> Result<(), CorsError> {
    if rule.methods.is_empty() || rule.origins.is_empty() {
        return Err(CorsError::Empty);
    }
    if rule.id.as_ref().is_some_and(|id| id.chars().count() > CORS_ID_CHARS_MAX) {
        return Err(CorsError::LongId);
    }
    if rule.max_age_s.is_some_and(|seconds| seconds > CORS_MAX_AGE_S_MAX) {
        return Err(CorsError::MaxAge);
    }
    for (element, patterns) in [("AllowedOrigin", &rule.origins), ("AllowedHeader", &rule.headers)]
    {
        if let Some(text) = patterns.iter().find(|it| it.matches('*').count() > 1) {
            return Err(CorsError::Wildcards { element, text: text.clone() });
        }
    }
    for (element, names) in [("AllowedHeader", &rule.headers), ("ExposeHeader", &rule.exposed)] {
        if let Some(text) = names.iter().find(|it| !is_header(it)) {
            return Err(CorsError::NotAHeader { element, text: text.clone() });
        }
    }
    match rule.exposed.iter().find(|it| it.contains('*')) {
        Some(text) => Err(CorsError::ExposedWildcard(text.clone())),
        None => Ok(()),
    }
}

/// True for a token of HTTP, of which `*` is a character.
fn is_header(name: &str) -> bool {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(is_token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};

    fn rule() -> CorsRule {
        CorsRule {
            id: None,
            methods: vec![CorsMethod::Get],
            origins: vec!["https://*.example.org".to_owned()],
            headers: vec!["x-*".to_owned()],
            exposed: vec!["ETag".to_owned()],
            max_age_s: Some(600),
        }
    }

    fn refused(change: impl FnOnce(&mut CorsRule)) -> CorsError {
        let mut changed = rule();
        change(&mut changed);
        // Another server is refused as a client is.
        let stored = encode(&vec![rule(), changed.clone()]);
        assert!(decode::<CorsRules>("rules", &stored).is_err());
        CorsRules::new(vec![rule(), changed]).unwrap_err()
    }

    #[test]
    fn methods_are_read_as_they_are_written() {
        for name in ["GET", "PUT", "POST", "DELETE", "HEAD"] {
            assert_eq!(name.parse::<CorsMethod>().map(CorsMethod::as_str), Ok(name));
        }
        for wrong in ["", "get", "PATCH", "OPTIONS", "*"] {
            assert_eq!(wrong.parse::<CorsMethod>(), Err(NotACorsMethod), "{wrong}");
        }
    }

    #[test]
    fn rules_that_break_the_form_are_refused_with_what_is_wrong() {
        assert_eq!(refused(|it| it.methods.clear()), CorsError::Empty);
        assert_eq!(refused(|it| it.origins.clear()), CorsError::Empty);
        assert_eq!(refused(|it| it.id = Some("é".repeat(256))), CorsError::LongId);
        assert_eq!(refused(|it| it.max_age_s = Some(1 << 31)), CorsError::MaxAge);
        let (text, element) = ("http://*.*".to_owned(), "AllowedOrigin");
        let error = refused(|it| it.origins.push(text.clone()));
        assert_eq!(error, CorsError::Wildcards { element, text });
        let error = refused(|it| it.headers.push("**".to_owned())).to_string();
        assert_eq!(error, "AllowedHeader \"**\" can not have more than one wildcard.");
        let error = refused(|it| it.exposed.push("x-*".to_owned()));
        assert_eq!(error, CorsError::ExposedWildcard("x-*".to_owned()));
        for name in ["", "a b", "a\r\nb: c", "ä"] {
            let (text, element) = (name.to_owned(), "ExposeHeader");
            let error = refused(|it| it.exposed.push(text.clone()));
            assert_eq!(error, CorsError::NotAHeader { element, text });
        }
        assert_eq!(CorsRules::new(Vec::new()), Err(CorsError::NoRules));
    }

    #[test]
    fn rules_beyond_the_limits_are_refused_also_from_other_servers() {
        let most = CorsRules::new(vec![rule(); CORS_RULES_MAX]).unwrap();
        assert_eq!(decode::<CorsRules>("rules", &encode(&most)), Ok(most));
        let more = vec![rule(); CORS_RULES_MAX + 1];
        assert!(decode::<CorsRules>("rules", &encode(&more)).is_err());
        assert_eq!(CorsRules::new(more), Err(CorsError::TooManyRules));
        let long = vec![CorsRule { origins: vec!["o".repeat(CORS_BYTES_MAX)], ..rule() }];
        assert!(decode::<CorsRules>("rules", &encode(&long)).is_err());
        assert_eq!(CorsRules::new(long), Err(CorsError::TooLong));
    }
}
