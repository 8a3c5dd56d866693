//! Uploads by HTML forms, up to the put of a form's object, which is one as any other.
//!
//! | file | what |
//! |---|---|
//! | `head.rs` | all up to the file, read once |
//! | `fields.rs` | the fields, checked |
//! | `file.rs` | the file, up to its end |
//! | `posted.rs` | the put that a form asks for, and the form's answer |

pub(crate) mod fields;
pub(crate) mod file;
pub(crate) mod head;
pub(crate) mod posted;
