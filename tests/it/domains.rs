//! Domains and their certificates, with a real certificate authority and real DNS.

mod certbot;
mod life;
mod orders;
mod scene;
mod serving;
