//! Domains and their certificates, with a real certificate authority and real DNS; the operator API and the commands.

mod account;
mod api;
mod certbot;
mod claims;
mod clock;
mod commands;
mod compose;
mod counts;
mod keys;
mod life;
mod limits;
mod lives;
mod orders;
mod restored;
mod rights;
mod scene;
mod serving;
mod turns;
