//! `docs/reference/commands.md` is what the program says of itself.

use std::fmt::Write as _;
use std::path::Path;

use barnraise_native::cli::Cli;
use clap::{Command, CommandFactory as _};

/// Set, the page is written and not compared.
const WRITE_VARIABLE: &str = "BARNRAISE_WRITE_REFERENCE";
/// Characters of a line of help.
const WIDTH: usize = 100;

fn chapter(text: &mut String, command: &mut Command, path: &str) {
    let help = command.clone().term_width(WIDTH).max_term_width(WIDTH).render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(text, "\n## {path}\n\n```text\n{}\n```\n", lines.join("\n"));
    for inner in command.get_subcommands_mut().filter(|inner| inner.get_name() != "help") {
        let path = format!("{path} {}", inner.get_name());
        chapter(text, inner, &path);
    }
}

#[test]
fn the_reference_of_commands_is_what_the_program_says() {
    let mut text = "# Commands\n\nEach command says this with `--help`.\n".to_owned();
    let mut command = Cli::command();
    command.build();
    chapter(&mut text, &mut command, "barnraise");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/commands.md");
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    let is_same = written == text;
    assert!(is_same, "{} is not up to date: run this test with {WRITE_VARIABLE}=1", path.display());
}
