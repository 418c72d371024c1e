//! A tenant's database away, in every way in which it can be, and back again; and what all databases may cost together.

mod cap;
mod hang_up;
mod heal;
mod limits;
mod opened;
mod ready;
mod scene;
mod slow_disk;
mod write_lock;
