//! Parser of the text format of Prometheus, for the metrics of a gateway. Only its names, labels and values are read:
//! comments, timestamps and exemplars are skipped.

use std::borrow::Cow;

/// Line of a series.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// Name of the metric.
    pub name: &'a str,
    /// Labels between the braces, as they are written.
    labels: &'a str,
    /// Value as it is written.
    value: &'a str,
}

/// Parses the series whose names begin with a prefix. Malformed lines are skipped.
pub fn series<'a>(page: &'a str, prefix: &str) -> impl Iterator<Item = Series<'a>> {
    page.lines().filter(move |line| line.starts_with(prefix)).filter_map(Series::parse)
}

impl<'a> Series<'a> {
    fn parse(line: &'a str) -> Option<Series<'a>> {
        let (name, rest) = line.split_at(line.find(['{', ' '])?);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_at_checked(end_of_labels(rest)?)?,
            None => ("", rest),
        };
        let value = rest.trim_start_matches('}').split_ascii_whitespace().next()?;
        Some(Series { name, labels, value })
    }

    /// Returns the value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.labels;
        while let Some((found, quoted)) = rest.split_once("=\"") {
            let (value, after) = quoted.split_at_checked(end_of_value(quoted)?)?;
            if found.trim_start_matches([',', ' ']) == name {
                return Some(unescape(value));
            }
            rest = after.get(1..)?;
        }
        None
    }

    /// Returns the value of a counter.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        self.value.parse().ok()
    }

    /// Returns the value of a gauge.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        self.value.parse().ok()
    }
}

/// Returns the index of the brace that ends the labels.
fn end_of_labels(text: &str) -> Option<usize> {
    let mut index: usize = 0;
    loop {
        let rest = text.get(index..)?;
        let next = rest.find(['"', '}'])?;
        index = index.checked_add(next)?;
        if text.get(index..)?.starts_with('}') {
            return Some(index);
        }
        let value = index.checked_add(1)?;
        index = value.checked_add(end_of_value(text.get(value..)?)?)?.checked_add(1)?;
    }
}

/// Returns the index of the quote that ends a value.
fn end_of_value(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

fn unescape(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        out.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some(escaped) => escaped,
                None => '\\',
            },
            character => character,
        });
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::series;

    const PAGE: &str = r#"# HELP gateway_decisions_total Decisions.
# TYPE gateway_decisions_total counter
gateway_decisions_total{domain="a",policy="x} \"y\",outcome=\"denied\"\\",outcome="allowed"} 12
gateway_decisions_total{ domain="b", outcome="denied", } 3 1700000000000
gateway_seconds_bucket{le="+Inf"} 4
gateway_outage 0
gateway_start 1700000000.25
service_hits{domain="a"} 7
gateway_broken{domain="a
gateway_broken{domain="a"
gateway_broken{domain=a} x
gateway_broken

"#;

    #[test]
    fn series_have_names_labels_and_values() {
        let all: Vec<_> = series(PAGE, "gateway_").collect();
        let names: Vec<&str> = all.iter().map(|series| series.name).collect();
        let expected = ["decisions_total", "decisions_total", "seconds_bucket", "outage", "start", "broken"];
        assert_eq!(names, expected.map(|name| format!("gateway_{name}")));
        let label = |index: usize, name| all[index].label(name).unwrap_or_default().into_owned();
        assert_eq!([label(0, "domain"), label(0, "outcome"), label(1, "outcome")], ["a", "allowed", "denied"]);
        assert_eq!([label(0, "policy"), label(0, "none"), label(2, "le")], [r#"x} "y",outcome="denied"\"#, "", "+Inf"]);
        assert_eq!([all[0].count(), all[1].count(), all[3].count()], [Some(12), Some(3), Some(0)]);
        assert_eq!((all[4].number(), all[4].count()), (Some(1_700_000_000.25), None));
        assert_eq!((all[5].number(), all[5].label("domain")), (None, None), "a label without quotes");
    }

    #[test]
    fn every_prefix_of_a_page_is_parsed_without_a_panic() {
        for end in 0..PAGE.len() {
            let found = series(&PAGE[..end], "gateway_").filter(|series| series.label("outcome").is_some());
            assert!(found.count() <= 2);
        }
    }
}
