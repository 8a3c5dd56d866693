//! Headers as the protocol library takes them. S3 joins several lines of one header, where the library refuses them.
//! S3 also takes from a presigned URL's parameters what other requests say in headers, where the library looks into
//! headers only. Content would be stored without its metadata, and a copy's target be emptied.
//!
//! Neither changes what is signed: version 4 joins lines in the same way, and signs a URL's parameters as they stand
//! there.

use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::{S3Error, S3ErrorCode};

use crate::errors;

/// Headers that sign, or speak of the request itself; lower case.
const OF_THE_REQUEST: [&str; 9] = [
    "x-amz-algorithm",
    "x-amz-content-sha256",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-security-token",
    "x-amz-signature",
    "x-amz-signedheaders",
    "x-amz-user-agent",
];

/// Makes one line of each header that S3 takes in several, and adds those that a presigned URL has in its query; a
/// header that the request has itself stays.
///
/// # Errors
/// `InvalidArgument` names a parameter that cannot be a header.
pub(crate) fn gather(headers: &mut HeaderMap, query: Option<&str>) -> Result<(), S3Error> {
    join_lines(headers);
    let Some(query) = query.filter(|query| is_presigned(query)) else { return Ok(()) };
    for parameter in query.split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let name = name.to_ascii_lowercase();
        if !is_for_the_operation(&name) {
            continue;
        }
        let refused = || {
            let message = format!("The query parameter {name} is not valid as a header.");
            errors::error(S3ErrorCode::InvalidArgument, message)
        };
        let spaced = value.replace('+', " ");
        let value = urlencoding::decode_binary(spaced.as_bytes());
        let value = HeaderValue::from_bytes(&value).map_err(|_| refused())?;
        let name = urlencoding::decode(&name).map_err(|_| refused())?;
        let name: HeaderName = name.parse().map_err(|_| refused())?;
        headers.entry(name).or_insert(value);
    }
    Ok(())
}

fn join_lines(headers: &mut HeaderMap) {
    let takes_several = |name: &HeaderName| {
        matches!(name.as_str(), "cache-control" | "content-encoding" | "content-language")
            || name.as_str().starts_with("x-amz-meta-")
    };
    let in_lines = |name: &&HeaderName| headers.get_all(*name).iter().nth(1).is_some();
    let names: Vec<HeaderName> =
        headers.keys().filter(|name| takes_several(name)).filter(in_lines).cloned().collect();
    for name in names {
        let lines: Vec<&[u8]> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b","[..])) {
            headers.insert(name, joined);
        }
    }
}

fn is_presigned(query: &str) -> bool {
    query.split('&').any(|parameter| parameter.starts_with("X-Amz-Signature="))
}

/// Checksums are left where they are: some clients sign that of an empty body there, and send another body.
fn is_for_the_operation(name: &str) -> bool {
    let of_the_body =
        name.starts_with("x-amz-checksum-") || name.starts_with("x-amz-sdk-checksum-");
    name.starts_with("x-amz-") && !OF_THE_REQUEST.contains(&name) && !of_the_body
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: &str = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=d&X-Amz-SignedHeaders=host";

    fn gathered(lines: &[(&'static str, &'static str)], query: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        gather(&mut headers, Some(query)).unwrap();
        headers
    }

    #[test]
    fn lines_of_one_header_become_one() {
        let lines = [
            ("content-encoding", "gzip"),
            ("content-encoding", "aws-chunked"),
            ("x-amz-meta-a", "1"),
            ("x-amz-meta-a", "2"),
            ("range", "bytes=0-1"),
            ("range", "bytes=2-3"),
        ];
        let headers = gathered(&lines, "");
        let all = |name| headers.get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(all("content-encoding"), ["gzip,aws-chunked"]);
        assert_eq!(all("x-amz-meta-a"), ["1,2"]);
        assert_eq!(all("range").len(), 2, "S3 takes no more than one");
    }

    #[test]
    fn what_a_presigned_url_says_counts_as_headers() {
        let query = format!(
            "x-id=PutObject&{SIGNED}&x-amz-meta-id=a%20b%2Bc&X-Amz-Acl=private\
             &x-amz-copy-source=%2Fb%2Fk%2520x&x-amz-checksum-crc32=AAAAAA%3D%3D\
             &x-amz-sdk-checksum-algorithm=CRC32&X-Amz-Signature=00"
        );
        let headers = gathered(&[("x-amz-acl", "public-read")], &query);
        assert_eq!(headers["x-amz-meta-id"], "a b+c");
        assert_eq!(headers["x-amz-copy-source"], "/b/k%20x");
        assert_eq!(headers["x-amz-acl"], "public-read", "the header counts, if there is one");
        assert_eq!(headers.len(), 3, "{headers:?}");
    }

    #[test]
    fn a_query_that_does_not_sign_is_left_alone() {
        assert!(gathered(&[], "x-amz-meta-id=1&x-amz-acl=private").is_empty());
    }

    #[test]
    fn what_cannot_be_a_header_is_named() {
        let query = format!("{SIGNED}&x-amz-meta-a=%0A&X-Amz-Signature=0");
        let refused = gather(&mut HeaderMap::new(), Some(&query)).unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::InvalidArgument);
        assert!(refused.message().unwrap().contains("x-amz-meta-a"));
    }
}
