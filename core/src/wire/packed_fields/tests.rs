use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug, PartialEq)]
enum Field {
    Integer(u64),
    Bytes(Vec<u8>),
}

fn packed(fields: &[Field]) -> VecDeque<Box<[u8]>> {
    let mut blocks = VecDeque::new();
    let mut packer = FieldPacker::new(|block: &[u8]| blocks.push_back(Box::from(block)));
    for field in fields {
        match field {
            Field::Integer(value) => packer.integer(*value),
            Field::Bytes(value) => packer.bytes(value),
        }
    }
    packer.end();
    blocks
}

/// Decodes blocks to fields of the same types as in `like`. Returns `None` if the blocks are malformed.
fn unpacked(mut blocks: VecDeque<Box<[u8]>>, like: &[Field]) -> Option<Vec<Field>> {
    let mut unpacker = FieldUnpacker::new(|| blocks.pop_front());
    let decoded = like.iter().map(|field| match field {
        Field::Integer(_) => unpacker.integer().map(Field::Integer),
        Field::Bytes(_) => unpacker.bytes(300).map(|bytes| Field::Bytes(bytes.into())),
    });
    let decoded: Option<Vec<Field>> = decoded.collect();
    let at_end = unpacker.is_at_end();
    decoded.filter(|_| at_end && blocks.is_empty())
}

fn fields() -> impl Strategy<Value = Vec<Field>> {
    let recent_timestamp = 1_700_000_000_000_000..1_700_000_100_000_000u64;
    let integer = prop_oneof![
        any::<u64>(),
        0..100u64,
        recent_timestamp,
        Just(MIN_TIMESTAMP - 1),
        Just(MIN_TIMESTAMP),
        Just(u64::MAX)
    ];
    vec(prop_oneof![3 => integer.prop_map(Field::Integer), 1 => vec(any::<u8>(), 0..300).prop_map(Field::Bytes)], 0..40)
}

proptest! {
    #[test]
    fn encoded_fields_are_decoded_to_the_same(fields in fields()) {
        let blocks = packed(&fields);
        prop_assert_eq!(unpacked(blocks.clone(), &fields), Some(fields.clone()));
        if let Some(block) = blocks.front() {
            for length in 0..block.len() {
                prop_assert_eq!(unpacked([block[..length].into()].into(), &fields), None);
            }
            let longer: Box<[u8]> = [block, &[0][..]].concat().into();
            prop_assert_eq!(unpacked([longer].into(), &fields), None);
        }
    }

    /// A field with two encodings would change its bytes when it is saved again.
    #[test]
    fn decoded_fields_are_encoded_to_the_same_bytes(bytes in vec(any::<u8>(), 1..40), like in fields()) {
        if let Some(fields) = unpacked([bytes.clone().into()].into(), &like) {
            prop_assert_eq!(packed(&fields), VecDeque::from([bytes.into()]));
        }
    }
}

#[test]
fn encoded_field_has_the_expected_length() {
    let length = |fields: &[Field]| packed(fields).iter().map(|block| block.len()).sum::<usize>();
    let at = |micros: u64| Field::Integer(1_700_000_000_000_000 + micros);
    for (fields, bytes) in [
        (vec![Field::Integer(31)], 1),
        (vec![Field::Integer(32)], 2),
        (vec![Field::Integer(1_000_000)], 4),
        (vec![Field::Bytes(vec![7; 31])], 32),
        (vec![at(0)], 8),
        (vec![at(0), at(1000)], 10),
        (vec![at(1000), at(0)], 10),
        (vec![Field::Integer(u64::MAX)], 1),
        (vec![], 0),
    ] {
        assert_eq!(length(&fields), bytes, "{fields:?}");
    }
}

#[test]
fn block_ends_with_the_field_that_fills_it() {
    let fields: Vec<Field> = (0..300).map(|_| Field::Bytes(vec![1; 254])).collect();
    let blocks = packed(&fields);
    assert_eq!(blocks.iter().map(|block| block.len()).collect::<Vec<_>>(), [BLOCK, BLOCK, 300 * 256 - 2 * BLOCK]);
    assert_eq!(unpacked(blocks.clone(), &fields), Some(fields.clone()));
    // Blocks with other boundaries, or without the last block, are malformed.
    let joined: Box<[u8]> = blocks.iter().flat_map(|block| block.iter().copied()).collect();
    assert_eq!(unpacked([joined].into(), &fields), None);
    let first = blocks[0].split_at(256);
    assert_eq!(unpacked([first.0.into(), first.1.into(), blocks[1].clone(), blocks[2].clone()].into(), &fields), None);
    assert_eq!(unpacked(blocks.iter().take(2).cloned().collect(), &fields), None);
    assert_eq!(unpacked([Box::default()].into(), &[Field::Integer(0)]), None);
}

#[test]
fn non_canonical_field_is_rejected() {
    let integer = [Field::Integer(0)];
    for (bytes, what) in [
        (&[3][..], "an unknown tag"),
        (&[2, 0], "a string in place of an integer"),
        (&[0x80, 0], "a last byte of zero"),
        (&[0x81, 0x80, 0x80, 0x80, 0x80, 0], "a last byte of zero after five bytes"),
        (&[0x84, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f], "more than 64 bits"),
        (&[0x84, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x81, 1], "more bytes than 64 bits take"),
        (&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40], "a large integer that is not encoded as a distance"),
        (&[1], "a small integer that is encoded as a distance"),
    ] {
        assert_eq!(unpacked([bytes.into()].into(), &integer), None, "{what}");
    }
    assert_eq!(unpacked([(&[0][..]).into()].into(), &[Field::Bytes(vec![])]), None);
    assert_eq!(unpacked([(&[0x82, 0x0a][..]).into()].into(), &[Field::Bytes(vec![])]), None, "a truncated string");
}
