//! Payloads of composite keys that no calls can lead to, and decisions on converted plain keys.

use super::*;

/// Edit that turns a usage into one that no calls can lead to.
type Corruption = fn(&mut CompositeUsage);

#[test]
fn impossible_payload_is_rejected() {
    let mut server = Server::default();
    let text = "COST 2 ONCE r1 1h TOKENBUCKET 9 1 1h FIXED 9 1h AS a SLIDINGLOG 9 1h";
    decide(&mut server, text, at(0));
    decide(&mut server, "COST 1 CONCURRENCY 9 1h me FIXED 9 1h COST 1", at(0));
    let valid = server.components().unwrap().clone();
    let is_decodable =
        |usage: &CompositeUsage| crate::testing::encoded_fields::decoded::<CompositeUsage>(&encoded(usage)).is_some();
    assert!(is_decodable(&valid));
    let corruptions: [(&str, Corruption); 11] = [
        ("two components with one serial number", |usage| renumber(usage, 1, usage.components[0].serial())),
        ("two components with one name", |usage| copy(usage, 1, 9, ComponentIdentity::Name(b"a"[..].into()))),
        ("two tables of leases", |usage| copy(usage, 3, 9, ComponentIdentity::Name(b"other"[..].into()))),
        ("a serial number out of range", |usage| copy(usage, 1, 24, ComponentIdentity::Name(b"b"[..].into()))),
        ("seventeen components", |usage| {
            for serial in 10..22_u8 {
                copy(usage, 1, serial, ComponentIdentity::Name(vec![b'a' + serial].into()));
            }
        }),
        ("a settlement without recorded charges", |usage| {
            usage.extras_mut().records.unpack_permanently().unwrap().calls = IdempotencyTable::default();
        }),
        ("a recorded charge without a settlement", |usage| {
            usage.extras_mut().records.unpack_permanently().unwrap().drop_settlement(0);
        }),
        ("a recorded charge without its component", |usage| {
            usage.components = usage.components[1..].into();
        }),
        ("an unused component", |usage| {
            let unused = AnyUsage::unused(UsageKind::FixedWindow).unwrap();
            usage.components[4].usage = unused.with_label(*usage.components[4].usage.label());
        }),
        ("an unused key", |usage| *usage = CompositeUsage::default()),
        ("a charge that the settlement does not know", |usage| {
            let calls = &mut usage.extras_mut().records.unpack_permanently().unwrap().calls;
            let charge: Charge = calls.charges()[0];
            let copied_call = calls.find(b"r1", at(0)).unwrap().with(Box::from([charge, charge]));
            calls.sweep(at(0), Some(b"r2"), |_| {});
            calls.record_call(b"r2", &copied_call);
        }),
    ];
    for (description, corrupt) in corruptions {
        let mut usage = valid.clone();
        corrupt(&mut usage);
        assert!(!is_decodable(&usage), "{description}");
    }
    for name in [&b" "[..], b""] {
        let mut usage = valid.clone();
        usage.set_identity(1, ComponentIdentity::Name(name.into()));
        assert!(!is_decodable(&usage), "the name {name:?}");
    }
    let mut usage = CompositeUsage::default();
    let integers = |usage: &CompositeUsage| {
        let mut fields = encoded(usage);
        std::iter::from_fn(|| crate::wire::codec::Decoder::integer(&mut fields)).collect::<Vec<_>>()
    };
    let mut server = Server::default();
    decide(&mut server, "FIXED 9 1h FIXED 9 1m COST 1", at(0));
    usage.clone_from(server.components().unwrap());
    let mut fields = integers(&usage);
    let decoded = |fields: &[u64]| {
        crate::testing::encoded_fields::decoded::<CompositeUsage>(
            &crate::testing::encoded_fields::EncodedFields::integers(fields.iter().copied()),
        )
        .is_some()
    };
    assert!(decoded(&fields));
    assert_eq!(fields.pop(), Some(0));
    fields.extend([1, 0, 0, 0]);
    assert!(!decoded(&fields), "empty records and an empty ban");
    let mut usage = valid.clone();
    for serial in 10..21_u8 {
        copy(&mut usage, 1, serial, ComponentIdentity::Name(vec![b'a' + serial].into()));
    }
    assert_eq!((usage.components.len(), is_decodable(&usage)), (16, true));
    for mut truncated in encoded(&valid).proper_prefixes() {
        assert!(CompositeUsage::decode(&mut truncated, 1).is_none());
    }
}

/// Adds a copy of a component with another serial number and identity.
fn copy(usage: &mut CompositeUsage, index: usize, serial: u8, identity: ComponentIdentity) {
    let component = usage.components[index].clone();
    usage.push(component);
    let copied = usage.components.len() - 1;
    usage.components[copied].usage.label_mut().serial = serial;
    usage.set_identity(copied, identity);
}

/// Changes the serial number of a component.
fn renumber(usage: &mut CompositeUsage, index: usize, serial: u8) {
    let identity = usage.components[index].identity(usage.extras());
    usage.components[index].usage.label_mut().serial = serial;
    usage.set_identity(index, identity);
}

fn of_plain<U: PlainUsage>(usage: &U, expires_at: u64, now: Timestamp) -> CompositeUsage {
    CompositeUsage::of_plain(usage.clone(), Some(expires_at), now)
}

#[test]
fn converted_plain_key_gives_the_same_decisions() {
    for text in [
        "TOKENBUCKET 9 1 1s",
        "FIXED 9 10s",
        "FIXED 9 1mo ALIGNED",
        "SLIDING 9 10s",
        "SLIDING 9 10s STRICT",
        "SLIDINGLOG 9 10s",
        "CONCURRENCY 9 10s me",
    ] {
        let mut server = Server::default();
        for (second, cost) in [(0, 3), (4, 2), (11, 1), (13, 5)] {
            decide(&mut server, &format!("{text} COST {cost}"), at(second));
        }
        for second in [0, 13, 14, 17, 19, 21, 22, 30] {
            let then = at(second);
            let (_, expires_at) = server.key.clone().unwrap();
            let plain = run_inline(&mut server, text, then, true).unwrap().answer.decision;
            let usage = server.plain().unwrap();
            let components = crate::algorithm::any::with_usage!(usage, usage => {
                of_plain(usage, expires_at, at(13))
            });
            let words = words(text);
            let call = call_of_text(&words);
            let evaluation = CompositeEvaluation::at(&call, StoredUsage::Composite(&components), then);
            assert_eq!(
                evaluation.answer(&call, StoredUsage::Composite(&components), then, false).decision,
                plain,
                "{text} at {second}"
            );
        }
    }
    let unused = CompositeUsage::of_plain(crate::algorithm::bucket::BucketUsage::default(), None, at(0));
    assert!(unused.is_unused());
}
