use super::{PathPattern, normalize};

fn normal_form(target: &[u8]) -> Result<String, String> {
    normalize(target).map(|path| String::from_utf8(path).expect("a normal form is ASCII"))
}

#[test]
fn spellings_of_a_path_have_one_normal_form() {
    for (target, expected) in [
        ("/login", "/login"),
        ("/%6cogin", "/login"),
        ("/%6Cogin", "/login"),
        ("//login", "/login"),
        ("///login//", "/login"),
        ("/./login", "/login"),
        ("/%2e/login", "/login"),
        ("/x/../login", "/login"),
        ("/x/%2E%2e/login", "/login"),
        ("/../login", "/login"),
        ("/login/", "/login"),
        ("/login/.", "/login"),
        ("/login/x/..", "/login"),
        ("/login;a=b", "/login"),
        ("/login;a=b/;c", "/login"),
        ("/;x/login", "/login"),
        ("/login?a=b", "/login"),
        ("/login?a#b\\c", "/login"),
        ("/login;a?b", "/login"),
        ("http://example.com/login", "/login"),
        ("HTTPS://user@example.com:8443//login", "/login"),
        ("login", "/login"),
        ("/LOGIN", "/LOGIN"),
        ("/", "/"),
        ("", "/"),
        ("//", "/"),
        ("/.", "/"),
        ("/..", "/"),
        ("?a", "/"),
        ("http://example.com", "/"),
        ("http://example.com?a", "/"),
        ("*", "*"),
        ("/x://y", "/x:/y"),
        ("/...", "/..."),
        ("/a%2Fb", "/a%2Fb"),
        ("/a%2fb", "/a%2Fb"),
        ("/a%2f..%2fb", "/a%2F..%2Fb"),
        ("/a%3Bb", "/a%3Bb"),
        ("/a%252Fb", "/a%252Fb"),
        ("/a%3Ab", "/a:b"),
        ("/a%20b", "/a%20b"),
        ("/a b", "/a%20b"),
        ("/caf\u{e9}", "/caf%C3%A9"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/a%5c..%5Cb%23", "/a%5C..%5Cb%23"),
        ("/100%", "/100%25"),
        ("/%zz%2", "/%25zz%252"),
        ("/%+1%-1", "/%25+1%25-1"),
    ] {
        assert_eq!(normal_form(target.as_bytes()).as_deref(), Ok(expected), "{target}");
    }
    assert_eq!(normal_form(b"/\xff").as_deref(), Ok("/%FF"));
}

#[test]
fn ambiguous_paths_are_rejected() {
    let nul = "NUL";
    for (target, expected) in [
        ("/login%00", nul),
        ("/login\0", nul),
        ("/login;%00", nul),
        ("/x/..;/login", "parameters"),
        ("/login/..;a=b/", "parameters"),
        ("/x/.;/login", "parameters"),
        ("/x/%2e%2e;/login", "parameters"),
        ("/login//../", "two slashes"),
        ("/a//../login", "two slashes"),
        ("/a/;x/../login", "two slashes"),
        ("/login#", "'#'"),
        ("/x#/../login", "'#'"),
        ("http://example.com/login#a?b", "'#'"),
        ("/x\\..\\login", "backslash"),
        ("\\login", "backslash"),
        ("/login;\\", "backslash"),
        ("http://example.com\\..\\login", "backslash"),
    ] {
        assert!(normal_form(target.as_bytes()).is_err_and(|error| error.contains(expected)), "{target}");
    }
}

#[test]
fn normal_form_is_idempotent() {
    let pieces = ["/", "a", "..", ".", "%2e", "%2F", "%41", ";", "%3b", "%", "\u{e9}", "*", "http://"];
    let extend = |texts: Vec<String>| texts.into_iter().flat_map(|text| pieces.map(|piece| format!("{text}{piece}")));
    let mut targets = vec![String::new()];
    for _ in 0..4 {
        targets = extend(targets).collect();
        for target in &targets {
            if let Ok(path) = normal_form(target.as_bytes()) {
                assert_eq!(normal_form(path.as_bytes()).as_ref(), Ok(&path), "{target}");
                assert!(path.is_ascii() && !path.contains("//") && !path.contains(';'), "{target} {path}");
            }
        }
    }
}

#[test]
fn patterns_match_with_and_without_a_trailing_slash() {
    for (pattern, target, expected) in [
        ("/login", "/login/", true),
        ("/login/", "/login", true),
        ("/login", "/login/x", false),
        ("/login", "/LOGIN", false),
        ("/pay/*", "/pay", true),
        ("/pay/*", "/pay/", true),
        ("/pay/*", "/payment", false),
        ("/pay*", "/payment/", true),
        ("/*", "/", true),
        ("/", "/", true),
        ("/", "/x", false),
        ("*", "*", true),
        ("*.js", "/x.js", true),
        ("/a b", "/a%20b", true),
        ("/a%20b", "/a b", true),
        ("/caf\u{e9}/*", "/caf%c3%a9/x", true),
        ("/v1:call", "/v1%3Acall", true),
        ("/a%2fb", "/a%2Fb", true),
        ("/a%2Fb", "/a/b", false),
        ("*%2F*", "/a%2fb", true),
        ("/100%", "/100%25", true),
        ("/a%2Ab", "/a*b", true),
        ("/a%2Ab", "/axb", false),
    ] {
        let path = normalize(target.as_bytes()).expect("a path");
        let is_match = PathPattern::parse(pattern, false).expect("a pattern").matches(&path);
        assert_eq!(is_match, expected, "{pattern} {target}");
    }
    let pattern = PathPattern::parse("/Login/%2f*", true).expect("a pattern");
    assert!(pattern.matches(b"/lOGIN/%2Fx") && !pattern.matches(b"/log"));
}

#[test]
fn pattern_that_matches_no_request_is_rejected() {
    for (pattern, expected) in [
        ("", "begin with /"),
        ("login", "begin with /"),
        ("http://example.com/", "begin with /"),
        ("/a//b", "repeated slashes"),
        ("*//b", "repeated slashes"),
        ("/a/../b", "dot segments"),
        ("/a/.", "dot segments"),
        ("/a//../b", "two slashes"),
        ("/a;b", "path parameters"),
        ("/a?b", "queries"),
        ("/a%00", "NUL"),
        ("/a#b", "'#'"),
        ("/a\\b", "backslash"),
    ] {
        assert!(PathPattern::parse(pattern, false).is_err_and(|error| error.contains(expected)), "{pattern}");
    }
}
