//! Clients' changes that the home of their bucket makes, and its answers.

use bytes::Bytes;
use larder_protocol::AppendRefusal;
use larder_types::codec::encode;
use larder_types::limits::{LIST_PAGE_MAX, PART_NUMBER_MAX};
use larder_types::{
    Appended, Attributes, BucketName, ChecksumAlgorithm, ChecksumKind, Condition, ETag, Home,
    HybridClock, Metax, ObjectChecksum, ObjectKey, UploadId, UploadRow,
};
use serde::{Deserialize, Serialize};

use crate::limits::{CHANGE_BYTES_MAX, CHANGE_HEAD_BYTES_MAX, NAMED_BYTES_MAX};

/// A client's change of a key, for the bucket's home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The bucket.
    pub bucket: BucketName,
    /// The key.
    pub key: ObjectKey,
    /// The condition.
    pub condition: Condition,
    /// The change.
    pub kind: ChangeKind,
}

impl Change {
    /// True if it is no larger than one of a client may be: it becomes one op.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let (head, bytes) = match &self.kind {
            ChangeKind::Upload(step) if !step.is_sound() => return false,
            ChangeKind::Upload(step) => step.sizes(),
            ChangeKind::Put { attributes, checksum, bytes, .. }
            | ChangeKind::Append { attributes, checksum, bytes, .. } => {
                (encode(&(attributes, checksum)).len(), bytes.len())
            }
            ChangeKind::Delete => (0, 0),
            ChangeKind::Tags(tags) => (encode(tags).len(), 0),
        };
        head + encode(&self.condition).len() <= CHANGE_HEAD_BYTES_MAX && bytes <= CHANGE_BYTES_MAX
    }
}

/// The kind of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// This object.
    Put {
        /// Headers, user metadata, tags.
        attributes: Box<Attributes>,
        /// MD5 of the bytes.
        md5: [u8; 16],
        /// Checksum to store, which was verified.
        checksum: Option<ObjectChecksum>,
        /// At most [`CHANGE_BYTES_MAX`].
        bytes: Bytes,
    },
    /// Nothing: it is deleted.
    Delete,
    /// The object that is there, with these tags.
    Tags(Vec<(String, String)>),
    /// The object that is there with these bytes behind its own, or one that has these.
    Append {
        /// Where they begin; `None` if they may begin wherever the object ends.
        offset: Option<u64>,
        /// Headers, user metadata, tags.
        attributes: Box<Attributes>,
        /// MD5 of the bytes.
        md5: [u8; 16],
        /// Checksum of the bytes, which was verified.
        checksum: Option<ObjectChecksum>,
        /// At most [`CHANGE_BYTES_MAX`].
        bytes: Bytes,
    },
    /// A step of an upload in parts.
    Upload(UploadStep),
}

/// A step of an upload in parts, which lies where the bucket's home is. Only [`UploadStep::Complete`] has a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UploadStep {
    /// Begins it: [`UploadAnswer::Begun`].
    Begin {
        /// Headers, user metadata, tags of the object to be.
        attributes: Box<Attributes>,
        /// Algorithm and kind of its checksum, if they are chosen.
        checksum: Option<(ChecksumAlgorithm, ChecksumKind)>,
    },
    /// Puts a part: [`ChangeAnswer::Made`] with its clock.
    Part {
        /// The upload.
        upload: UploadId,
        /// The part's number.
        number: u16,
        /// MD5 of the bytes.
        md5: [u8; 16],
        /// Checksum to store, which was verified.
        checksum: Option<ObjectChecksum>,
        /// At most [`CHANGE_BYTES_MAX`].
        bytes: Bytes,
    },
    /// Shows it, with some of its parts: [`UploadAnswer::Shown`].
    Show {
        /// The upload.
        upload: UploadId,
        /// Parts behind this number.
        after: u16,
        /// Most parts.
        parts_max: u16,
    },
    /// Makes an object of it, if the condition holds: [`UploadAnswer::Completed`].
    Complete {
        /// The upload.
        upload: UploadId,
        /// The parts, as the client named them.
        parts: Vec<PartNamed>,
        /// Checksum of the whole object that the client expects.
        checksum: Option<(ChecksumAlgorithm, Vec<u8>)>,
        /// Size in bytes that the client expects.
        size: Option<u64>,
    },
    /// Ends it: [`ChangeAnswer::Made`].
    Abort {
        /// The upload.
        upload: UploadId,
    },
}

