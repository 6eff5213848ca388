//! Normal form of request paths: spellings that servers treat as the same path are the same path in rules and keys.

use crate::template::matches_parts;

/// Returns the path of a request target in its normal form, without query, path parameters and trailing slash.
///
/// # Errors
/// If the path has a NUL, or if servers interpret it in different ways.
pub fn normalize(target: &[u8]) -> Result<Vec<u8>, String> {
    let target = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    // A `#` is invalid in a request target (RFC 3986). Go treats `/x#/../login` as `/login`, and other servers end the
    // path at the `#`.
    if target.contains(&b'#') {
        return Err("the path has a '#'".to_owned());
    }
    // A backslash is invalid, too. Envoy's normalize_path, browsers and IIS treat it as a slash.
    if target.contains(&b'\\') {
        return Err("the path has a backslash".to_owned());
    }
    let path = without_origin(target);
    if path == b"*" {
        return Ok(path.to_vec());
    }
    let mut segments: Vec<Vec<u8>> = vec![];
    for raw in path.strip_prefix(b"/").unwrap_or(path).split(|byte| *byte == b'/') {
        let name = raw.split(|byte| *byte == b';').next().unwrap_or_default();
        let segment = canonical_spelling(name);
        if has_nul(raw) {
            return Err("the path has a NUL".to_owned());
        }
        let is_dots = segment == b"." || segment == b"..";
        // Servers that remove the parameters first see a dot segment here, and others see a name.
        if is_dots && name.len() < raw.len() {
            return Err("the path has a dot segment with parameters".to_owned());
        }
        if segment == b".." {
            // Servers that merge slashes first remove the segment before the slashes, others remove the empty segment.
            if segments.pop().is_some_and(|removed| removed.is_empty()) {
                return Err("the path has a dot segment after two slashes".to_owned());
            }
        } else if !is_dots {
            segments.push(segment);
        }
    }
    let mut path = Vec::with_capacity(path.len() + 1);
    for segment in segments.iter().filter(|segment| !segment.is_empty()) {
        path.push(b'/');
        path.extend(segment);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    Ok(path)
}

/// Returns the path of an absolute URI, and any other target unchanged.
fn without_origin(target: &[u8]) -> &[u8] {
    let is_scheme_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let scheme_length = target.iter().position(|byte| !is_scheme_byte(byte)).unwrap_or_default();
    let Some((_, rest)) = target.split_at_checked(scheme_length).filter(|(scheme, _)| !scheme.is_empty()) else {
        return target;
    };
    let Some(rest) = rest.strip_prefix(b"://") else { return target };
    let authority_length = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    rest.get(authority_length..).unwrap_or_default()
}

/// Returns `true` if the text contains a NUL, plain or encoded as `%00`.
fn has_nul(text: &[u8]) -> bool {
    text.contains(&0) || text.windows(3).any(|window| window == b"%00")
}

/// Returns the text with each byte in its canonical spelling: plain if a path may contain the byte (RFC 3986),
/// otherwise as `%XX`. Encoded slashes and semicolons stay encoded.
fn canonical_spelling(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let encoded = decode_first(rest);
        let (byte, is_plain) = match encoded {
            Some(byte) => (byte, is_path_character(byte)),
            None => (*first, *first == b'/' || is_path_character(*first)),
        };
        rest = if encoded.is_some() { rest.get(3..).unwrap_or_default() } else { after };
        if is_plain {
            out.push(byte);
        } else {
            out.extend(format!("%{byte:02X}").bytes());
        }
    }
    out
}

/// Returns the byte that the text begins with in the form `%XX`. Returns `None` for a plain byte.
fn decode_first(text: &[u8]) -> Option<u8> {
    let [b'%', digits @ ..] = text.get(..3)? else { return None };
    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok().filter(|_| is_hex)
}

/// Returns `true` if a segment may contain the character (`pchar` of RFC 3986), except `;` and `%`.
fn is_path_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte)
}

/// Pattern of paths, in which `*` matches any text.
#[derive(Clone, Debug)]
pub struct PathPattern {
    parts: Vec<Vec<u8>>,
    ignores_case: bool,
}

impl PathPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// If the pattern matches no path in normal form.
    pub fn parse(text: &str, ignores_case: bool) -> Result<PathPattern, String> {
        let useless = |why: &str| format!("the path '{}' matches no request: {why}", text.escape_debug());
        if text.contains(['?', ';']) {
            return Err(useless("queries and path parameters are removed from the paths of requests"));
        }
        let rooted = if text.starts_with('*') { format!("/{text}") } else { text.to_owned() };
        if !rooted.starts_with('/') {
            return Err(useless("it must begin with / or *"));
        }
        let normal = normalize(rooted.as_bytes()).map_err(|why| useless(&why))?;
        let canonical = canonical_spelling(rooted.as_bytes());
        if canonical != b"/" && canonical.strip_suffix(b"/").unwrap_or(&canonical) != normal {
            return Err(useless("repeated slashes and dot segments are removed from the paths of requests"));
        }
        let part = |part: &str| {
            let part = canonical_spelling(part.as_bytes());
            if ignores_case { part.to_ascii_lowercase() } else { part }
        };
        Ok(PathPattern { parts: text.split('*').map(part).collect(), ignores_case })
    }

    /// Returns `true` if the pattern matches a path in normal form, with or without a trailing slash.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        let mut path = if self.ignores_case { path.to_ascii_lowercase() } else { path.to_vec() };
        let matches = |path: &[u8]| matches_parts(self.parts.iter().map(Vec::as_slice), path);
        matches(&path) || {
            path.push(b'/');
            matches(&path)
        }
    }
}

#[cfg(test)]
mod tests;
