use super::*;

#[test]
fn debug_output_of_a_name_omits_the_hash() {
    // The hash differs between processes.
    assert_eq!(format!("{:?}", Name::of(b"me")), "[109, 101]");
}
