//! Types that cross rooms. It computes nothing and depends on no other room.

pub mod sampling;
