//! Requests to the backbone's web server: the run's status once, then a stream of events. Retries with exponential
//! backoff where it does not answer.

use std::rc::Rc;

use barnraise_protocol::api::{Contributions, LiveProgress, Models, RunStatus};
use barnraise_protocol::columns::DataColumns;
use barnraise_swarm::backoff::Backoff;
use gloo::net::http::Request;
use js_sys::{Array, Promise};
use serde::de::DeserializeOwned;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{EventSource, MessageEvent};

use crate::app::App;
use crate::base::{self, FRONT_PATH, PageAddress, of_run};
use crate::dom::DomListener;
use crate::kept;
use crate::requests::{self, RUN_URL, RUNS_URL};
use crate::state::{AnswerError, BackboneLoss, PageEvent, PageState};
use crate::view::N_LEADERS;

const EVENTS_URL: &str = "/api/events";
const CONTRIBUTIONS_URL: &str = "/api/contributions";
const MODELS_URL: &str = "/api/models";
const COLUMNS_URL: &str = "/api/columns.json";
/// Interval at which a visible page asks for the list of models.
const MODELS_EVERY_MS: u32 = 15_000;
/// Interval at which a visible page asks for the leaderboard.
const LEADERS_EVERY_MS: u32 = 10_000;
/// The same while the leaderboard is empty: the first contributor soon sees that something was accepted.
const NO_LEADERS_EVERY_MS: u32 = 2_000;
/// A stream that lasted this long resets the backoff.
const GOOD_STREAM_MS: f64 = 5000.0;

/// Follows the backbone for as long as the page is open.
pub(crate) async fn follow(app: Rc<App>) {
    let mut backoff = Backoff::new((js_sys::Math::random() * 2_f64.powi(53)) as u64);
    loop {
        let reason = match ask::<RunStatus>(&app, RUN_URL).await {
            Ok(status) => {
                kept::keep_run(&status);
                app.dispatch(PageEvent::RunArrived(Box::new(status)));
                let since_ms = crate::dom::now_ms();
                let reason = listen(&app).await;
                if crate::dom::now_ms() - since_ms >= GOOD_STREAM_MS {
                    backoff.reset();
                }
                reason
            }
            Err(error) => {
                if is_of_none(&error).await {
                    // The page belongs to no run.
                    let _ = crate::dom::window().location().replace(FRONT_PATH);
                    return;
                }
                BackboneLoss::Answer(error)
            }
        };
        let retry_in_ms = u32::try_from(backoff.next_delay().as_millis()).unwrap_or(u32::MAX);
        app.dispatch(PageEvent::BackboneLost { reason, retry_in_ms });
        if sleep_or_asked(&app, retry_in_ms).await {
            backoff.reset();
        }
    }
}

/// Whether this page belongs to no run while the server has several. A cached page opens at the root even while no server
/// redirects the root to the list.
async fn is_of_none(error: &AnswerError) -> bool {
    if base::here() != PageAddress::Run(String::new()) {
        return false;
    }
    if *error == AnswerError::NoAnswer {
        return kept::run().is_none() && !kept::runs().is_empty();
    }
    let says = |url, status| async move {
        Request::get(url).send().await.is_ok_and(|response| response.status() == status)
    };
    says(RUN_URL, 404).await && says(RUNS_URL, 200).await
}

/// Polls the leaderboard for as long as the page is open.
pub(crate) async fn follow_leaders(app: Rc<App>) {
    loop {
        // Without an answer the shown leaderboard stays.
        let own = app.with_page(|page| page.peer_id.clone());
        let own = own.map_or_else(String::new, |peer| format!("&peer={peer}"));
        if !crate::dom::document().hidden()
            && !app.with_page(PageState::is_sampled)
            && let Ok(leaders) =
                ask::<Contributions>(&app, &format!("{CONTRIBUTIONS_URL}?limit={N_LEADERS}{own}")).await
        {
            app.dispatch(PageEvent::LeadersKnown(Box::new(leaders)));
        }
        let has_leaders =
            |page: &PageState| page.leaders.as_ref().is_some_and(|known| !known.contributors.is_empty());
        sleep(if app.with_page(has_leaders) { LEADERS_EVERY_MS } else { NO_LEADERS_EVERY_MS }).await;
    }
}

