//! Bytes of an object that a request moves between client and store.

/// Bytes of an object that a request moved between client and store. Copies within the store move none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BytesMoved {
    /// It read so many: those that were sent, 0 if there was no such object.
    Read(u64),
    /// It wrote so many, an object or a part of one.
    Written(u64),
    /// It appended so many.
    Appended(u64),
}

/// S3's code of an error that says that there is no such object.
const NO_SUCH_KEY: &str = "NoSuchKey";

impl BytesMoved {
    /// The bytes that a get moved, by its answer; `None` if it is no get, or was answered without looking for bytes.
    pub(crate) fn of_get(op: &str, status: u16, code: Option<&str>, sent: u64) -> Option<Self> {
        match (op, status) {
            ("GetObject", 200 | 206) => Some(Self::Read(sent)),
            ("GetObject", 404) if code == Some(NO_SUCH_KEY) => Some(Self::Read(0)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_moves_what_it_sends_and_nothing_where_no_object_is() {
        for (op, status, code, moved) in [
            ("GetObject", 200, None, Some(BytesMoved::Read(300))),
            ("GetObject", 206, None, Some(BytesMoved::Read(300))),
            ("GetObject", 404, Some("NoSuchKey"), Some(BytesMoved::Read(0))),
            ("GetObject", 404, Some("NoSuchBucket"), None),
            ("GetObject", 304, None, None),
            ("GetObject", 500, Some("InternalError"), None),
            ("HeadObject", 200, None, None),
            ("PutObject", 200, None, None),
        ] {
            assert_eq!(BytesMoved::of_get(op, status, code, 300), moved, "{op} {status} {code:?}");
        }
    }
}
