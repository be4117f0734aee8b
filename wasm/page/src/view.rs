//! Writes the state into the document. Decides nothing but where things go.

mod curves;
mod everyone;
mod gallery;
mod leaders;
mod preflight;
mod run;
mod tab;
mod trial;

use crate::dom::DomError;
use crate::state::Page;
pub(crate) use leaders::N_ROWS as N_LEADERS;

/// Every part of the page.
pub(crate) struct View {
    run: run::RunView,
    tab: tab::TabView,
    preflight: preflight::PreflightView,
    everyone: everyone::EveryoneView,
    leaders: leaders::LeadersView,
    curves: curves::CurvesView,
    pub(crate) gallery: gallery::GalleryView,
    trial: trial::TrialView,
}

impl View {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            run: run::RunView::find()?,
            tab: tab::TabView::find()?,
            preflight: preflight::PreflightView::find()?,
            everyone: everyone::EveryoneView::find()?,
            leaders: leaders::LeadersView::find()?,
            curves: curves::CurvesView::find()?,
            gallery: gallery::GalleryView::find()?,
            trial: trial::TrialView::find()?,
        })
    }

    /// The canvases are empty: what was on them is drawn anew.
    pub(crate) fn mend(&mut self) {
        self.gallery.mend();
        self.trial.mend();
    }

    /// Draws what changed. Returns in how many milliseconds to draw again even if nothing happens.
    pub(crate) fn draw(&mut self, now_ms: f64, page: &Page) -> Option<u32> {
        self.curves.measure();
        self.run.draw(page);
        let again_in_ms = self.tab.draw(now_ms, page);
        self.preflight.draw(page);
        self.everyone.draw(page);
        self.leaders.draw(page);
        self.curves.draw(now_ms, page);
        self.gallery.draw(page);
        self.trial.draw(page);
        again_in_ms
    }
}
