//! Headers and parameters of a request, as the operations read them.
//!
//! S3 takes from a presigned URL's parameters what other requests say in headers ([`of_url`]). It joins several lines
//! of some headers, as of metadata, and refuses those of others. An empty header counts as none.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue};
use larder_types::limits::PART_NUMBER_MAX;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::errors::elements::invalid_argument;
use crate::errors::error;

/// A header of a request, with all its lines.
pub(crate) struct Line<'r> {
    name: &'r HeaderName,
    first: &'r HeaderValue,
    more: Vec<&'r HeaderValue>,
}

/// Each header of a request once.
pub(crate) fn lines(headers: &HeaderMap) -> impl Iterator<Item = Line<'_>> {
    Lines(headers.iter().peekable())
}

/// The text of one header; `None` if it is not there, or empty.
///
/// # Errors
/// As [`Line::read`].
pub(crate) fn text<'r>(headers: &'r HeaderMap, name: &str) -> S3Result<Option<&'r str>> {
    match lines(headers).find(|line| line.name() == name) {
        Some(line) => line.read(Some),
        None => Ok(None),
    }
}

struct Lines<'r>(Peekable<http::header::Iter<'r, HeaderValue>>);

impl<'r> Iterator for Lines<'r> {
    type Item = Line<'r>;

    /// A map gives the lines of a header one after the other.
    fn next(&mut self) -> Option<Line<'r>> {
        let (name, first) = self.0.next()?;
        let mut more = Vec::new();
        while let Some((_, next)) = self.0.next_if(|(next, _)| *next == name) {
            more.push(next);
        }
        Some(Line { name, first, more })
    }
}

impl<'r> Line<'r> {
    pub(crate) fn name(&self) -> &'r str {
        self.name.as_str()
    }

    /// The value; `None` if it is empty.
    ///
    /// # Errors
    /// `InvalidRequest` if there are several lines.
    pub(crate) fn value(&self) -> S3Result<Option<&'r HeaderValue>> {
        if !self.more.is_empty() {
            let message = format!("duplicate header: {}", self.name);
            return Err(error(S3ErrorCode::InvalidRequest, message));
        }
        Ok(Some(self.first).filter(|value| !value.is_empty()))
    }

    /// The value as `read` has it.
    ///
    /// # Errors
    /// As [`Self::value`]; `InvalidArgument` if it is nothing that can be read.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&'r str) -> Option<T>) -> S3Result<Option<T>> {
        let Some(value) = self.value()? else { return Ok(None) };
        let read = value.to_str().ok().and_then(read);
        read.map(Some).ok_or_else(|| self.invalid(value))
    }

    /// The value as text.
    ///
    /// # Errors
    /// As [`Self::read`], where it is not of ASCII's characters.
    pub(crate) fn text<T: From<String>>(&self) -> S3Result<Option<T>> {
        self.read(|text| Some(text.to_owned().into()))
    }

    /// True if there is a value.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(crate) fn is_given(&self) -> S3Result<bool> {
        Ok(self.read(Some)?.is_some())
    }

    /// The value as true or false.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn boolean(&self) -> S3Result<Option<bool>> {
        self.read(|text| match text {
            "true" | "True" => Some(true),
            "false" | "False" => Some(false),
            _ => None,
        })
    }

    /// The value as text of any language, as browsers send the names of files.
    ///
    /// # Errors
    /// As [`Self::read`], where it is not UTF-8.
    pub(crate) fn utf8(&self) -> S3Result<Option<String>> {
        let Some(value) = self.value()? else { return Ok(None) };
        let text = std::str::from_utf8(value.as_bytes()).map_err(|_| self.invalid(value))?;
        Ok(Some(text.to_owned()))
    }

    /// The value as a number: one that only begins as a number is none.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn number<T: FromStr>(&self) -> S3Result<Option<T>> {
        self.read(|text| text.parse().ok())
    }

    /// The text of each line; one that is empty counts as any other.
    ///
    /// # Errors
    /// `InvalidArgument` if one is not of ASCII's characters.
    pub(crate) fn texts<T: From<String>>(&self) -> S3Result<Vec<T>> {
        let text = |value: &&HeaderValue| {
            let text = value.to_str().map_err(|_| self.invalid(value))?;
            Ok(text.to_owned().into())
        };
        [self.first].iter().chain(&self.more).map(text).collect()
    }

    /// The text of all lines together.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not of ASCII's characters.
    pub(crate) fn joined_text(&self) -> S3Result<Option<String>> {
        let joined = self.joined();
        if joined.is_empty() {
            return Ok(None);
        }
        let text = joined.to_str().map_err(|_| self.invalid(&joined))?;
        Ok(Some(text.to_owned()))
    }

    /// All lines, joined by commas.
    pub(crate) fn joined(&self) -> Cow<'r, HeaderValue> {
        if self.more.is_empty() {
            return Cow::Borrowed(self.first);
        }
        let all: Vec<&[u8]> =
            [self.first].iter().chain(&self.more).map(|line| line.as_bytes()).collect();
        match HeaderValue::from_bytes(&all.join(&b","[..])) {
            Ok(joined) => Cow::Owned(joined),
            Err(_impossible) => Cow::Borrowed(self.first),
        }
    }

    /// A value that means nothing.
    pub(crate) fn invalid(&self, value: &HeaderValue) -> S3Error {
        let message = format!("invalid header: {}: {value:?}", self.name);
        let value = String::from_utf8_lossy(value.as_bytes());
        invalid_argument(message, self.name.as_str(), &value)
    }
}

