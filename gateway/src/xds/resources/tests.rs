use super::{TYPE_URL, read, unit_name};
use crate::xds::messages::DiscoveryResponse;

#[test]
fn unit_has_the_same_name_as_in_files() {
    let names = ["unknown", "second", "minute", "hour", "day", "month", "year", "week", "8", "-1"];
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7, 8, -1].map(unit_name), names);
}

#[test]
fn response_of_another_type_is_refused() {
    let response = |type_url: &str| DiscoveryResponse { type_url: type_url.to_owned(), ..DiscoveryResponse::default() };
    assert!(read(&response(TYPE_URL), false).is_ok_and(|config| config.domains.is_empty()));
    let error = read(&response("a\nb"), false).expect_err("another type");
    assert_eq!(error, format!("the type must be {TYPE_URL}, not 'a\\nb'"));
}
