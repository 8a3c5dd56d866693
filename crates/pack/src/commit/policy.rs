//! Packing policies: which bodies lie together. Pure.
//!
//! A policy gives each body the name of a group, or none. `groups.rs` decides what becomes of
//! groups.

use std::borrow::Cow;

use larder_types::limits::KEY_BYTES_MAX;

use crate::error::PackError;
use crate::limits::{PREFIX_DEPTH_MAX, RULES_MAX, SIZE_CLASSES_MAX};

/// The policy by which bodies lie together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Packing {
    /// Bodies that arrive together.
    #[default]
    Arrival,
    /// Keys of a bucket with the same beginning.
    Prefix {
        /// The text that ends a step of a key.
        delimiter: String,
        /// The number of steps that count.
        depth: usize,
    },
    /// Bodies of about one size: each belongs to the first class that is large enough, or to those that are larger than
    /// all classes.
    Size(Vec<SizeClass>),
    /// Bodies for which the first rule that fits names the same group; a body that no rule fits
    /// belongs to none.
    Custom(Vec<PackingRule>),
}

/// Bodies up to a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeClass {
    /// Its name.
    pub name: String,
    /// Bytes of its largest bodies.
    pub up_to_bytes: u64,
}

/// A rule: the bodies that belong to a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackingRule {
    /// The group.
    pub group: String,
    /// Only of this bucket.
    pub bucket: Option<String>,
    /// Only keys that begin so.
    pub prefix: Option<String>,
    /// Only keys of this form: `*` stands for anything but `/`, `**` for anything.
    pub key: Option<String>,
    /// Only bodies of so many bytes at least.
    pub min_bytes: Option<u64>,
    /// Only bodies of so many bytes at most.
    pub max_bytes: Option<u64>,
}

/// The group of bodies that are larger than all classes. No class has this name.
const LARGEST: &str = "larger";

impl Packing {
    /// The group of a body; `None` if it belongs to none.
    pub(crate) fn group(&self, bucket: &str, key: &str, bytes: u64) -> Option<Cow<'_, str>> {
        match self {
            Self::Arrival => None,
            Self::Prefix { delimiter, depth } => {
                let mut end = 0;
                for _ in 0..*depth {
                    match key[end..].find(delimiter.as_str()) {
                        Some(at) => end += at + delimiter.len(),
                        None => break,
                    }
                }
                Some(Cow::Owned(format!("{bucket}/{}", &key[..end])))
            }
            Self::Size(classes) => {
                let class = classes.iter().find(|class| bytes <= class.up_to_bytes);
                Some(Cow::Borrowed(class.map_or(LARGEST, |class| &class.name)))
            }
            Self::Custom(rules) => {
                let rule = rules.iter().find(|rule| rule.fits(bucket, key, bytes));
                rule.map(|rule| Cow::Borrowed(rule.group.as_str()))
            }
        }
    }

    /// Refuses what cannot be meant.
    ///
    /// # Errors
    /// [`PackError::Config`], which names the setting.
    pub fn check(&self) -> Result<(), PackError> {
        match self {
            Self::Arrival => Ok(()),
            Self::Prefix { delimiter, depth } => check_prefix(delimiter, *depth),
            Self::Size(classes) => check_classes(classes),
            Self::Custom(rules) => {
                if !(1..=RULES_MAX).contains(&rules.len()) {
                    let found = format!("{} rules", rules.len());
                    return refuse("packing.rules", found, format!("1 to {RULES_MAX}"));
                }
                rules.iter().enumerate().try_for_each(|(at, rule)| rule.check(at))
            }
        }
    }
}

fn check_prefix(delimiter: &str, depth: usize) -> Result<(), PackError> {
    if delimiter.is_empty() || delimiter.len() > KEY_BYTES_MAX {
        let remedy = "at least a character, such as \"/\"".to_owned();
        return refuse("packing.delimiter", format!("{delimiter:?}"), remedy);
    }
    if !(1..=PREFIX_DEPTH_MAX).contains(&depth) {
        return refuse("packing.depth", depth.to_string(), format!("1 to {PREFIX_DEPTH_MAX}"));
    }
    Ok(())
}

