//! Writes the state into the document.

mod curves;
mod everyone;
mod experts;
mod filling;
mod gallery;
mod giving;
mod glance;
mod hosting;
mod leaders;
mod limits;
mod own;
mod preflight;
mod rows;
mod run;
mod tab;
mod trial;

use crate::dom::DomError;
use crate::state::PageState;
pub(crate) use leaders::N_ROWS as N_LEADERS;

/// Every part of the page.
pub(crate) struct PageView {
    run: run::RunView,
    tab: tab::TabView,
    limits: limits::LimitsView,
    own: own::OwnView,
    preflight: preflight::PreflightView,
    glance: glance::GlanceView,
    everyone: everyone::EveryoneView,
    experts: experts::ExpertsView,
    hosting: hosting::HostingView,
    leaders: leaders::LeadersView,
    giving: giving::GivingView,
    filling: filling::FillingView,
    rows: rows::RowsView,
    curves: curves::CurvesView,
    pub(crate) gallery: gallery::GalleryView,
    trial: trial::TrialView,
}

impl PageView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            run: run::RunView::find()?,
            tab: tab::TabView::find()?,
            limits: limits::LimitsView::find()?,
            own: own::OwnView::find()?,
            preflight: preflight::PreflightView::find()?,
            glance: glance::GlanceView::find()?,
            everyone: everyone::EveryoneView::find()?,
            experts: experts::ExpertsView::find()?,
            hosting: hosting::HostingView::find()?,
            leaders: leaders::LeadersView::find()?,
            giving: giving::GivingView::find()?,
            filling: filling::FillingView::find()?,
            rows: rows::RowsView::find()?,
            curves: curves::CurvesView::find()?,
            gallery: gallery::GalleryView::find()?,
            trial: trial::TrialView::find()?,
        })
    }

    /// Redraws the canvases after the browser cleared them.
    pub(crate) fn mend(&mut self) {
        self.gallery.mend();
        self.trial.mend();
    }

    /// Draws all changes. Returns the milliseconds until the next draw, if one is due without an event.
    pub(crate) fn draw(&mut self, now_ms: f64, page: &PageState) -> Option<u32> {
        self.curves.measure();
        self.run.draw(page);
        let again_in_ms = self.tab.draw(now_ms, page);
        self.limits.draw(page);
        self.own.draw(page);
        self.preflight.draw(page);
        self.glance.draw(page);
        self.everyone.draw(page);
        self.experts.draw(page);
        self.hosting.draw(page);
        self.leaders.draw(page);
        self.giving.draw(page);
        self.filling.draw(page);
        self.rows.draw(page);
        self.curves.draw(now_ms, page);
        self.gallery.draw(page);
        self.trial.draw(page);
        again_in_ms
    }
}
