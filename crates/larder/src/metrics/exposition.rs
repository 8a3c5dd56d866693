//! The two forms in which Prometheus reads metrics: OpenMetrics, in which they are written here, and its older text.

use std::collections::BTreeSet;

use http::HeaderMap;
use http::header::ACCEPT;

/// A form of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    OpenMetrics,
    Text,
}

impl Form {
    /// The form that a request accepts: the older text, unless it names the other.
    pub(super) fn accepted(headers: &HeaderMap) -> Self {
        let names_it = |value: &http::HeaderValue| {
            value.to_str().is_ok_and(|it| it.contains("application/openmetrics-text"))
        };
        match headers.get_all(ACCEPT).iter().any(names_it) {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    /// Its name in `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Metrics in this form.
    pub(super) fn of(self, openmetrics: String) -> String {
        match self {
            Self::OpenMetrics => openmetrics,
            Self::Text => as_text(&openmetrics),
        }
    }
}

/// In the older text a counter is named as its samples are, and nothing marks the end.
fn as_text(openmetrics: &str) -> String {
    let type_of = |line: &str| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        (kind == "counter").then(|| name.to_owned())
    };
    let counters: BTreeSet<String> = openmetrics.lines().filter_map(type_of).collect();
    let mut text = String::with_capacity(openmetrics.len() + 16 * counters.len());
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT"), ..) => continue,
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                text.extend(["# ", kind, " ", name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_text_names_a_counter_as_its_samples() {
        let openmetrics = "# HELP a Things.\n# TYPE a counter\na_total{op=\"x y\"} 1\n# HELP b Bytes.\n# TYPE b gauge\n\
                           # UNIT b bytes\nb 2\n# EOF\n";
        let text = "# HELP a_total Things.\n# TYPE a_total counter\na_total{op=\"x y\"} 1\n# HELP b Bytes.\n\
                    # TYPE b gauge\nb 2\n";
        assert_eq!(Form::Text.of(openmetrics.to_owned()), text);
        assert_eq!(Form::OpenMetrics.of(openmetrics.to_owned()), openmetrics);
    }

    #[test]
    fn who_names_openmetrics_gets_it() {
        let form = |accept: Option<&'static str>| {
            let accept = accept.map(|it| (ACCEPT, http::HeaderValue::from_static(it)));
            Form::accepted(&HeaderMap::from_iter(accept))
        };
        assert_eq!(form(None), Form::Text);
        assert_eq!(form(Some("*/*")), Form::Text);
        assert_eq!(form(Some("text/plain;version=0.0.4")), Form::Text);
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(form(Some(prometheus)), Form::OpenMetrics);
    }
}
