//! What an operator asks of a run, and the replies: settings, lasting commands, views. The admin API and the commands
//! carry them, and the driver of a run's scheme carries them out.

#[cfg(test)]
mod fuzz;
pub mod request;
pub mod settings;
pub mod state;
pub mod view;
