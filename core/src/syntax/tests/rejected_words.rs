//! Options in any order, and words that are missing or not allowed.

use super::*;

#[test]
fn options_are_accepted_in_any_order_and_case() {
    for (limit, options) in [
        ("TOKENBUCKET 10 1 1s", &["COST 12", "FORCE"][..]),
        ("TOKENBUCKET 10 1 1s", &["COST 12", "UPTO"]),
        ("TOKENBUCKET 10 1 1s", &["COST 7", "MAXWAIT 5"]),
        ("LEAKYBUCKET 10 1 1s", &["COST 12", "FORCE"]),
        ("FIXED 10 60s", &["ALIGNED", "COST 12", "UPTO"]),
        ("FIXED 10 60s", &["ALIGNED", "COST 12", "FORCE"]),
        ("FIXED 10 60s", &["ALIGNED", "COST -1"]),
        ("SLIDING 10 60s", &["STRICT", "COST 12", "UPTO"]),
        ("SLIDING 10 60s", &["STRICT", "COST 12", "FORCE"]),
        ("SLIDINGLOG 10 60s", &["COST 12", "FORCE"]),
    ] {
        let parse_options = |options: &str| {
            let text = format!("{limit} {options}");
            let words: Vec<&str> = text.split(' ').collect();
            let (limit, request) = parse(&words).unwrap();
            (limit.to_string(), request)
        };
        let expected = parse_options(&options.join(" "));
        assert_ne!(expected.1, Request::Take(Amount::ONE), "the options have an effect");
        for order in permutations(options) {
            let text = order.join(" ");
            let mixed_case: String = text
                .chars()
                .enumerate()
                .map(|(index, letter)| if index % 2 == 0 { letter.to_ascii_lowercase() } else { letter })
                .collect();
            for text in [text.to_lowercase(), mixed_case, text] {
                assert_eq!(parse_options(&text), expected, "{limit} {text}");
            }
        }
    }
}

