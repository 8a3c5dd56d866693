//! The policy of an HTML form: its author lets others post a form until a time, with fields that the policy names and a file whose
//! length it bounds. The author signs the policy and nothing else of the form.
//!
//! # Invariants
//!
//! 1. A form is accepted only if every condition is met, and every field that may change the object has a condition.
//! 2. A condition that cannot be read refuses the form: an unknown one is not skipped.

use std::time::SystemTime;

use s3s::dto::{Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::errors::{elements, error};

/// A policy, read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Policy {
    expires: SystemTime,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq)]
enum Condition {
    Field {
        /// As the policy spells it, without `$`.
        name: String,
        test: Test,
        value: String,
    },
    /// Bytes of the file, with both ends.
    Length { min: u64, max: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    Equal,
    StartsWith,
}

#[derive(Deserialize)]
struct Document {
    expiration: String,
    conditions: Vec<Value>,
}

impl Policy {
    /// Reads a policy as its field has it.
    ///
    /// # Errors
    /// `InvalidPolicyDocument` says where it is wrong.
    pub(crate) fn parse(encoded: &str) -> S3Result<Self> {
        let json = base64_simd::STANDARD.decode_to_vec(encoded);
        let json = json.map_err(|_| invalid("it is not encoded with base64"))?;
        let document: Document = serde_json::from_slice(&json)
            .map_err(|cause| invalid(&format!("its JSON cannot be read: {cause}")))?;
        let expires = time(&document.expiration).ok_or_else(|| {
            let example = "a time is written as 2030-01-31T12:00:00.000Z";
            invalid(&format!("invalid 'expiration' value {:?}: {example}", document.expiration))
        })?;
        let mut conditions = Vec::with_capacity(document.conditions.len());
        for condition in document.conditions {
            let text = condition.to_string();
            let read = match condition {
                Value::Object(pairs) => equalities(pairs, &mut conditions),
                Value::Array(words) => list(&words).map(|it| conditions.push(it)),
                _ => None,
            };
            read.ok_or_else(|| invalid(&format!("invalid condition {text}")))?;
        }
        Ok(Self { expires, conditions })
    }

    /// The value that a field must equal, if one is said.
    pub(crate) fn said(&self, field: &str) -> Option<&str> {
        self.conditions.iter().find_map(|condition| match condition {
            Condition::Field { name, test: Test::Equal, value }
                if name.eq_ignore_ascii_case(field) =>
            {
                Some(value.as_str())
            }
            _ => None,
        })
    }

    /// Lets a form with these fields (names in lower case) be posted to `bucket` at that time, or refuses it.
    ///
    /// # Errors
    /// `AccessDenied` names the condition that is not met, or the field that has none.
    pub(crate) fn check<'f>(
        &self,
        now: SystemTime,
        bucket: &str,
        fields: impl Iterator<Item = (&'f str, &'f str)> + Clone,
    ) -> S3Result<()> {
        if now >= self.expires {
            return Err(denied("Policy expired."));
        }
        // The last of several counts, as in the object. One that is not there is empty.
        let value = |name: &str| fields.clone().filter(|it| it.0 == name).last().map(|it| it.1);
        for condition in &self.conditions {
            let Condition::Field { name, test, value: wanted } = condition else { continue };
            let lower = name.to_ascii_lowercase();
            // A form may name its bucket, too: both must be as the policy says.
            let own = (lower == "bucket").then_some(bucket);
            let given = value(&lower);
            let mut values = own.into_iter().chain(given.or(own.xor(Some(""))));
            let is_met = values.all(|value| match test {
                Test::Equal => value == wanted,
                Test::StartsWith => value.starts_with(wanted.as_str()),
            });
            if !is_met {
                let test = match test {
                    Test::Equal => "eq",
                    Test::StartsWith => "starts-with",
                };
                let condition = format!("[\"{test}\", \"${name}\", \"{wanted}\"]");
                return Err(denied(&format!("Policy Condition failed: {condition}")));
            }
        }
        // The address names it, so that a policy without one would be good for every bucket.
        let names = std::iter::once("bucket").chain(fields.map(|(name, _)| name));
        match { names }.find(|name| !is_exempt(name) && !self.covers(name)) {
            None => Ok(()),
            Some(name) => Err(denied(&format!("Extra input fields: {name}"))),
        }
    }

    /// The most bytes of a file that may be posted.
    pub(crate) fn length_max(&self) -> u64 {
        let max = |it: &Condition| match it {
            Condition::Length { max, .. } => Some(*max),
            Condition::Field { .. } => None,
        };
        self.conditions.iter().filter_map(max).min().unwrap_or(u64::MAX)
    }

