//! barnraise
fn main() {}
