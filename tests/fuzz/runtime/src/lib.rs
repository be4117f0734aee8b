//! Nothing: the build script of `libfuzzer-sys` compiles libFuzzer, which `cargo xtask fuzz` links to the tests.