    /// Lets a file of that many bytes be posted, or refuses it.
    ///
    /// # Errors
    /// `EntityTooLarge`, `EntityTooSmall`
    pub(crate) fn check_length(&self, bytes: u64) -> S3Result<()> {
        for condition in &self.conditions {
            let Condition::Length { min, max } = condition else { continue };
            if bytes > *max {
                let message = "Your proposed upload exceeds the maximum allowed size";
                let sizes =
                    [("ProposedSize", bytes.to_string()), ("MaxSizeAllowed", max.to_string())];
                return Err(elements::with(error(S3ErrorCode::EntityTooLarge, message), sizes));
            }
            if bytes < *min {
                let message = "Your proposed upload is smaller than the minimum allowed size";
                let sizes =
                    [("ProposedSize", bytes.to_string()), ("MinSizeAllowed", min.to_string())];
                return Err(elements::with(error(S3ErrorCode::EntityTooSmall, message), sizes));
            }
        }
        Ok(())
    }

    fn covers(&self, field: &str) -> bool {
        self.conditions.iter().any(
            |it| matches!(it, Condition::Field { name, .. } if name.eq_ignore_ascii_case(field)),
        )
    }
}

/// Fields that need no condition: those that sign the form, and those that say nothing of its object.
fn is_exempt(name: &str) -> bool {
    matches!(name, "x-amz-signature" | "signature" | "awsaccesskeyid" | "policy" | "submit")
        // Clients add these to forms that others have signed. Those that cannot be obeyed are refused.
        || name.starts_with("x-amz-server-side-encryption")
        || name.starts_with("x-ignore-")
}

/// `{"bucket": "photos"}`
fn equalities(pairs: Map<String, Value>, conditions: &mut Vec<Condition>) -> Option<()> {
    if pairs.is_empty() {
        return None;
    }
    for (name, value) in pairs {
        let Value::String(value) = value else { return None };
        conditions.push(Condition::Field { name, test: Test::Equal, value });
    }
    Some(())
}

/// `["starts-with", "$key", "user/"]`, `["content-length-range", 1, 10]`
fn list(words: &[Value]) -> Option<Condition> {
    let [kind, one, other] = words else { return None };
    let kind = kind.as_str()?.to_ascii_lowercase();
    if kind == "content-length-range" {
        return Some(Condition::Length { min: number(one)?, max: number(other)? });
    }
    let test = match kind.as_str() {
        "eq" => Test::Equal,
        "starts-with" => Test::StartsWith,
        _ => return None,
    };
    let name = one.as_str()?.strip_prefix('$')?.to_owned();
    Some(Condition::Field { name, test, value: other.as_str()?.to_owned() })
}

/// Some clients write numbers as texts.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// A time as ISO 8601 writes it in UTC.
fn time(text: &str) -> Option<SystemTime> {
    let is_utc = text.as_bytes().get(10) == Some(&b'T') && text.ends_with('Z');
    let time = Timestamp::parse(TimestampFormat::DateTime, text).ok().filter(|_| is_utc)?;
    let time: ::time::OffsetDateTime = time.into();
    Some(time.into())
}

fn invalid(fault: &str) -> S3Error {
    error(S3ErrorCode::InvalidPolicyDocument, format!("Invalid Policy: {fault}"))
}

