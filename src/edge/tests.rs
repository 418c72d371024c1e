//! The edge on real sockets, with real certificates and a handler of the tests' own.

mod admin;
mod certificates;
mod client;
mod drain;
mod fixture;
mod floods;
mod fragments;
mod frames;
mod framing;
mod limits;
mod plain;
mod proxy;
mod refused;
mod upload;

use std::net::SocketAddr;

use super::listen;
use crate::config::ListenConfig;
use crate::supervisor::Inherited;

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let anywhere = || ListenConfig::from("127.0.0.1:0".parse::<SocketAddr>().unwrap());
    let taken = listen(&[anywhere()], &mut Inherited::default()).await.unwrap();
    let address = taken[0].socket.local_addr().unwrap();
    let error = listen(&[anywhere(), address.into()], &mut Inherited::default()).await.unwrap_err();
    assert_eq!(error.address, address);
    assert_eq!(error.to_string(), format!("can't listen on {address}"));
}
