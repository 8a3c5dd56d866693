//! Every crate from outside has a licence we may ship, and is built in one version unless
//! `rules.toml` says why not.

use crate::Failure;
use crate::metadata::Metadata;
use crate::rules::Rules;

/// Reports each licence and each second version that is not allowed.
pub(crate) fn check(rules: &Rules, metadata: &Metadata) -> Result<(), Failure> {
    let mut faults = Vec::new();
    let allowed = |name: &str| rules.licences.allowed.iter().any(|a| a == name);
    for (name, versions) in metadata.outside() {
        for package in &versions {
            let licence = package.license.as_deref().unwrap_or("none given");
            if !satisfied(licence, &allowed) {
                faults.push(format!("{name} {}: licence {licence}", package.version));
            }
        }
        let expected = rules.duplicates.contains_key(name);
        if versions.len() > 1 && !expected {
            let versions: Vec<&str> = versions.iter().map(|p| p.version.as_str()).collect();
            faults.push(format!("{name}: is built in versions {}", versions.join(" and ")));
        }
        if versions.len() == 1 && expected {
            faults.push(format!("{name}: is built once; remove it from [duplicates]"));
        }
    }
    let outside = metadata.outside();
    for name in rules.duplicates.keys().filter(|n| !outside.contains_key(n.as_str())) {
        faults.push(format!("{name}: is not built; remove it from [duplicates]"));
    }
    Failure::of("licences", faults)
}

/// True if an SPDX expression can be satisfied with allowed licences alone. `/` is the old way to
/// write `OR`. `OR` binds weaker than `AND`.
fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let expression = expression.replace('/', " OR ");
    let alternatives = split_outside_brackets(expression.trim(), " OR ");
    if alternatives.len() > 1 {
        return alternatives.iter().any(|part| satisfied(part, allowed));
    }
    let parts = split_outside_brackets(expression.trim(), " AND ");
    if parts.len() > 1 {
        return parts.iter().all(|part| satisfied(part, allowed));
    }
    match expression.trim().strip_prefix('(').and_then(|e| e.strip_suffix(')')) {
        Some(inner) => satisfied(inner, allowed),
        None => allowed(expression.trim()),
    }
}

fn split_outside_brackets<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && at >= start && text[at..].starts_with(separator) => {
                parts.push(&text[start..at]);
                start = at + separator.len();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    #[test]
    fn an_expression_passes_only_when_allowed_licences_satisfy_it() {
        let allowed = |name: &str| ["MIT", "Apache-2.0 WITH LLVM-exception"].contains(&name);
        for good in ["MIT", "GPL-3.0 OR MIT", "X/MIT", "(MIT OR X) AND MIT", "MIT AND (X OR (MIT))"]
        {
            assert!(satisfied(good, &allowed), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR X) AND Y", "", "Apache-2.0"] {
            assert!(!satisfied(bad, &allowed), "{bad}");
        }
        assert!(satisfied("Apache-2.0 WITH LLVM-exception OR X", &allowed));
    }
}
