//! The view, and what it is drawn from.
//!
//! [`state`] has the data and [`view`] draws it; both are pure. Threads of [`ask`] poll over HTTP and send events through
//! one bounded channel; the main thread draws and reads the keys. Nothing here changes a run.

mod ask;
mod error;
mod metrics;
mod state;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use anyhow::bail;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;
use ratatui::layout::Rect;
use ratatui::widgets::Widget as _;

use self::ask::Poller;
use self::state::TopState;
use self::view::TopView;
use super::TopArgs;

/// Interval at which the screen is drawn without events: the age of the data is shown.
const DRAW_EVERY: Duration = Duration::from_millis(250);
/// Timeout of requests for `--once`.
const ONCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Width and height of a frame without a terminal.
const SIZE_DEFAULT: (u16, u16) = (80, 24);
/// Most events that are taken in before the screen is drawn again.
const NEWS_PER_FRAME: usize = 256;

/// Shows a run until `q` or Ctrl-C; returns the text to print, with `--once`.
///
/// # Errors
/// There is no terminal, or with `--once` no run.
pub fn run(args: &TopArgs) -> anyhow::Result<String> {
    let mut state = TopState::new(&args.address, args.operator.is_some());
    if args.once {
        return once(args, state);
    }
    if !io::stdout().is_terminal() {
        bail!("standard output is no terminal: `barnraise top --once` prints one frame");
    }
    let asking = Poller::start(args.address.clone(), args.operator.clone());
    // It also restores the terminal after a panic.
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &mut state, &asking);
    ratatui::restore();
    shown.map(|()| String::new())
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut TopState,
    asking: &Poller,
) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        for heard in asking.news().take(NEWS_PER_FRAME) {
            state.on_event(started.elapsed(), heard);
        }
        let view = TopView { state, now: started.elapsed() };
        terminal.draw(|frame| frame.render_widget(view, frame.area()))?;
        if event::poll(DRAW_EVERY)?
            && let Event::Key(key) = event::read()?
            && is_end(key)
        {
            return Ok(());
        }
    }
}

fn is_end(key: KeyEvent) -> bool {
    let is_ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (is_ctrl_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

fn once(args: &TopArgs, mut state: TopState) -> anyhow::Result<String> {
    let heard = ask::once(&args.address, args.operator.as_deref(), ONCE_TIMEOUT);
    heard.into_iter().for_each(|heard| state.on_event(Duration::ZERO, heard));
    if let Some(trouble) = state.trouble().filter(|_| !state.has_run()) {
        bail!("{trouble}");
    }
    let (width, height) = match io::stdout().is_terminal() {
        true => terminal::size().unwrap_or(SIZE_DEFAULT),
        false => SIZE_DEFAULT,
    };
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    TopView { state: &state, now: Duration::ZERO }.render(buffer.area, &mut buffer);
    Ok(text(&buffer))
}

/// The frame as text, without colours and trailing blanks.
fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let lines = buffer.content().chunks(width).map(|cells| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect::<String>().trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn it_ends_by_q_and_by_ctrl_c() {
        let key = |code, modifiers| is_end(KeyEvent::new(code, modifiers));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(!key(KeyCode::Char('x'), KeyModifiers::NONE));
    }

    #[test]
    fn nobody_there_is_an_error_that_names_the_address() {
        // Nobody listens at a port that was just given back.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("http://127.0.0.1:{port}");
        let args = TopArgs { address: address.clone(), operator: None, once: true };
        let error = run(&args).unwrap_err().to_string();
        assert!(error.contains(&address), "{error}");
    }
}