/// A number that bounds a page, or that it begins after.
///
/// # Errors
/// `InvalidArgument` in S3's words.
pub(crate) fn count(name: &str, text: &str) -> S3Result<i32> {
    let message = match text.parse() {
        Ok(count @ 0..) => return Ok(count),
        // The spelling is S3's.
        Ok(_) if name == "max-keys" => {
            "Argument maxKeys must be an integer between 0 and 2147483647".to_owned()
        }
        Ok(_) => format!("Argument {name} must be an integer between 0 and 2147483647"),
        Err(_) => format!("Provided {name} not an integer or within integer range"),
    };
    Err(invalid_argument(message, name, text))
}

/// The parameters of a query. Their names have one spelling (`address.rs`).
#[derive(Clone, Copy)]
pub(crate) struct Parameters<'r>(&'r str);

impl<'r> Parameters<'r> {
    pub(crate) fn of(query: &'r str) -> Self {
        Self(query)
    }

    pub(crate) fn are_none(self) -> bool {
        self.0.is_empty()
    }

    /// Names and values as they are spelled.
    fn all(self) -> impl Iterator<Item = (&'r str, &'r str)> {
        let parameters = self.0.split('&').filter(|parameter| !parameter.is_empty());
        parameters.map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
    }

    pub(crate) fn names(self) -> impl Iterator<Item = &'r str> {
        self.all().map(|(name, _)| name)
    }

    /// The value of a parameter, which may be empty.
    ///
    /// # Errors
    /// `InvalidRequest` if it is there several times, `InvalidURI` if it is not UTF-8.
    pub(crate) fn one(self, name: &str) -> S3Result<Option<String>> {
        let mut values = self.all().filter(|(known, _)| *known == name).map(|(_, value)| value);
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            let message = format!("duplicate query: {name}");
            return Err(error(S3ErrorCode::InvalidRequest, message));
        }
        match urlencoding::decode(&value.replace('+', " ")) {
            Ok(decoded) => Ok(Some(decoded.into_owned())),
            Err(_) => Err(S3Error::new(S3ErrorCode::InvalidURI)),
        }
    }

    /// The value of a parameter as `read` has it.
    ///
    /// # Errors
    /// As [`Self::one`]; `InvalidArgument` if it is nothing that can be read.
    pub(crate) fn read<T>(
        self,
        name: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> S3Result<Option<T>> {
        let Some(value) = self.one(name)? else { return Ok(None) };
        let message = || format!("invalid query: {name}: {value}");
        read(&value).map(Some).ok_or_else(|| invalid_argument(message(), name, &value))
    }

    /// The value of a parameter as a number that bounds a page, or that it begins after.
    ///
    /// # Errors
    /// As [`Self::one`], and [`count`].
    pub(crate) fn count(self, name: &str) -> S3Result<Option<i32>> {
        self.one(name)?.map(|text| count(name, &text)).transpose()
    }

    /// The value of a parameter that is the number of a part.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn part_number(self, name: &str) -> S3Result<Option<u16>> {
        let Some(value) = self.one(name)? else { return Ok(None) };
        let number = value.parse().ok().filter(|number| (1..=PART_NUMBER_MAX).contains(number));
        let message =
            || format!("Part number must be an integer between 1 and {PART_NUMBER_MAX}, inclusive");
        number.map(Some).ok_or_else(|| invalid_argument(message(), name, &value))
    }
}

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

/// Returns a presigned request's headers with those that its URL has in the query; one that the request has itself stays. `None`
/// if it is not presigned. What is signed does not change: version 4 signs the parameters as they stand there.
///
/// # Errors
/// `InvalidArgument` names a parameter that cannot be a header.
pub(crate) fn of_url(headers: &HeaderMap, query: Option<&str>) -> S3Result<Option<HeaderMap>> {
    let Some(query) = query.filter(|query| is_presigned(query)) else { return Ok(None) };
    let mut headers = headers.clone();
    for (name, value) in Parameters::of(query).all() {
        let name = name.to_ascii_lowercase();
        if !is_for_the_operation(&name) {
            continue;
        }
        let refused = || {
            let message = format!("The query parameter {name} is not valid as a header.");
            error(S3ErrorCode::InvalidArgument, message)
        };
        let spaced = value.replace('+', " ");
        let value = urlencoding::decode_binary(spaced.as_bytes());
        let value = HeaderValue::from_bytes(&value).map_err(|_| refused())?;
        let name = urlencoding::decode(&name).map_err(|_| refused())?;
        let name: HeaderName = name.parse().map_err(|_| refused())?;
        headers.entry(name).or_insert(value);
    }
    Ok(Some(headers))
}