#[test]
fn error_of_an_unexpected_word_lists_the_allowed_ones() {
    const TOKEN: &str = "COST, UPTO, FORCE, MAXWAIT, KEEP, AS, ONCE or SETTLE";
    const PLAIN: &str = "COST, UPTO, FORCE, KEEP, AS, ONCE or SETTLE";
    const FIXED: &str = "COST, UPTO, FORCE, KEEP, AS, ALIGNED, OFFSET, ANCHOR, ONCE or SETTLE";
    const SLIDING: &str = "COST, UPTO, FORCE, KEEP, AS, STRICT, ONCE or SETTLE";
    const LEASES: &str = "COST, KEEP, AS or NX";
    let algorithms = one_of(&Spec::ALGORITHMS.map(|(name, _)| name));
    for (text, word, options) in [
        ("TOKENBUCKET 10 1 1s 5", "5", TOKEN),
        ("TOKENBUCKET 10 1 1s COST 1 FOO", "FOO", TOKEN),
        ("TOKENBUCKET 10 1 1s CO", "CO", TOKEN),
        ("TOKENBUCKET 10 1 1s COSTS 1", "COSTS", TOKEN),
        ("TOKENBUCKET 10 1 1s ALIGNED", "ALIGNED", TOKEN),
        ("TOKENBUCKET 10 1 1s STRICT", "STRICT", TOKEN),
        ("TOKENBUCKET 10 1 1s NX", "NX", TOKEN),
        ("LEAKYBUCKET 10 1 1s MAXWAIT 1s", "MAXWAIT", PLAIN),
        ("FIXED 10 60s STRICT", "STRICT", FIXED),
        ("FIXED 10 60s MAXWAIT 1s", "MAXWAIT", FIXED),
        ("SLIDING 10 60s ALIGNED", "ALIGNED", SLIDING),
        ("SLIDING 10 60s MAXWAIT 1s", "MAXWAIT", SLIDING),
        ("SLIDING 10 60s STRICT MAXWAIT 1s", "MAXWAIT", SLIDING),
        ("SLIDINGLOG 10 60s STRICT", "STRICT", PLAIN),
        ("SLIDINGLOG 10 60s MAXWAIT 1s", "MAXWAIT", PLAIN),
        ("CONCURRENCY 10 60s me UPTO", "UPTO", LEASES),
        ("CONCURRENCY 10 60s me FORCE", "FORCE", LEASES),
        ("CONCURRENCY 10 60s me MAXWAIT 1s", "MAXWAIT", LEASES),
        ("CONCURRENCY 10 60s me ONCE a 1s", "ONCE", LEASES),
        ("CONCURRENCY 10 60s me SETTLE a 1", "SETTLE", LEASES),
        ("CONCURRENCY 10 60s me extra", "extra", LEASES),
    ] {
        let suggestion = match word {
            "COSTS" => "; did you mean COST?",
            "5" => "; did you mean COST '5'?",
            _ => "",
        };
        let needed = format!("an option of the spec before, BAN or an algorithm is needed: {options}; {algorithms}");
        let expected = format!("ERR syntax error, unexpected '{word}', where {needed}{suggestion}");
        assert_eq!(parse_request(text).unwrap_err().to_string(), expected, "{text}");
        let expected =
            format!("ERR syntax error, unexpected '{word}', where an option is needed: {options}{suggestion}");
        assert_eq!(parse_own_command(text).unwrap_err().to_string(), expected, "{text}");
    }
    for (text, word, earlier_option) in [
        // Duplicate options.
        ("TOKENBUCKET 10 1 1s COST 1 COST 1", "COST", ""),
        ("TOKENBUCKET 10 1 1s cost 1 UPTO cost 1", "cost", ""),
        ("TOKENBUCKET 10 1 1s UPTO UPTO", "UPTO", ""),
        ("TOKENBUCKET 10 1 1s FORCE COST 1 force", "force", ""),
        ("TOKENBUCKET 10 1 1s MAXWAIT 1s MAXWAIT 1s", "MAXWAIT", ""),
        ("TOKENBUCKET 10 1 1s KEEP 1 KEEP 10%", "KEEP", ""),
        ("TOKENBUCKET 10 1 1s AS a AS b", "AS", ""),
        ("TOKENBUCKET 10 1 1s ONCE a 1s ONCE b 1s", "ONCE", ""),
        ("TOKENBUCKET 10 1 1s SETTLE a 1 SETTLE b 1", "SETTLE", ""),
        ("FIXED 10 60s ALIGNED COST 1 Aligned", "Aligned", ""),
        ("SLIDING 10 60s STRICT STRICT", "STRICT", ""),
        ("SLIDINGLOG 10 60s COST 1 COST 1", "COST", ""),
        ("CONCURRENCY 10 60s me COST 1 COST 1", "COST", ""),
        ("CONCURRENCY 10 60s me NX COST 1 nx", "nx", ""),
        // Mutually exclusive options.
        ("TOKENBUCKET 10 1 1s UPTO FORCE", "FORCE", "UPTO"),
        ("TOKENBUCKET 10 1 1s FORCE UPTO", "UPTO", "FORCE"),
        ("TOKENBUCKET 10 1 1s UPTO MAXWAIT 1s", "MAXWAIT", "UPTO"),
        ("TOKENBUCKET 10 1 1s MAXWAIT 1s COST 1 FORCE", "FORCE", "MAXWAIT"),
        ("TOKENBUCKET 10 1 1s ONCE a 1s SETTLE a 1", "SETTLE", "ONCE"),
        ("LEAKYBUCKET 10 1 1s UPTO FORCE", "FORCE", "UPTO"),
        ("FIXED 10 60s UPTO ALIGNED FORCE", "FORCE", "UPTO"),
        ("SLIDING 10 60s FORCE STRICT UPTO", "UPTO", "FORCE"),
        ("SLIDINGLOG 10 60s FORCE UPTO", "UPTO", "FORCE"),
    ] {
        let reason = if earlier_option.is_empty() { Reason::Duplicate } else { Reason::ExcludedBy(earlier_option) };
        let expected = Err(Error::unexpected(word.as_bytes(), reason));
        assert_eq!(
            (parse_request(text), parse_own_command(text).map(|spec| spec.request)),
            (expected.clone(), expected),
            "{text}"
        );
    }
    for name in ["RL.FIXED", "THROTTLE", "FIXE", "STRICT", "10", "AS"] {
        let options = "COST, UPTO, FORCE, MAXWAIT, KEEP, ONCE, SETTLE or EACH";
        let needed = format!("an option, POLICY or an algorithm is needed: {options}; {algorithms}");
        let suggestion = match name {
            "RL.FIXED" | "FIXE" => "; did you mean FIXED?",
            // A number is unlikely to be the name of a policy.
            "10" => "",
            _ => "; for a policy: RL.TAKE key POLICY name",
        };
        let expected = format!("ERR syntax error, unexpected '{name}', where {needed}{suggestion}");
        assert_eq!(parse(&[name, "10", "60s"]).unwrap_err(), expected);
        assert_eq!(parse(&["COST", "5", name, "10", "60s"]).unwrap_err(), expected);
    }
}

