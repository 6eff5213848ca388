//! A text with places to fill in, `pay:{header.x-user}`, and patterns, `/pay/*`.

use crate::naming::is_separator;

/// What stands in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// The address of the client.
    Client,
    /// The method of the request.
    Method,
    /// Its path, without the query.
    Path,
    /// One of its headers, by its name in lower case.
    Header(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

/// A text with fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

impl Template {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(text: &str) -> Result<Template, String> {
        let mut parts = vec![];
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            let unclosed = || format!("'{{{}' has no closing brace", behind.escape_debug());
            let (name, behind) = behind.split_once('}').ok_or_else(unclosed)?;
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
            rest = behind;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Template(parts))
    }

    /// Reads a template of keys, of which different fields must never make the same.
    ///
    /// # Errors
    /// As for [`Template::read`], and if nothing separates two of its fields.
    pub fn read_key(text: &str) -> Result<Template, String> {
        separated(text)?;
        Template::read(text)
    }

    /// The headers that it needs.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Field(Field::Header(name)) => Some(name.as_str()),
            _ => None,
        })
    }

    /// With its fields filled in.
    pub fn filled(&self, value: impl Fn(&Field) -> String) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Field(field) => value(field),
        };
        self.0.iter().map(text).collect()
    }
}

/// Checks that a text has a separator between each two of its fields in braces: without one, a client could choose values
/// that make the key or the name of another.
///
/// # Errors
/// If there is none.
pub fn separated(text: &str) -> Result<(), String> {
    let mut fields = text.split('{').skip(1).peekable();
    while let Some(field) = fields.next() {
        let behind = field.split_once('}').map_or("", |(_, behind)| behind);
        if fields.peek().is_some() && !behind.contains(is_separator) {
            return Err(format!("'{}' must have a ':' between each two fields", text.escape_debug()));
        }
    }
    Ok(())
}

/// Whether a text, which may be any bytes, fits a pattern in which `*` stands for anything.
#[must_use]
pub fn fits(pattern: &str, text: &[u8]) -> bool {
    fits_parts(pattern.split('*').map(str::as_bytes), text)
}

/// Returns `true` if a text consists of these parts with any texts between them.
#[must_use]
pub fn fits_parts<'a>(mut parts: impl Iterator<Item = &'a [u8]>, text: &[u8]) -> bool {
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
        let Some(place) = rest.windows(part.len()).position(|one| one == part) else { return false };
        rest = rest.get(place + part.len()..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{Field, Template, fits};

    #[test]
    fn fields_are_filled_in() {
        let template = Template::read("pay:{header.X-User}:{client}").expect("a template");
        assert_eq!(template.headers().collect::<Vec<_>>(), ["x-user"]);
        let filled = template.filled(|field| if *field == Field::Client { "c".into() } else { "h".into() });
        assert_eq!(filled, "pay:h:c");
    }

    #[test]
    fn what_is_no_field_is_refused() {
        for text in ["{", "{nope}", "{header.}", "a{client"] {
            assert!(Template::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fields_of_a_key_without_a_separator_are_refused() {
        for text in ["{client}{path}", "a:{method}-{client}", "{path}/{client}", "{client}:{path}%{method}"] {
            assert!(Template::read_key(text).is_err_and(|told| told.contains("between each two fields")), "{text}");
        }
        for text in ["{client}:{path}", "{client}|a={path}", "a{client}b", "{client}/a:b/{path}", "a"] {
            assert!(Template::read_key(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_star_stands_for_anything() {
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
            assert_eq!(fits(pattern, text.as_bytes()), expected, "{pattern} {text}");
        }
        assert!(fits("g*", b"g\xff") && fits("*\u{e9}*", b"\xff\xc3\xa9") && !fits("g", b"g\xff"));
    }
}