fn check_classes(classes: &[SizeClass]) -> Result<(), PackError> {
    if !(1..=SIZE_CLASSES_MAX).contains(&classes.len()) {
        let found = format!("{} classes", classes.len());
        return refuse("packing.classes", found, format!("1 to {SIZE_CLASSES_MAX}"));
    }
    let mut names = std::collections::BTreeSet::from([LARGEST]);
    for (at, class) in classes.iter().enumerate() {
        if class.name.is_empty() || !names.insert(&class.name) {
            let found = format!("classes[{at}].name = {:?}", class.name);
            let remedy = format!("a name that no other class has, nor {LARGEST:?}");
            return refuse("packing.classes", found, remedy);
        }
        if at > 0 && class.up_to_bytes <= classes[at - 1].up_to_bytes {
            let found = format!("classes[{at}].up_to_bytes = {}", class.up_to_bytes);
            return refuse("packing.classes", found, "more than the class before".to_owned());
        }
    }
    Ok(())
}

fn refuse(what: &'static str, found: String, remedy: String) -> Result<(), PackError> {
    Err(PackError::Config { what, found, remedy })
}

impl PackingRule {
    fn fits(&self, bucket: &str, key: &str, bytes: u64) -> bool {
        self.bucket.as_ref().is_none_or(|only| only == bucket)
            && self.min_bytes.is_none_or(|min| bytes >= min)
            && self.max_bytes.is_none_or(|max| bytes <= max)
            && self.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix.as_str()))
            && self.key.as_ref().is_none_or(|form| is_of_form(key, form))
    }

    fn check(&self, at: usize) -> Result<(), PackError> {
        let refuse = |field: &str, found: String, remedy: &str| {
            let found = format!("rules[{at}].{field} = {found}");
            refuse("packing.rules", found, remedy.to_owned())
        };
        if self.group.is_empty() || self.group.len() > KEY_BYTES_MAX {
            return refuse("group", format!("{:?}", self.group), "the name of a group");
        }
        if let (Some(min), Some(max)) = (self.min_bytes, self.max_bytes)
            && min > max
        {
            return refuse("max_bytes", max.to_string(), "no less than its min_bytes");
        }
        for (field, text) in
            [("bucket", &self.bucket), ("prefix", &self.prefix), ("key", &self.key)]
        {
            if let Some(text) = text.as_ref().filter(|t| t.is_empty() || t.len() > KEY_BYTES_MAX) {
                return refuse(field, format!("{text:?}"), "something, or leave it out");
            }
        }
        Ok(())
    }
}