#[test]
fn error_of_a_cost_names_the_conflicting_mode() {
    for (algorithm, arguments) in &ARGUMENTS[..5] {
        let words = |options: &[&'static str]| [&valid_spec(algorithm, arguments), options].concat();
        let upto = |cost: &str| Error::out_of_range("cost", &COST_UPTO, cost.as_bytes()).to_string();
        for cost in [
            "0",
            "-0",
            "0.5",
            "1.5",
            "0.0000001",
            "1.000001",
            "1.0000001",
            "0.9999999",
            "1.9999999",
            "-1",
            "-0.0000001",
        ] {
            assert_eq!(parse(&words(&["COST", cost, "UPTO"])).unwrap_err(), upto(cost), "{algorithm} {cost}");
            assert_eq!(parse(&words(&["UPTO", "COST", cost])).unwrap_err(), upto(cost), "{algorithm} {cost}");
        }
        for (cost, units_asked) in
            [("1", 1), ("1.0", 1), ("1e0", 1), ("10e-1", 1), ("1000000000000", 1_000_000_000_000)]
        {
            assert_eq!(
                parse(&words(&["UPTO", "COST", cost])).unwrap().1,
                Request::UpTo(units(units_asked)),
                "{algorithm} {cost}"
            );
        }
        let modes: &[&[&str]] =
            if *algorithm == "TOKENBUCKET" { &[&["FORCE"], &["MAXWAIT", "1s"]] } else { &[&["FORCE"]] };
        for mode in modes {
            for cost in ["-1", "-0.0000001", "-1e12"] {
                let with_mode = Error::out_of_range("cost", &COST_WITH_MODE, cost.as_bytes()).to_string();
                let (cost, mode) = (vec!["COST", cost], mode.to_vec());
                for options in [[cost.clone(), mode.clone()].concat(), [mode, cost].concat()] {
                    assert_eq!(parse(&words(&options)).unwrap_err(), with_mode, "{algorithm} {options:?}");
                }
            }
            let options = [vec!["COST", "-0"], mode.to_vec()].concat();
            let request = parse(&words(&options)).unwrap().1;
            assert!(
                matches!(request, Request::Force(Amount::ZERO) | Request::Within(Amount::ZERO, _)),
                "{algorithm} {request:?}"
            );
        }
    }
    for cost in ["0", "-0", "-1"] {
        let expected = Error::out_of_range("cost", &COST_OF_LEASE, cost.as_bytes()).to_string();
        assert_eq!(parse(&["CONCURRENCY", "5", "60s", "me", "COST", cost]).unwrap_err(), expected);
    }
}

#[test]
fn error_of_a_missing_word_shows_the_syntax() {
    for (algorithm, arguments) in ARGUMENTS {
        let words = valid_spec(algorithm, arguments);
        assert_eq!(parse(&[]).unwrap_err(), "ERR a spec is missing: RL.TAKE key [options] spec [spec ...]");
        for (count, (name, _)) in arguments.iter().enumerate() {
            let expected = format!("ERR {name} is missing: {}", syntax(algorithm));
            assert_eq!(parse(&words[..=count]).unwrap_err(), expected, "{algorithm} {count}");
        }
        let message = parse(&[&words[..], &["COST"]].concat()).unwrap_err();
        assert_eq!(message, "ERR cost is missing: COST amount", "{algorithm}");
    }
    for (options, message) in [
        ("MAXWAIT", "ERR maxwait is missing: MAXWAIT duration"),
        ("KEEP", "ERR keep is missing: KEEP amount, or KEEP n%"),
        ("AS", "ERR name is missing: AS name"),
        ("ONCE", "ERR id is missing: ONCE id ttl"),
        ("ONCE a", "ERR ttl is missing: ONCE id ttl"),
        ("SETTLE", "ERR id is missing: SETTLE id amount"),
        ("SETTLE a", "ERR amount is missing: SETTLE id amount"),
        ("BAN 3", "ERR window is missing: BAN strikes window block [MAX longest]"),
    ] {
        assert_eq!(parse_request(&format!("TOKENBUCKET 10 1 1s {options}")).unwrap_err().to_string(), message);
    }
    for (options, message) in [
        ("ALIGNED OFFSET", "ERR offset is missing: ALIGNED OFFSET +hh:mm"),
        ("ALIGNED ANCHOR", "ERR anchor is missing: ALIGNED ANCHOR day"),
    ] {
        assert_eq!(parse_request(&format!("FIXED 10 1mo {options}")).unwrap_err().to_string(), message);
    }
    let message = |text| KeyRequest::take(&mut Args::new(leaked(text)), None).unwrap_err().to_string();
    assert_eq!(message("POLICY"), "ERR name is missing: POLICY name [OR name ...]");
    assert_eq!(message("POLICY a OR"), "ERR name is missing: OR name");
}
