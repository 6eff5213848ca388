use super::*;

#[test]
fn a_name_shows_as_its_bytes_alone() {
    // Its hash is another one in each process.
    assert_eq!(format!("{:?}", Name::of(b"me")), "[109, 101]");
}