/// Returns true if a key is of a form, in which `*` stands for anything but `/` and `**` for
/// anything.
fn is_of_form(key: &str, form: &str) -> bool {
    let (key, form) = (key.as_bytes(), form.as_bytes());
    let (mut at, mut next) = (0, 0);
    // Behind the last star of each kind in the form, and how much of the key it ends at. The last suffices: what one
    // before it could take in place of it, it can take too.
    let (mut one, mut any) = (None::<(usize, usize)>, None::<(usize, usize)>);
    loop {
        if form[next..].starts_with(b"**") {
            next += 2;
            (any, one) = (Some((next, at)), None);
        } else if form.get(next) == Some(&b'*') {
            next += 1;
            one = Some((next, at));
        } else if at == key.len() && next == form.len() {
            return true;
        } else if at < key.len() && form.get(next) == Some(&key[at]) {
            (at, next) = (at + 1, next + 1);
        } else if let Some((behind, end)) =
            one.filter(|(_, end)| key.get(*end).is_some_and(|byte| *byte != b'/'))
        {
            one = Some((behind, end + 1));
            (at, next) = (end + 1, behind);
        } else if let Some((behind, end)) = any.filter(|(_, end)| *end < key.len()) {
            (any, one) = (Some((behind, end + 1)), None);
            (at, next) = (end + 1, behind);
        } else {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(packing: &Packing, key: &str, bytes: u64) -> String {
        packing.group("photos", key, bytes).map_or_else(|| "none".into(), Cow::into_owned)
    }

    #[test]
    fn arrival_makes_no_groups() {
        assert_eq!(Packing::default().group("photos", "a/b", 1), None);
    }

    #[test]
    fn a_prefix_ends_with_its_delimiter_and_belongs_to_a_bucket() {
        let one = Packing::Prefix { delimiter: "/".into(), depth: 1 };
        let two = Packing::Prefix { delimiter: "--".into(), depth: 2 };
        for (packing, key, expected) in [
            (&one, "2026/11/a", "photos/2026/"),
            (&one, "2026", "photos/"),
            (&one, "/a", "photos//"),
            (&two, "a--b--c--d", "photos/a--b--"),
            (&two, "a--b", "photos/a--"),
            (&two, "ü", "photos/"),
        ] {
            assert_eq!(group(packing, key, 1), expected);
        }
    }

    #[test]
    fn a_size_belongs_to_the_first_class_that_is_large_enough() {
        let class = |name: &str, up_to_bytes| SizeClass { name: name.into(), up_to_bytes };
        let sizes = Packing::Size(vec![class("tiny", 100), class("small", 1000)]);
        assert!(sizes.check().is_ok());
        let groups: Vec<_> =
            [0, 100, 101, 1000, 1001].map(|bytes| group(&sizes, "a", bytes)).into();
        assert_eq!(groups, ["tiny", "tiny", "small", "small", "larger"]);
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let rule = |group: &str| PackingRule { group: group.into(), ..PackingRule::default() };
        let rules = Packing::Custom(vec![
            PackingRule { bucket: Some("other".into()), ..rule("others") },
            PackingRule { key: Some("**/*.log".into()), max_bytes: Some(100), ..rule("logs") },
            PackingRule { prefix: Some("raw/".into()), min_bytes: Some(10), ..rule("raw") },
        ]);
        assert!(rules.check().is_ok());
        for (key, bytes, expected) in [
            ("raw/a/b.log", 100, "logs"),
            ("raw/a/b.log", 101, "raw"),
            ("raw/b", 9, "none"),
            ("b.log", 9, "none"),
        ] {
            assert_eq!(group(&rules, key, bytes), expected, "{key}");
        }
        assert_eq!(rules.group("other", "b", 1).unwrap(), "others");
    }

    #[test]
    fn stars_stand_for_what_they_say() {
        for (form, key, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*", "a/b", false),
            ("**", "a/b", true),
            ("a/*/c", "a/b/c", true),
            ("a/*/c", "a/b/b/c", false),
            ("a/**/c", "a/b/b/c", true),
            ("**/x*y", "a/xb/xcy", true),
            ("*.tar.gz", "a.tar.tar.gz", true),
            ("**a*b", "a/xa/ab", true),
            ("**a*b/", "a/xa/ab", false),
            ("a**b*c", "a/b/bcd/bxc", true),
            ("*a", "/a", false),
        ] {
            assert_eq!(is_of_form(key, form), fits, "{form} {key}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let rule = PackingRule { group: "g".into(), ..PackingRule::default() };
        let class = |name: &str, up_to_bytes| SizeClass { name: name.into(), up_to_bytes };
        for (packing, name) in [
            (Packing::Prefix { delimiter: String::new(), depth: 1 }, "packing.delimiter"),
            (Packing::Prefix { delimiter: "/".into(), depth: 0 }, "packing.depth"),
            (Packing::Size(Vec::new()), "packing.classes"),
            (Packing::Size(vec![class("a", 2), class("a", 3)]), "classes[1].name"),
            (Packing::Size(vec![class("larger", 2)]), "classes[0].name"),
            (Packing::Size(vec![class("a", 2), class("b", 2)]), "classes[1].up_to_bytes"),
            (Packing::Custom(Vec::new()), "packing.rules"),
            (Packing::Custom(vec![PackingRule::default()]), "rules[0].group"),
            (
                Packing::Custom(vec![
                    rule.clone(),
                    PackingRule { min_bytes: Some(2), max_bytes: Some(1), ..rule.clone() },
                ]),
                "rules[1].max_bytes",
            ),
            (
                Packing::Custom(vec![PackingRule { key: Some(String::new()), ..rule }]),
                "rules[0].key",
            ),
        ] {
            let refused = packing.check().unwrap_err().to_string();
            assert!(refused.contains(name), "{refused} does not name {name}");
        }
    }
}
