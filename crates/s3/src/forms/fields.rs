//! Fields of an HTML form, as [`super::head`] reads them, and the form of those by which it is signed.

use s3s::{S3ErrorCode, S3Result};

use crate::auth::authorization;
use crate::errors::error;

/// The name of a form's field in lower case, and its value.
pub(crate) type Field = (String, String);

/// The fields before a form's file.
#[derive(Debug)]
pub(crate) struct Fields(Vec<Field>);

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
        Ok(Self(fields))
    }

    /// All of them, as they came.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The same with this value in place of a field's.
    pub(crate) fn with(mut self, name: &str, value: String) -> Self {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), value));
        self
    }

    /// The value of a field. Of several the last counts.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
