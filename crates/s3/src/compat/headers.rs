//! Makes one line of headers that S3 takes in several, where the library refuses them. This does not change what is signed:
//! version 4 joins lines in the same way.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::request::head::{lines, takes_several};

/// Joins the lines of headers that S3 takes in several.
pub(crate) fn join_lines(headers: &mut HeaderMap) {
    let joined: Vec<(HeaderName, HeaderValue)> = lines(headers)
        .filter(|line| takes_several(line.name()))
        .filter_map(|line| line.if_several())
        .collect();
    for (name, value) in joined {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_lines_become_one_where_s3_joins_them() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-encoding", "gzip"),
            ("content-encoding", "aws-chunked"),
            ("x-amz-meta-a", "1"),
            ("x-amz-meta-a", "2"),
            ("x-amz-meta-b", "3"),
            ("range", "bytes=0-1"),
            ("range", "bytes=2-3"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        join_lines(&mut headers);
        let all = |name| headers.get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(all("content-encoding"), ["gzip,aws-chunked"]);
        assert_eq!(all("x-amz-meta-a"), ["1,2"]);
        assert_eq!(all("x-amz-meta-b"), ["3"]);
        assert_eq!(all("range").len(), 2, "S3 takes no more than one");
    }
}
