//! Who averages what: the linear program of roles (DeDLOC, section 3.2) and the groups (appendix C).
//!
//! Pure: measurements come in, a plan goes out. It never looks at a clock, a network or a device.