/// A part as a client named it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartNamed {
    /// Part number.
    pub number: u16,
    /// Its entity tag, without quotes.
    pub etag: String,
    /// Its checksum, if the client named one.
    pub checksum: Option<(ChecksumAlgorithm, Vec<u8>)>,
}

impl UploadStep {
    /// Bytes of its head, and of what it puts.
    fn sizes(&self) -> (usize, usize) {
        match self {
            Self::Begin { attributes, checksum } => (encode(&(attributes, checksum)).len(), 0),
            Self::Part { checksum, bytes, .. } => (encode(checksum).len(), bytes.len()),
            // Their fields are bounded one by one.
            Self::Complete { .. } | Self::Show { .. } | Self::Abort { .. } => (0, 0),
        }
    }

    fn is_sound(&self) -> bool {
        let is_number = |number: u16| (1..=PART_NUMBER_MAX).contains(&number);
        let is_value = |checksum: &Option<(ChecksumAlgorithm, Vec<u8>)>| {
            checksum.as_ref().is_none_or(|(_, value)| value.len() <= NAMED_BYTES_MAX)
        };
        match self {
            Self::Begin { .. } | Self::Abort { .. } => true,
            Self::Part { number, .. } => is_number(*number),
            Self::Show { parts_max, .. } => usize::from(*parts_max) <= LIST_PAGE_MAX,
            Self::Complete { parts, checksum, .. } => {
                let is_sound = |part: &PartNamed| {
                    part.etag.len() <= NAMED_BYTES_MAX && is_value(&part.checksum)
                };
                let is_few = parts.len() <= usize::from(PART_NUMBER_MAX);
                is_few && parts.iter().all(is_sound) && is_value(checksum)
            }
        }
    }
}

/// The answer to a [`Change`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeAnswer {
    /// It is made. Of a put with its clock.
    Made(Option<HybridClock>),
    /// The condition does not hold.
    ConditionFailed,
    /// There is no such key.
    NoSuchKey,
    /// There is no such bucket.
    NoSuchBucket,
    /// The region is not its home, and knows this.
    NotHome(Option<Home>),
    /// There is no space for new data.
    Full,
    /// A queue is full.
    SlowDown,
    /// Something is down. Whether the change is made is not known.
    Unavailable(String),
    /// The append is made, with this clock.
    Appended(Appended, HybridClock),
    /// The append cannot be made.
    AppendRefused(AppendRefusal),
    /// A step of an upload has ended so.
    Upload(UploadAnswer),
}

/// The answer to an [`UploadStep`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UploadAnswer {
    /// It has begun.
    Begun(UploadId),
    /// It is this, with these parts.
    Shown {
        /// The upload.
        upload: Box<UploadRow>,
        /// Parts in the order of their numbers.
        parts: Vec<(u16, Metax)>,
        /// More follow.
        is_truncated: bool,
    },
    /// It is an object.
    Completed {
        /// Its entity tag.
        etag: ETag,
        /// Its checksum.
        checksum: Option<ObjectChecksum>,
        /// Its size in bytes.
        size: u64,
        /// Its clock.
        clock: HybridClock,
    },
    /// The request is wrong.
    Refused(UploadRefusal),
}

/// The reason for which a step of an upload is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UploadRefusal {
    /// There is no such upload.
    NoSuchUpload,
    /// This part was not put, or its entity tag or checksum is another.
    Part {
        /// The part.
        number: u16,
    },
    /// Parts are not named in ascending order.
    Order,
    /// A part other than the last is too small.
    TooSmall {
        /// The part.
        number: u16,
        /// Its size.
        bytes: u64,
    },
    /// The size of the whole is not the expected one.
    Size,
    /// The checksum of the whole is not the expected one, or of a kind that cannot be made of parts.
    Checksum,
}
