//! The administration area, as administrators and those who are none meet it.

mod audit;
mod browser;
mod domains;
mod export;
mod groups;
mod held;
mod languages;
mod layout;
mod links;
mod oidc;
mod outage;
mod protection;
mod reads;
mod requests;
mod roles;
mod scene;
mod sessions;
mod token_limits;
mod tokens;
mod usage;
mod webhooks;
