//! Templates such as `pay:{header.x-user}`, and wildcard patterns such as `/pay/*`.

use crate::naming::is_separator;

/// Field of a template, written in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// Address of the client.
    Client,
    /// Method of the request.
    Method,
    /// Path of the request, without the query.
    Path,
    /// Header of the request, by its name in lower case.
    Header(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

/// Parsed template: text with fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// If a brace is not closed or a field is unknown.
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut parts = vec![];
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let unclosed = || format!("'{{{}' has no closing brace", after.escape_debug());
            let (name, after) = after.split_once('}').ok_or_else(unclosed)?;
            let field = match name {
                "client" => Field::Client,
                "method" => Field::Method,
                "path" => Field::Path,
                _ => match name.strip_prefix("header.") {
                    Some(header) if !header.is_empty() => Field::Header(header.to_ascii_lowercase()),
                    _ => {
                        let name = name.escape_debug();
                        return Err(format!("{{{name}}} must be {{client}}, {{method}}, {{path}} or {{header.NAME}}"));
                    }
                },
            };
            parts.extend([Part::Text(before.to_owned()), Part::Field(field)]);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Template(parts))
    }

    /// Parses a template of keys, in which different values of fields always make different keys.
    ///
    /// # Errors
    /// Returns the errors of [`Template::parse`] and [`check_separators`].
    pub fn parse_key(text: &str) -> Result<Template, String> {
        check_separators(text)?;
        Template::parse(text)
    }

    /// Returns the names of the headers in the template.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Field(Field::Header(name)) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Replaces the fields by their values.
    pub fn fill(&self, value: impl Fn(&Field) -> String) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Field(field) => value(field),
        };
        self.0.iter().map(text).collect()
    }
}

/// Checks that a template has a separator between each two fields. Without a separator, a client could choose values
/// that result in the key or the name of another client.
///
/// # Errors
/// If a separator is missing.
pub fn check_separators(text: &str) -> Result<(), String> {
    let mut fields = text.split('{').skip(1).peekable();
    while let Some(field) = fields.next() {
        let after = field.split_once('}').map_or("", |(_, after)| after);
        if fields.peek().is_some() && !after.contains(is_separator) {
            return Err(format!("'{}' must have a ':' between each two fields", text.escape_debug()));
        }
    }
    Ok(())
}

/// Returns `true` if a text matches a pattern, in which `*` matches any bytes.
#[must_use]
pub fn matches_wildcard(pattern: &str, text: &[u8]) -> bool {
    matches_parts(pattern.split('*').map(str::as_bytes), text)
}

/// Returns `true` if a text consists of these parts, in this order, with any bytes between them.
#[must_use]
pub fn matches_parts<'a>(mut parts: impl Iterator<Item = &'a [u8]>, text: &[u8]) -> bool {
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        if part.is_empty() {
            continue;
        }
        let Some(index) = rest.windows(part.len()).position(|window| window == part) else { return false };
        rest = rest.get(index + part.len()..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{Field, Template, matches_wildcard};

    #[test]
    fn fields_are_filled_in() {
        let template = Template::parse("pay:{header.X-User}:{client}").expect("a template");
        assert_eq!(template.headers().collect::<Vec<_>>(), ["x-user"]);
        let filled = template.fill(|field| if *field == Field::Client { "c".into() } else { "h".into() });
        assert_eq!(filled, "pay:h:c");
    }

    #[test]
    fn malformed_fields_are_rejected() {
        for text in ["{", "{nope}", "{header.}", "a{client"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn key_without_a_separator_between_fields_is_rejected() {
        for text in ["{client}{path}", "a:{method}-{client}", "{path}/{client}", "{client}:{path}%{method}"] {
            assert!(Template::parse_key(text).is_err_and(|error| error.contains("between each two fields")), "{text}");
        }
        for text in ["{client}:{path}", "{client}|a={path}", "a{client}b", "{client}/a:b/{path}", "a"] {
            assert!(Template::parse_key(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn star_matches_any_bytes() {
        for (pattern, text, expected) in [
            ("/pay/*", "/pay/1", true),
            ("/pay/*", "/payment", false),
            ("*", "", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1c2b", false),
            ("a*ab", "ab", false),
            ("abc", "abcd", false),
            ("*.js", "x.js.js", true),
            ("", "", true),
            ("", "x", false),
            ("**", "x", true),
            ("a**b", "ab", true),
        ] {
            assert_eq!(matches_wildcard(pattern, text.as_bytes()), expected, "{pattern} {text}");
        }
        assert!(
            matches_wildcard("g*", b"g\xff")
                && matches_wildcard("*\u{e9}*", b"\xff\xc3\xa9")
                && !matches_wildcard("g", b"g\xff")
        );
    }
}
