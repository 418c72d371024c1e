//! `formgate config schema`, for editors. The unit tests of `src/config` hold the published schema to the keys.

use crate::support::process::formgate;

#[test]
fn the_schema_of_the_configuration_is_the_published_one() {
    let printed = formgate(&["config", "schema"]);
    assert_eq!((printed.code, printed.stderr.as_str()), (0, ""));
    assert!(printed.stdout == include_str!("../../../deploy/tenants.schema.json"), "{}", printed.stdout);
}
