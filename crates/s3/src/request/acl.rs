//! Access lists. Every bucket and every object here is its owner's alone, as in S3 those of a bucket are whose object
//! ownership is `BucketOwnerEnforced`. Requests may say so, and may ask for nothing else.

use http::StatusCode;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::head::Line;
use super::names::OWNER_ID;
use super::xml::{self, Xml, once};
use crate::errors::elements::{self, invalid_argument};
use crate::errors::{custom, error};

/// The header of a canned access list.
const HEADER: &str = "x-amz-acl";
/// Canned lists that let others in (S3).
const OPEN: [&str; 5] = [
    "authenticated-read",
    "aws-exec-read",
    "log-delivery-write",
    "public-read",
    "public-read-write",
];
/// The forms in which a grant names who gets it (S3).
const GRANTEES: [&str; 3] = ["emailAddress", "id", "uri"];

/// The beginning of the headers of grants.
const GRANT: &str = "x-amz-grant-";

/// The headers of an access list.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Acl {
    canned: Option<String>,
    /// The values of the headers of grants.
    grants: Vec<String>,
}

impl Acl {
    /// A canned list.
    pub(crate) fn canned(name: &str) -> Self {
        Self { canned: Some(name.to_owned()), grants: Vec::new() }
    }

    /// Takes a header, if it is one of these.
    ///
    /// # Errors
    /// As [`Line::text`].
    pub(crate) fn take(&mut self, line: &Line<'_>) -> S3Result<bool> {
        match line.name() {
            HEADER => self.canned = line.text()?,
            name if name.starts_with(GRANT) => self.grants.extend(line.text::<String>()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Refuses what is not the owner's alone.
    ///
    /// # Errors
    /// `AccessControlListNotSupported` if it lets others in, `InvalidArgument` if it is no list, `InvalidRequest` if it is two.
    pub(crate) fn check(&self) -> S3Result<()> {
        self.check_form()?;
        match self.lets_others_in() {
            true => Err(not_supported()),
            false => Ok(()),
        }
    }

    /// The same for a new bucket, of which S3 says it in other words.
    ///
    /// # Errors
    /// `InvalidBucketAclWithObjectOwnership` if it lets others in; else as [`Self::check`].
    pub(crate) fn check_of_new_bucket(&self) -> S3Result<()> {
        self.check_form()?;
        if !self.lets_others_in() {
            return Ok(());
        }
        let message =
            "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting";
        let code = "InvalidBucketAclWithObjectOwnership";
        Err(custom(code, StatusCode::BAD_REQUEST, message.to_owned()))
    }

    /// Checks a change of the list, which comes in the headers or in the body.
    ///
    /// # Errors
    /// `MissingSecurityHeader` for neither, `UnexpectedContent` for both, `MalformedXML`; else as [`Self::check`].
    pub(crate) fn check_change(&self, document: &[u8]) -> S3Result<()> {
        let in_headers = self.canned.is_some() || !self.grants.is_empty();
        match (in_headers, document.is_empty()) {
            (true, true) => self.check(),
            (true, false) => {
                let message = "This request does not support content";
                Err(error(S3ErrorCode::UnexpectedContent, message))
            }
            (false, true) => {
                let message = "Your request was missing a required header";
                let missing = error(S3ErrorCode::MissingSecurityHeader, message);
                Err(elements::with(missing, [("MissingHeaderName", HEADER.to_owned())]))
            }
            (false, false) if is_the_owners_alone(document)? => Ok(()),
            (false, false) => Err(not_supported()),
        }
    }

    fn check_form(&self) -> S3Result<()> {
        if self.canned.is_some() && !self.grants.is_empty() {
            let message = "Specifying both Canned ACLs and Header Grants is not allowed";
            return Err(error(S3ErrorCode::InvalidRequest, message));
        }
        let is_unknown = |canned: &&str| !is_the_owners(canned) && !OPEN.contains(canned);
        if let Some(canned) = self.canned.as_deref().filter(is_unknown) {
            return Err(invalid_argument("The specified canned ACL is not valid", HEADER, canned));
        }
        match self.grants.iter().all(|grant| is_grant(grant)) {
            true => Ok(()),
            false => Err(error(S3ErrorCode::InvalidArgument, "Argument format not recognized")),
        }
    }

    fn lets_others_in(&self) -> bool {
        !self.grants.is_empty()
            || self.canned.as_deref().is_some_and(|canned| !is_the_owners(canned))
    }
}

/// True for a canned list by which an object is its owner's, who is the bucket's.
fn is_the_owners(canned: &str) -> bool {
    matches!(canned, "private" | "bucket-owner-full-control" | "bucket-owner-read")
}

/// True for grants as a header lists them: `id="…", uri="…"`.
fn is_grant(header: &str) -> bool {
    header.split(',').all(|grant| {
        let Some((kind, name)) = grant.trim().split_once('=') else { return false };
        let name = name.trim();
        let inside = name.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
        let name = inside.unwrap_or(name);
        GRANTEES.contains(&kind.trim()) && !name.is_empty() && !name.contains('"')
    })
}

/// True for the list that every bucket and object has: clients put back what they got.
///
/// # Errors
/// `MalformedXML`.
fn is_the_owners_alone(document: &[u8]) -> S3Result<bool> {
    let (mut owner, mut grants) = (None, None);
    xml::read(document, "AccessControlPolicy", |xml| {
        xml.children(|xml, name| match name {
            "Owner" => once(&mut owner, is_the_owner(xml)?),
            "AccessControlList" => once(&mut grants, are_the_owners(xml)?),
            _ => Err(xml::malformed()),
        })
    })?;
    Ok(owner != Some(false) && grants == Some(true))
}

/// True if there are grants, and all of them give the owner all rights.
fn are_the_owners(xml: &mut Xml<'_>) -> S3Result<bool> {
    let (mut some, mut all) = (false, true);
    xml.children(|xml, name| match name {
        "Grant" => {
            let (mut grantee, mut permission) = (None, None);
            xml.children(|xml, name| match name {
                "Grantee" => once(&mut grantee, is_the_owner(xml)?),
                "Permission" => once(&mut permission, xml.word()?),
                _ => Err(xml::malformed()),
            })?;
            some = true;
            all &= grantee == Some(true) && permission.as_deref() == Some("FULL_CONTROL");
            Ok(())
        }
        _ => Err(xml::malformed()),
    })?;
    Ok(some && all)
}

/// True for somebody who is the owner: by the id, and by nothing else but a name to be shown.
fn is_the_owner(xml: &mut Xml<'_>) -> S3Result<bool> {
    let (mut id, mut otherwise) = (None, false);
    xml.children(|xml, name| match name {
        "ID" => once(&mut id, xml.word()?),
        "DisplayName" => xml.text().map(drop),
        "EmailAddress" | "URI" => {
            otherwise = true;
            xml.text().map(drop)
        }
        _ => Err(xml::malformed()),
    })?;
    Ok(!otherwise && id.as_deref() == Some(OWNER_ID))
}

fn not_supported() -> S3Error {
    let message = "The bucket does not allow ACLs";
    custom("AccessControlListNotSupported", StatusCode::BAD_REQUEST, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canned(name: &str) -> Acl {
        Acl::canned(name)
    }

    fn granted(grant: &str) -> Acl {
        Acl { canned: None, grants: vec![grant.to_owned()] }
    }

    fn code(refused: S3Result<()>) -> String {
        refused.map_or_else(|refused| refused.code().as_str().to_owned(), |()| "none".to_owned())
    }

    #[test]
    fn a_list_that_lets_others_in_is_not_supported() {
        for own in ["private", "bucket-owner-full-control", "bucket-owner-read"] {
            assert_eq!(code(canned(own).check()), "none");
        }
        assert_eq!(code(Acl::default().check()), "none");
        for open in OPEN {
            assert_eq!(code(canned(open).check()), "AccessControlListNotSupported");
        }
        let grant = r#"id="a", uri="http://x", emailAddress="b@c""#;
        assert_eq!(code(granted(grant).check()), "AccessControlListNotSupported");
        let made = canned("public-read").check_of_new_bucket();
        assert_eq!(code(made), "InvalidBucketAclWithObjectOwnership");
    }

    #[test]
    fn a_list_that_is_none_is_invalid() {
        for none in ["nonsense", "", "Private"] {
            assert_eq!(code(canned(none).check()), "InvalidArgument", "{none}");
            assert_eq!(code(canned(none).check_of_new_bucket()), "InvalidArgument", "{none}");
        }
        for none in ["nonsense", "", "name=\"x\"", "id=", "id=\"a\" uri"] {
            assert_eq!(code(granted(none).check()), "InvalidArgument", "{none}");
        }
        let both = Acl { canned: Some("private".to_owned()), ..granted("id=x") };
        assert_eq!(code(both.check()), "InvalidRequest");
    }

    #[test]
    fn a_change_has_one_list() {
        let grant = |grantee: &str, right: &str| {
            format!("<Grant><Grantee>{grantee}</Grantee><Permission>{right}</Permission></Grant>")
        };
        let policy = |grants: &str| {
            format!(
                "<AccessControlPolicy><Owner><ID>{OWNER_ID}</ID><DisplayName>a</DisplayName></Owner>\
                 <AccessControlList>{grants}</AccessControlList></AccessControlPolicy>"
            )
        };
        let own = grant(&format!("<ID>{OWNER_ID}</ID>"), "FULL_CONTROL");
        let change = |acl: Acl, document: &str| code(acl.check_change(document.as_bytes()));
        assert_eq!(change(Acl::default(), &policy(&own)), "none");
        let all = "<URI>http://acs.amazonaws.com/groups/global/AllUsers</URI>";
        for grants in [
            String::new(),
            grant("<ID>other</ID>", "FULL_CONTROL"),
            grant(&format!("<ID>{OWNER_ID}</ID>"), "READ"),
            grant(&format!("<ID>{OWNER_ID}</ID>{all}"), "FULL_CONTROL"),
            own.clone() + &grant(all, "FULL_CONTROL"),
        ] {
            let refused = change(Acl::default(), &policy(&grants));
            assert_eq!(refused, "AccessControlListNotSupported", "{grants}");
        }
        assert_eq!(change(Acl::default(), "<AccessControlPolicy>"), "MalformedXML");
        assert_eq!(change(Acl::default(), ""), "MissingSecurityHeader");
        assert_eq!(change(canned("private"), &policy(&own)), "UnexpectedContent");
        assert_eq!(change(canned("private"), ""), "none");
    }
}
