//! The rule that a request of another origin falls under: the first that allows its origin, its method, and all headers that
//! it asks for. Nothing here knows of HTTP's types.

use larder_types::{CorsRule, CorsRules};

/// The wanted method and headers of a browser.
pub(crate) struct CorsRequest<'r> {
    pub(crate) origin: &'r str,
    pub(crate) method: &'r str,
    /// Names of headers that it asks for, in whatever case.
    pub(crate) headers: &'r [String],
}

/// The first rule that allows it.
pub(crate) fn first<'c>(rules: &'c CorsRules, wanted: &CorsRequest<'_>) -> Option<&'c CorsRule> {
    rules.as_slice().iter().find(|rule| allows(rule, wanted))
}

/// True if a rule is for all origins: answers then name none, and a browser sends no credentials.
pub(crate) fn is_for_all(rule: &CorsRule) -> bool {
    rule.origins.iter().any(|origin| origin == "*")
}

fn allows(rule: &CorsRule, wanted: &CorsRequest<'_>) -> bool {
    let has_header =
        |name: &String| rule.headers.iter().any(|it| fits(it, name, <[u8]>::eq_ignore_ascii_case));
    rule.methods.iter().any(|method| method.as_str() == wanted.method)
        && rule.origins.iter().any(|it| fits(it, wanted.origin, <[u8]>::eq))
        && wanted.headers.iter().all(has_header)
}

/// True if a text is one that a pattern stands for. A pattern has at most one `*`.
fn fits(pattern: &str, text: &str, is_same: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    let text = text.as_bytes();
    let Some((start, end)) = pattern.split_once('*') else {
        return is_same(pattern.as_bytes(), text);
    };
    let (start, end) = (start.as_bytes(), end.as_bytes());
    text.len() >= start.len() + end.len()
        && is_same(start, &text[..start.len()])
        && is_same(end, &text[text.len() - end.len()..])
}

#[cfg(test)]
mod tests {
    use larder_types::CorsMethod;
    use proptest::prelude::*;

    use super::*;

    fn rule(methods: &[CorsMethod], origins: &[&str], headers: &[&str]) -> CorsRule {
        let owned = |all: &[&str]| all.iter().map(|&it| it.to_owned()).collect();
        CorsRule {
            id: None,
            methods: methods.to_vec(),
            origins: owned(origins),
            headers: owned(headers),
            exposed: Vec::new(),
            max_age_s: None,
        }
    }

    /// The place of the rule that counts.
    fn place(
        rules: &[CorsRule],
        (origin, method): (&str, &str),
        headers: &[&str],
    ) -> Option<usize> {
        let rules = CorsRules::new(rules.to_vec()).unwrap();
        let headers: Vec<String> = headers.iter().map(|&it| it.to_owned()).collect();
        let found = first(&rules, &CorsRequest { origin, method, headers: &headers })?;
        rules.as_slice().iter().position(|rule| std::ptr::eq(rule, found))
    }

    #[test]
    fn an_origin_is_matched_as_it_is_written() {
        for (pattern, origin, is_allowed) in [
            ("*", "https://a.example", true),
            ("*", "null", true),
            ("null", "null", true),
            ("null", "https://a.example", false),
            ("https://a.example", "https://a.example", true),
            ("https://a.example", "https://A.example", false),
            ("https://a.example", "https://a.example:8443", false),
            ("https://a.example", "http://a.example", false),
            ("https://*.example", "https://a.b.example", true),
            ("https://*.example", "https://.example", true),
            ("https://*.example", "https://example", false),
            ("https://*.example", "https://a.example.evil", false),
            ("http*", "https://a.example", true),
            ("*.example", "null", false),
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
        ] {
            let rules = [rule(&[CorsMethod::Get], &["https://other", pattern], &[])];
            let found = place(&rules, (origin, "GET"), &[]).is_some();
            assert_eq!(found, is_allowed, "{pattern} {origin}");
        }
    }

    #[test]
    fn headers_are_matched_in_any_case_and_all_of_them() {
        for (patterns, asked, is_allowed) in [
            (&[][..], &[][..], true),
            (&[], &["x-a"], false),
            (&["*"], &["x-a", "Authorization"], true),
            (&["X-Amz-*"], &["x-amz-date", "X-AMZ-ACL"], true),
            (&["X-Amz-*"], &["x-amz-date", "range"], false),
            (&["x-amz-*", "Range"], &["x-amz-date", "range"], true),
            (&["*-md5"], &["Content-MD5"], true),
            (&["content-md5"], &["content-md"], false),
        ] {
            let rules = [rule(&[CorsMethod::Put], &["*"], patterns)];
            let found = place(&rules, ("https://a", "PUT"), asked).is_some();
            assert_eq!(found, is_allowed, "{patterns:?} {asked:?}");
        }
    }

    #[test]
    fn the_first_rule_that_allows_everything_counts() {
        let (get, put) = (CorsMethod::Get, CorsMethod::Put);
        let rules = [
            rule(&[put], &["https://a"], &["x-a"]),
            rule(&[get, put], &["https://*"], &["*"]),
            rule(&[get], &["*"], &[]),
        ];
        for (asked, headers, found) in [
            (("https://a", "PUT"), &["x-a"][..], Some(0)),
            (("https://a", "PUT"), &["x-b"], Some(1)),
            (("https://a", "GET"), &["x-a"], Some(1)),
            (("http://a", "GET"), &[], Some(2)),
            (("http://a", "GET"), &["x-a"], None),
            (("http://a", "PUT"), &[], None),
            (("https://a", "DELETE"), &[], None),
            (("https://a", "get"), &[], None),
        ] {
            assert_eq!(place(&rules, asked, headers), found, "{asked:?} {headers:?}");
        }
    }

    proptest! {
        #[test]
        fn a_wildcard_stands_for_any_text_and_no_other_pattern_does(
            start in "[ab]{0,3}", end in "[ab]{0,3}", text in "[ab]{0,8}",
        ) {
            let eq = <[u8]>::eq;
            let between = format!("{start}{text}{end}");
            let pattern = format!("{start}*{end}");
            prop_assert!(fits(&pattern, &between, eq));
            // The same by trying each place at which the text for the wildcard could begin and end.
            let by_trying = (0..=text.len()).any(|from| {
                (from..=text.len()).any(|to| text[..from] == start && text[to..] == end)
            });
            prop_assert_eq!(fits(&pattern, &text, eq), by_trying);
            prop_assert_eq!(fits(&start, &text, eq), start == text);
        }
    }
}