fn denied(fault: &str) -> S3Error {
    error(S3ErrorCode::AccessDenied, format!("Invalid according to Policy: {fault}"))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn policy(conditions: &str) -> S3Result<Policy> {
        let json =
            format!(r#"{{"expiration":"2030-01-31T12:00:00.5Z","conditions":[{conditions}]}}"#);
        Policy::parse(&base64_simd::STANDARD.encode_to_string(json))
    }

    fn message(refused: S3Result<()>) -> Option<String> {
        let refused = refused.err()?;
        assert_eq!(refused.code(), &S3ErrorCode::AccessDenied);
        let message = refused.message().unwrap().to_owned();
        Some(message.strip_prefix("Invalid according to Policy: ").unwrap().to_owned())
    }

    fn check(conditions: &str, fields: &[(&str, &str)]) -> Option<String> {
        let policy = policy(&format!(r#"{{"bucket":"bkt"}},{conditions}"#)).unwrap();
        message(policy.check(UNIX_EPOCH, "bkt", fields.iter().copied()))
    }

    #[test]
    fn a_condition_that_is_not_met_is_named_as_the_policy_spells_it() {
        let conditions =
            r#"{"bucket":"bkt"},["Starts-With","$key","u/"],["eq","$Content-Type","image/png"]"#;
        let with = |name: &'static str, value: &'static str| {
            let good = [("key", "u/1"), ("content-type", "image/png")];
            check(conditions, &[&good[..], &[(name, value)]].concat())
        };
        assert_eq!(with("policy", ""), None);
        assert_eq!(with("bucket", "bkt"), None);
        for (name, value, named) in [
            ("bucket", "other", r#"["eq", "$bucket", "bkt"]"#),
            ("key", "v/u/", r#"["starts-with", "$key", "u/"]"#),
            ("content-type", "", r#"["eq", "$Content-Type", "image/png"]"#),
        ] {
            let failed = format!("Policy Condition failed: {named}");
            assert_eq!(with(name, value), Some(failed), "{name}");
        }
        let failed = r#"Policy Condition failed: ["eq", "$bucket", "other"]"#;
        assert_eq!(check(r#"{"bucket":"other"}"#, &[]).as_deref(), Some(failed));
        let other = policy(r#"{"bucket":"other"}"#).unwrap();
        let other = other.check(UNIX_EPOCH, "bkt", [("bucket", "other")].into_iter());
        assert_eq!(message(other).as_deref(), Some(failed));
    }

    #[test]
    fn a_field_without_a_condition_is_denied_and_one_that_is_not_there_is_empty() {
        let conditions = r#"["starts-with","$key",""],["eq","$x-amz-meta-a","1"]"#;
        let failed = r#"Policy Condition failed: ["eq", "$x-amz-meta-a", "1"]"#;
        assert_eq!(check(conditions, &[("key", "k")]).as_deref(), Some(failed));
        let extra = check(r#"["starts-with","$key",""]"#, &[("key", "k"), ("x-amz-meta-a", "1")]);
        assert_eq!(extra.as_deref(), Some("Extra input fields: x-amz-meta-a"));
        let free = [("key", "k"), ("x-ignore-a", "1"), ("submit", "go"), ("signature", "s")];
        assert_eq!(check(r#"["starts-with","$key",""],["starts-with","$acl",""]"#, &free), None);
    }

    #[test]
    fn a_policy_names_its_bucket() {
        let refused = policy(r#"["starts-with","$key",""]"#).unwrap();
        let refused = refused.check(UNIX_EPOCH, "bkt", std::iter::empty());
        assert_eq!(message(refused).as_deref(), Some("Extra input fields: bucket"));
    }

    #[test]
    fn a_policy_ends() {
        let policy = policy(r#"{"bucket":"bkt"}"#).unwrap();
        let ends = UNIX_EPOCH + Duration::from_millis(1_896_091_200_500);
        let at = |now| message(policy.check(now, "bkt", std::iter::empty()));
        assert_eq!(at(ends - Duration::from_millis(1)), None);
        assert_eq!(at(ends).as_deref(), Some("Policy expired."));
    }

    #[test]
    fn the_length_of_a_file_has_two_ends() {
        let policy = policy(r#"["content-length-range",2,"5"]"#).unwrap();
        let code = |bytes| policy.check_length(bytes).err().map(|it| it.code().clone());
        assert_eq!([2, 5].map(code), [None, None]);
        assert_eq!(code(1), Some(S3ErrorCode::EntityTooSmall));
        assert_eq!(code(6), Some(S3ErrorCode::EntityTooLarge));
    }

    #[test]
    fn a_policy_that_cannot_be_read_is_invalid() {
        for wrong in [
            "1",
            "{}",
            r#"{"key":1}"#,
            r#"["eq","key","k"]"#,
            r#"["eq","$key"]"#,
            r#"["ends-with","$key","k"]"#,
            r#"["content-length-range",-1,5]"#,
            r#"["content-length-range",1.5,5]"#,
            r#"["content-length-range","","5"]"#,
            "[]",
        ] {
            let code = policy(wrong).unwrap_err();
            assert_eq!(code.code(), &S3ErrorCode::InvalidPolicyDocument, "{wrong}");
        }
        let parse = |json: &str| Policy::parse(&base64_simd::STANDARD.encode_to_string(json));
        for wrong in [
            "",
            "{}",
            r#"{"expiration":"2030-01-31T12:00:00Z"}"#,
            r#"{"conditions":[]}"#,
            r#"{"expiration":"2030-01-31 12:00:00+00:00","conditions":[]}"#,
            r#"{"expiration":"2030-01-31T12:00:00+01:00","conditions":[]}"#,
            r#"{"expiration":"2030-02-31T12:00:00Z","conditions":[]}"#,
            r#"{"expiration":"tomorrow","conditions":[]}"#,
        ] {
            let code = parse(wrong).unwrap_err();
            assert_eq!(code.code(), &S3ErrorCode::InvalidPolicyDocument, "{wrong}");
        }
        assert!(parse(r#"{"expiration":"2030-01-31T12:00:00Z","conditions":[]}"#).is_ok());
        assert!(Policy::parse("%").is_err());
    }
}
