//! Writes the state into the document. Decides nothing but where things go.

mod conduct;
mod curves;
mod everyone;
mod filling;
mod gallery;
mod giving;
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
    conduct: conduct::ConductView,
    preflight: preflight::PreflightView,
    everyone: everyone::EveryoneView,
    leaders: leaders::LeadersView,
    giving: giving::GivingView,
    filling: filling::FillingView,
    curves: curves::CurvesView,
    pub(crate) gallery: gallery::GalleryView,
    trial: trial::TrialView,
}

impl View {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            run: run::RunView::find()?,
            tab: tab::TabView::find()?,
            conduct: conduct::ConductView::find()?,
            preflight: preflight::PreflightView::find()?,
            everyone: everyone::EveryoneView::find()?,
            leaders: leaders::LeadersView::find()?,
            giving: giving::GivingView::find()?,
            filling: filling::FillingView::find()?,
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
        self.conduct.draw(page);
        self.preflight.draw(page);
        self.everyone.draw(page);
        self.leaders.draw(page);
        self.giving.draw(page);
        self.filling.draw(page);
        self.curves.draw(now_ms, page);
        self.gallery.draw(page);
        self.trial.draw(page);
        again_in_ms
    }
}
