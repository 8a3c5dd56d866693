//! The headers that announce digests of a body, or of a whole object.

use http::HeaderMap;
use larder_types::ChecksumAlgorithm;
use s3s::S3Result;

use super::head::{Line, lines};
use crate::digest::announced::{Announced, Given, single, verified_given, without_value};
use crate::digest::checksums::{ALL, header};

/// The headers of a request that speak of digests of its body.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DigestHeaders<'r> {
    pub(crate) md5: Option<&'r str>,
    values: Values<'r>,
    named: Option<&'r str>,
    named_by_library: Option<&'r str>,
    trailer: Option<&'r str>,
}

impl<'r> DigestHeaders<'r> {
    /// Reads those of a request.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(crate) fn of(headers: &'r HeaderMap) -> S3Result<Self> {
        let mut read = Self::default();
        for line in lines(headers) {
            read.take(&line)?;
        }
        Ok(read)
    }

    /// Takes a header, if it is one of these.
    ///
    /// # Errors
    /// As [`Line::read`].
    pub(crate) fn take(&mut self, line: &Line<'r>) -> S3Result<bool> {
        let slot = match line.name() {
            "content-md5" => &mut self.md5,
            "x-amz-checksum-algorithm" => &mut self.named,
            "x-amz-sdk-checksum-algorithm" => &mut self.named_by_library,
            "x-amz-trailer" => &mut self.trailer,
            _ => return self.values.take(line),
        };
        *slot = line.read(Some)?;
        Ok(true)
    }

    /// The digests that are announced.
    ///
    /// # Errors
    /// As [`Announced::of`], and [`verified_given`]; `InvalidRequest` where a library names an algorithm without a value (S3).
    pub(crate) fn announced(&self, headers: &HeaderMap) -> S3Result<Announced> {
        let named = self.named_by_library.or(self.named);
        let announced =
            Announced::of(&self.values.0, verified_given(headers)?, named, self.trailer)?;
        if self.named_by_library.is_some() && !announced.is_verified() {
            return Err(without_value());
        }
        Ok(announced)
    }
}

/// Values of checksums, one of each algorithm.
#[derive(Debug, PartialEq)]
pub(crate) struct Values<'r>(Given<'r>);

impl Default for Values<'_> {
    fn default() -> Self {
        Self(ALL.map(|algorithm| (algorithm, None)))
    }
}

impl<'r> Values<'r> {
    /// Takes a header, if it has such a value.
    ///
    /// # Errors
    /// As [`Line::read`].
    pub(crate) fn take(&mut self, line: &Line<'r>) -> S3Result<bool> {
        let mut slots = self.0.iter_mut();
        let Some((_, slot)) = slots.find(|(algorithm, _)| header(*algorithm) == line.name()) else {
            return Ok(false);
        };
        *slot = line.read(Some)?;
        Ok(true)
    }

    /// The one value.
    ///
    /// # Errors
    /// As [`single`].
    pub(crate) fn single(&self) -> S3Result<Option<(ChecksumAlgorithm, Vec<u8>)>> {
        single(&self.0)
    }
}
