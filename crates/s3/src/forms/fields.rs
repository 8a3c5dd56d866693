//! Fields of an HTML form, as [`super::head`] reads them. Those that the protocol library would read wrongly are refused,
//! and the condition of its policy that a form does not meet is named.
//!
//! [`crate::ops::posted`] looks at those that the library passes over. The library refuses what else is wrong with them.

use std::sync::Arc;

use s3s::post_policy::{PostPolicy, PostPolicyCondition};
use s3s::{S3ErrorCode, S3Result};

use crate::auth::authorization;
use crate::errors::error;

/// The name of a form's field in lower case, and its value.
pub(crate) type Field = (String, String);

/// The fields before a form's file, for the operation.
#[derive(Debug, Clone)]
pub(crate) struct Fields(Arc<[Field]>);

impl Fields {
    /// Checks the form of the fields by which the form is signed.
    ///
    /// # Errors
    /// `InvalidRequest` names the field; as [`authorization::check_region`].
    pub(crate) fn checked(fields: Vec<Field>, region: &str) -> S3Result<Self> {
        let is_read = |(name, value): &&Field| match name.as_str() {
            "x-amz-date" => authorization::is_date(value.as_bytes()),
            "x-amz-credential" => authorization::Credential::parse(value).is_some(),
            _ => true,
        };
        if let Some((name, _)) = fields.iter().find(|field| !is_read(field)) {
            let message = format!("The form field {name} is malformed.");
            return Err(error(S3ErrorCode::InvalidRequest, message));
        }
        for (_, text) in fields.iter().filter(|(name, _)| name == "x-amz-credential") {
            let credential = authorization::Credential::parse(text);
            credential.map_or(Ok(()), |named| authorization::check_region(named.region, region))?;
        }
        Ok(Self(fields.into()))
    }

    /// All of them, as they came.
    pub(crate) fn all(&self) -> &[Field] {
        &self.0
    }

    /// The value of a field. Of several the protocol library reads the last.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A condition of a form's policy that the form does not meet, as S3 writes it: `["eq", "$key", "photo"]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unmet(pub(crate) String);

impl Unmet {
    /// The first condition that a form posted to `bucket` does not meet. `None` if its policy cannot be read. It only
    /// names the condition: whether the form is denied is for the protocol library to say.
    pub(crate) fn of(fields: &Fields, bucket: &str) -> Option<Self> {
        let encoded = fields.value("policy")?;
        let policy = PostPolicy::from_base64(encoded).ok()?;
        let values = |field: &str| match field {
            // The form may name it, too: both must be what the policy says.
            "bucket" => (bucket, fields.value(field).unwrap_or(bucket)),
            field => fields.value(field).map_or(("", ""), |value| (value, value)),
        };
        let (operator, field, value) = policy.conditions.iter().find_map(|it| match it {
            PostPolicyCondition::Eq { field, value } => {
                let is_met = values(field) == (value.as_str(), value.as_str());
                (!is_met).then_some(("eq", field, value))
            }
            PostPolicyCondition::StartsWith { field, prefix } => {
                let (one, other) = values(field);
                let is_met = one.starts_with(prefix) && other.starts_with(prefix);
                (!is_met).then_some(("starts-with", field, prefix))
            }
            // Lengths have errors of their own.
            PostPolicyCondition::ContentLengthRange { .. } => None,
        })?;
        let field = spelled(encoded, field).unwrap_or_else(|| field.clone());
        Some(Self(format!("[\"{operator}\", \"${field}\", \"{value}\"]")))
    }
}

/// The name of a field as the policy spells it; the library gives it in lower case.
fn spelled(encoded: &str, field: &str) -> Option<String> {
    let policy = base64_simd::STANDARD.decode_to_vec(encoded).ok()?;
    let policy = String::from_utf8(policy).ok()?;
    let lower = policy.to_ascii_lowercase();
    let at = [format!("\"${field}\""), format!("\"{field}\"")]
        .iter()
        .find_map(|quoted| Some(lower.find(quoted)? + quoted.len() - 1 - field.len()))?;
    policy.get(at..at + field.len()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_condition_that_is_not_met_is_named_as_the_policy_spells_it() {
        let conditions = r#"[{"bucket":"bkt"},["content-length-range",0,5],["starts-with","$key","u/"],
            ["eq","$Content-Type","image/png"],{"X-Amz-Date":"20060102T150405Z"}]"#;
        let policy =
            format!(r#"{{"expiration":"2099-01-01T00:00:00Z","conditions":{conditions}}}"#);
        let policy = base64_simd::STANDARD.encode_to_string(policy);
        let good = [
            ("policy", policy.as_str()),
            ("key", "u/1"),
            ("content-type", "image/png"),
            ("x-amz-date", "20060102T150405Z"),
        ];
        let unmet = |name: &str, value: &str, bucket: &str| {
            let with = |(known, _): &&(&str, &str)| *known != name;
            let other = (name, value);
            let fields = good.iter().filter(with).chain([&other]);
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let fields = Fields::checked(fields.map(owned).collect(), "r").unwrap();
            Unmet::of(&fields, bucket).map(|unmet| unmet.0)
        };
        assert_eq!(unmet("x-ignore", "", "bkt"), None);
        for (name, value, bucket, named) in [
            ("x-ignore", "", "other", r#"["eq", "$bucket", "bkt"]"#),
            ("bucket", "other", "bkt", r#"["eq", "$bucket", "bkt"]"#),
            ("key", "v/1", "bkt", r#"["starts-with", "$key", "u/"]"#),
            ("content-type", "", "bkt", r#"["eq", "$Content-Type", "image/png"]"#),
            (
                "x-amz-date",
                "20060102T150406Z",
                "bkt",
                r#"["eq", "$X-Amz-Date", "20060102T150405Z"]"#,
            ),
        ] {
            assert_eq!(unmet(name, value, bucket).as_deref(), Some(named), "{name}");
        }
    }

    #[test]
    fn a_form_is_refused_for_a_malformed_date() {
        let check = |name: &str, value: &str| {
            Fields::checked(vec![(name.to_owned(), value.to_owned())], "r").map(drop)
        };
        let credential = "a/20060102/r/s3/aws4_request";
        assert!(check("x-amz-date", "20060102T150405Z").is_ok());
        assert!(check("x-amz-credential", credential).is_ok());
        assert!(check("x-amz-meta-date", "yesterday").is_ok());
        let scope = credential.replace("20060102", "2006 102");
        for (name, value) in [
            ("x-amz-date", "20060102T1504 5Z"),
            ("x-amz-date", ""),
            ("x-amz-credential", &scope),
            ("x-amz-credential", "a"),
        ] {
            assert_eq!(
                check(name, value).unwrap_err().code(),
                &S3ErrorCode::InvalidRequest,
                "{value}"
            );
        }
    }
}