/// Polls the list of models to download for as long as the page is open. A run that is not open has none.
pub(crate) async fn follow_models(app: Rc<App>) {
    loop {
        if !crate::dom::document().hidden()
            && let Ok(models) = ask::<Models>(&app, MODELS_URL).await
        {
            app.dispatch(PageEvent::ModelsKnown(models));
        }
        sleep(MODELS_EVERY_MS).await;
    }
}

/// Asks how the run reads its table or its ratings. Without an answer it is asked with the next list of models.
pub(crate) fn ask_for_columns(app: &Rc<App>) {
    let app = Rc::clone(app);
    spawn_local(async move {
        if let Ok(columns) = ask::<DataColumns>(&app, COLUMNS_URL).await {
            app.dispatch(PageEvent::ColumnsKnown(Box::new(columns)));
        }
    });
}

/// Sleeps until the time is over, or a request is due at once; returns whether it was due at once.
async fn sleep_or_asked(app: &Rc<App>, delay_ms: u32) -> bool {
    let asked = Promise::new(&mut |resolve, _| app.when_asked_again(Some(resolve)));
    let over = wasm_bindgen_futures::future_to_promise(async move {
        sleep(delay_ms).await;
        Ok(JsValue::FALSE)
    });
    let first = JsFuture::from(Promise::race(&Array::of2(&asked, &over))).await;
    app.when_asked_again(None);
    // `asked` resolves to undefined.
    first.is_ok_and(|first| first.is_undefined())
}

async fn sleep(delay_ms: u32) {
    let delay_ms = i32::try_from(delay_ms).unwrap_or(i32::MAX);
    let over = Promise::new(&mut |resolve, reject| {
        let window = crate::dom::window();
        if window.set_timeout_with_callback_and_timeout_and_arguments_0(&resolve, delay_ms).is_err() {
            let _ = reject.call0(&JsValue::NULL);
        }
    });
    let _ = JsFuture::from(over).await;
}

/// Requests a path of this page's run from the web server.
async fn ask<T: DeserializeOwned>(app: &Rc<App>, path: &str) -> Result<T, AnswerError> {
    let text = requests::text(&of_run(path)).await?;
    app.count_received(text.len());
    requests::read(&text)
}

/// Dispatches events until the stream ends; returns the reason.
async fn listen(app: &Rc<App>) -> BackboneLoss {
    let Ok(source) = EventSource::new(&of_run(EVENTS_URL)) else {
        return BackboneLoss::NoEventStreams;
    };
    let on_progress = {
        let app = Rc::clone(app);
        DomListener::new(&source, "progress", move |event| {
            let data = event.unchecked_ref::<MessageEvent>().data().as_string().unwrap_or_default();
            app.count_received(data.len());
            // An event of a newer backbone is skipped: the next `GET /api/run` has its content.
            if let Ok(live) = serde_json::from_str::<LiveProgress>(&data) {
                app.dispatch(PageEvent::Live(live));
            }
        })
    };
    let mut on_error = None;
    let ended = Promise::new(&mut |resolve, _| {
        // Without a network a stream may hang for minutes.
        app.when_asked_again(Some(resolve.clone()));
        on_error = Some(DomListener::new(&source, "error", move |_| {
            let _ = resolve.call0(&JsValue::NULL);
        }));
    });
    // Either outcome only means that the stream ended.
    let _ = JsFuture::from(ended).await;
    app.when_asked_again(None);
    source.close();
    drop((on_progress, on_error));
    BackboneLoss::Ended
}
