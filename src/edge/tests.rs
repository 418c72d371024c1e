//! The edge on real sockets, with real certificates and a handler of the tests' own.

mod admin;
mod certificates;
mod client;
mod drain;
mod fixture;
mod limits;
mod upload;

use super::bind;

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let taken = bind(&["127.0.0.1:0".parse().unwrap()]).await.unwrap();
    let address = taken[0].local_addr().unwrap();
    let error = bind(&["127.0.0.1:0".parse().unwrap(), address]).await.unwrap_err();
    assert_eq!(error.address, address);
    assert_eq!(error.to_string(), format!("can't listen on {address}"));
}
