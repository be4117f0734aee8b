//! libFuzzer inside a test: it makes the inputs, counts what they reach, and ends the process.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CString, c_char, c_int};
use std::panic;
use std::process;
use std::ptr;
use std::slice;
use std::sync::OnceLock;

type FuzzFunction = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Arguments for libFuzzer, one a line.
const ARGS_VARIABLE: &str = "BARNRAISE_FUZZ_ARGS";

static TARGET: OnceLock<FuzzFunction> = OnceLock::new();

unsafe extern "C" {
    /// Of libFuzzer, which rewrites the arguments.
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        target: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

/// None where this is an ordinary test run.
pub(crate) fn args() -> Option<Vec<CString>> {
    let args = env::var(ARGS_VARIABLE).ok()?;
    let program = again();
    [program.as_str()].into_iter().chain(args.lines()).map(|arg| CString::new(arg).ok()).collect()
}

/// The command with which libFuzzer starts itself once more, where it merges: its arguments follow behind it.
fn again() -> String {
    let this = env::args().map(|arg| format!("\"{arg}\"")).collect::<Vec<_>>().join(" ");
    format!("sh -c '{ARGS_VARIABLE}=$(printf \"%s\\n\" \"$@\") exec {this}' fuzz")
}

/// Does not return.
pub(crate) fn run(args: Vec<CString>, target: impl Fn(&[u8]) + Send + Sync + 'static) -> ! {
    let is_first = TARGET.set(Box::new(target)).is_ok();
    assert!(is_first, "one target for each process");
    // libFuzzer writes the input down when the process is aborted.
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        print(panic);
        process::abort();
    }));
    // It keeps pointers to them until the process ends.
    let mut argv: Vec<*mut c_char> = args.into_iter().map(CString::into_raw).collect();
    argv.push(ptr::null_mut());
    let mut argc = c_int::try_from(argv.len() - 1).unwrap_or_default();
    let mut argv = argv.leak().as_mut_ptr();
    // SAFETY: both point to what `main` gets from C: so many strings that end with zero, and a null pointer.
    let status = unsafe { LLVMFuzzerRunDriver(&raw mut argc, &raw mut argv, one) };
    process::exit(status)
}

extern "C" fn one(input: *const u8, n_bytes: usize) -> c_int {
    // SAFETY: libFuzzer gives so many bytes, and takes them back when this returns; of none it gives no address.
    let input = if n_bytes == 0 { &[][..] } else { unsafe { slice::from_raw_parts(input, n_bytes) } };
    if let Some(target) = TARGET.get() {
        target(input);
    }
    0
}
