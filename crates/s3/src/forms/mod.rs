//! Uploads by HTML forms, up to the protocol library: there a form's object is put as any other.
//!
//! | file | what |
//! |---|---|
//! | `head.rs` | all up to the file, read once |
//! | `fields.rs` | the fields, checked |
//! | `body.rs` | the form as the library reads it |

pub(crate) mod body;
pub(crate) mod fields;
pub(crate) mod head;
