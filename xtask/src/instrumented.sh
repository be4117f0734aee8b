#!/bin/sh
# In the place of rustc for the members of the workspace: with counters for libFuzzer, which is linked to the tests.
# BARNRAISE_LIBFUZZER is its archive.
case " $* " in
*" --crate-name build_script_"* | *" --crate-type proc-macro "* | *" --crate-type bin "*) exec "$@" ;;
*" --test "*) set -- "$@" -Clink-arg="$BARNRAISE_LIBFUZZER" -Clink-arg=-lstdc++ ;;
esac
exec "$@" --cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