/// True for the query of a URL that is presigned by version 4.
pub(crate) fn is_presigned(query: &str) -> bool {
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

    fn headers(lines: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn code<T>(refused: S3Result<T>) -> Option<S3ErrorCode> {
        refused.err().map(|refused| refused.code().clone())
    }

    #[test]
    fn each_header_comes_once_with_all_its_lines() {
        let headers =
            headers(&[("a", b"1"), ("range", b""), ("b", b"x"), ("a", b"2"), ("a", b"3")]);
        let found: Vec<_> = lines(&headers).map(|it| (it.name(), it.joined().clone())).collect();
        assert_eq!(found.len(), 3);
        for (name, joined) in [("a", "1,2,3"), ("b", "x"), ("range", "")] {
            assert!(
                found.iter().any(|(known, value)| *known == name && **value == *joined),
                "{name}"
            );
        }
    }

    #[test]
    fn a_header_is_read_from_one_line_that_is_not_empty() {
        let headers = headers(&[
            ("twice", b"1"),
            ("twice", b"1"),
            ("empty", b""),
            ("text", b"a b"),
            ("odd", b"\xc3\xa4"),
            ("number", b"-5"),
            ("long", b"99999999999999999999"),
        ]);
        let line = |name: &str| lines(&headers).find(|line| line.name() == name).unwrap();
        assert_eq!(code(line("twice").value()), Some(S3ErrorCode::InvalidRequest));
        assert_eq!(line("empty").text::<String>().unwrap(), None);
        assert_eq!(line("text").text::<String>().unwrap().as_deref(), Some("a b"));
        assert_eq!(code(line("odd").text::<String>()), Some(S3ErrorCode::InvalidArgument));
        assert_eq!(code(line("odd").joined_text()), Some(S3ErrorCode::InvalidArgument));
        assert_eq!(line("number").number().unwrap(), Some(-5_i64));
        for name in ["long", "text"] {
            assert_eq!(
                code(line(name).number::<i64>()),
                Some(S3ErrorCode::InvalidArgument),
                "{name}"
            );
        }
    }

    #[test]
    fn a_parameter_is_read_where_it_is_there_once() {
        let query = Parameters::of("prefix&a=1&&b=x+y%2B%C3%A4&a=2&n=7&e=&=z");
        assert_eq!(query.one("prefix").unwrap().as_deref(), Some(""));
        assert_eq!(query.one("b").unwrap().as_deref(), Some("x y+ä"));
        assert_eq!(query.one("c").unwrap(), None);
        assert_eq!(code(query.one("a")), Some(S3ErrorCode::InvalidRequest));
        assert_eq!(query.count("n").unwrap(), Some(7));
        assert_eq!(code(query.count("e")), Some(S3ErrorCode::InvalidArgument));
        assert_eq!(code(Parameters::of("a=%FF").one("a")), Some(S3ErrorCode::InvalidURI));
        assert_eq!(Parameters::of("").names().count(), 0);
    }

    #[test]
    fn a_page_has_a_number_in_range() {
        assert_eq!(count("n", "0").unwrap(), 0);
        assert_eq!(count("n", "2147483647").unwrap(), i32::MAX);
        for none in ["", "-1", "2147483648", "1x", "1 "] {
            assert_eq!(code(count("n", none)), Some(S3ErrorCode::InvalidArgument), "{none}");
        }
    }

    #[test]
    fn what_a_presigned_url_says_counts_as_headers() {
        let query = format!(
            "x-id=PutObject&{SIGNED}&x-amz-meta-id=a%20b%2Bc&X-Amz-Acl=private\
             &x-amz-copy-source=%2Fb%2Fk%2520x&x-amz-checksum-crc32=AAAAAA%3D%3D\
             &x-amz-sdk-checksum-algorithm=CRC32&X-Amz-Signature=00"
        );
        let own = headers(&[("x-amz-acl", b"public-read")]);
        let headers = of_url(&own, Some(&query)).unwrap().expect("it is presigned");
        assert_eq!(headers["x-amz-meta-id"], "a b+c");
        assert_eq!(headers["x-amz-copy-source"], "/b/k%20x");
        assert_eq!(headers["x-amz-acl"], "public-read", "the header counts, if there is one");
        assert_eq!(headers.len(), 3, "{headers:?}");
    }

    #[test]
    fn a_query_that_does_not_sign_is_left_alone() {
        let query = "x-amz-meta-id=1&x-amz-acl=private";
        assert_eq!(of_url(&HeaderMap::new(), Some(query)).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_a_header_is_named() {
        let query = format!("{SIGNED}&x-amz-meta-a=%0A&X-Amz-Signature=0");
        let refused = of_url(&HeaderMap::new(), Some(&query)).unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::InvalidArgument);
        assert!(refused.message().unwrap().contains("x-amz-meta-a"));
    }
}
