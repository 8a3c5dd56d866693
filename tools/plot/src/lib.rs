//! The pages of the tools that measure: charts, and the parts of documents that are made. It does not ship, and knows
//! nothing of what is shown.
//!
//! | module | what it has |
//! |---|---|
//! | [`svg`] | line charts |
//! | [`document`] | the made parts of a document, each between two marks |
//! | [`number()`], [`commit()`], [`machine()`] | numbers as tables show them, the commit and the machine that a page names |

mod commit;
pub mod document;
mod number;
pub mod svg;

pub use commit::{commit, machine};
pub use number::number;

/// A plot: a file beside a page.
#[derive(Debug)]
pub struct Plot {
    /// The file's name.
    pub file: &'static str,
    /// A description for readers who do not see it.
    pub alt: &'static str,
    /// The file's text.
    pub svg: String,
}
