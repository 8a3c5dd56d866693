//! The table `[packing]` of the configuration file: what goes together.

use larder_pack::{PackError, Packing, PackingRule, SizeClass};
use serde::Deserialize;

use crate::args::PackingArg;

const KIB: u64 = 1024;

/// The table. What belongs to another policy than the one chosen is refused.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PackingTable {
    policy: Option<PackingArg>,
    delimiter: Option<String>,
    depth: Option<usize>,
    classes: Option<Vec<Class>>,
    rules: Option<Vec<Rule>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Class {
    name: String,
    up_to_bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    group: String,
    bucket: Option<String>,
    prefix: Option<String>,
    key: Option<String>,
    min_bytes: Option<u64>,
    max_bytes: Option<u64>,
}

impl From<Rule> for PackingRule {
    fn from(rule: Rule) -> Self {
        let Rule { group, bucket, prefix, key, min_bytes, max_bytes } = rule;
        Self { group, bucket, prefix, key, min_bytes, max_bytes }
    }
}

impl PackingTable {
    /// The policy of the command line, or of the table, with what the table says of it.
    ///
    /// # Errors
    /// [`PackError::Config`], which names the setting.
    pub(super) fn chosen(self, named: Option<PackingArg>) -> Result<Packing, PackError> {
        let said = self.policy.unwrap_or(PackingArg::Arrival);
        let policy = named.unwrap_or(said);
        // Settings of the file's own policy may stand when the command line has another.
        let of = |setting, is_set, of| match is_set && policy != of && said != of {
            true => Err(of_another(setting, policy)),
            false => Ok(()),
        };
        of("packing.delimiter", self.delimiter.is_some(), PackingArg::Prefix)?;
        of("packing.depth", self.depth.is_some(), PackingArg::Prefix)?;
        of("packing.classes", self.classes.is_some(), PackingArg::Size)?;
        of("packing.rules", self.rules.is_some(), PackingArg::Custom)?;
        let packing = match policy {
            PackingArg::Arrival => Packing::Arrival,
            PackingArg::Prefix => Packing::Prefix {
                delimiter: self.delimiter.unwrap_or_else(|| "/".to_owned()),
                depth: self.depth.unwrap_or(1),
            },
            PackingArg::Size => Packing::Size(self.classes.map_or_else(sizes, |classes| {
                let class = |Class { name, up_to_bytes }| SizeClass { name, up_to_bytes };
                classes.into_iter().map(class).collect()
            })),
            PackingArg::Custom => {
                let rules = self.rules.unwrap_or_default().into_iter();
                Packing::Custom(rules.map(PackingRule::from).collect())
            }
        };
        packing.check()?;
        Ok(packing)
    }
}

/// The classes where the table says nothing.
fn sizes() -> Vec<SizeClass> {
    let class = |name: &str, up_to_bytes| SizeClass { name: name.to_owned(), up_to_bytes };
    vec![class("tiny", 4 * KIB), class("small", 64 * KIB), class("medium", 1024 * KIB)]
}

fn of_another(what: &'static str, policy: PackingArg) -> PackError {
    PackError::Config {
        what,
        found: format!("a value, though the policy is {policy:?}").to_lowercase(),
        remedy: "the policy that it belongs to, or leave it out".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(table: &str, named: Option<PackingArg>) -> Result<Packing, String> {
        let table: PackingTable = toml::from_str(table).map_err(|error| error.to_string())?;
        table.chosen(named).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        assert_eq!(chosen("", None), Ok(Packing::Arrival));
        assert_eq!(chosen("policy = \"size\"", None), Ok(Packing::Size(sizes())));
        let table = "policy = \"size\"\nclasses = [{ name = \"a\", up_to_bytes = 1 }]";
        assert_eq!(chosen(table, Some(PackingArg::Arrival)), Ok(Packing::Arrival));
        let prefix = Packing::Prefix { delimiter: "/".into(), depth: 2 };
        assert_eq!(chosen("policy = \"prefix\"\ndepth = 2", None), Ok(prefix));
    }

    #[test]
    fn rules_are_taken_in_their_order() {
        let table = r#"
            policy = "custom"
            [[rules]]
            group = "logs"
            key = "**/*.log"
            max_bytes = 65536
            [[rules]]
            group = "rest"
            bucket = "archive"
        "#;
        let Ok(Packing::Custom(rules)) = chosen(table, None) else { panic!("they are rules") };
        let groups: Vec<_> = rules.iter().map(|rule| rule.group.as_str()).collect();
        assert_eq!(groups, ["logs", "rest"]);
        assert_eq!(
            (rules[0].max_bytes, rules[1].bucket.as_deref()),
            (Some(65536), Some("archive"))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (table, name) in [
            ("policy = \"prefix\"\ndepth = 0", "packing.depth"),
            ("policy = \"size\"\ndepth = 1", "packing.depth"),
            ("policy = \"custom\"", "packing.rules"),
            ("policy = \"alphabet\"", "alphabet"),
            ("[[rules]]\ngroup = \"a\"\nsize = 3", "size"),
            ("[[classes]]\nname = \"a\"\nup_to_bytes = 1", "packing.classes"),
        ] {
            let refused = chosen(table, None).unwrap_err();
            assert!(refused.contains(name), "{refused} does not name {name}");
        }
    }
}
