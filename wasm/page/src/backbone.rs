//! What the backbone says over HTTP: the run once, then a stream of events, again and again with
//! growing pauses where it does not answer.

use std::rc::Rc;

use barnraise_protocol::api::{Contributions, LiveProgress, Models, RunStatus};
use barnraise_swarm::backoff::Backoff;
use gloo::net::http::Request;
use js_sys::{Array, Promise};
use serde::de::DeserializeOwned;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{EventSource, MessageEvent};

use crate::app::{App, keep_run, kept_run, kept_runs};
use crate::base::{self, FRONT_PATH, Place, of_run};
use crate::dom::Listener;
use crate::front::RUNS_URL;
use crate::state::{Event, Page};
use crate::view::N_LEADERS;

const RUN_URL: &str = "/api/run";
const EVENTS_URL: &str = "/api/events";
const CONTRIBUTIONS_URL: &str = "/api/contributions";
const MODELS_URL: &str = "/api/models";
/// Why there is nothing to read, where nobody is there.
const NO_ANSWER: &str = "no answer";
/// How often a page that is seen asks which models there are.
const MODELS_EVERY_MS: u32 = 15_000;
/// How often a page that is seen asks who gave the most.
const LEADERS_EVERY_MS: u32 = 10_000;
/// As long as there is nobody: the first contributor reads at once that something was accepted.
const NO_LEADERS_EVERY_MS: u32 = 2_000;
/// A stream that lasted this long was a good one: the next pause is a short one again.
const GOOD_STREAM_MS: f64 = 5000.0;

/// Follows the backbone for as long as the page is open.
pub(crate) async fn follow(app: Rc<App>) {
    let mut backoff = Backoff::new((js_sys::Math::random() * 2_f64.powi(53)) as u64);
    loop {
        let reason = match ask::<RunStatus>(&app, RUN_URL).await {
            Ok(status) => {
                keep_run(&status.run);
                app.dispatch(Event::RunArrived(Box::new(status)));
                let since_ms = crate::dom::now_ms();
                let reason = listen(&app).await;
                if crate::dom::now_ms() - since_ms >= GOOD_STREAM_MS {
                    backoff.reset();
                }
                reason
            }
            Err(reason) => {
                if is_of_none(&reason).await {
                    // The page of no run, which has nothing to follow.
                    let _ = crate::dom::window().location().replace(FRONT_PATH);
                    return;
                }
                reason
            }
        };
        let retry_in_ms = u32::try_from(backoff.next_delay().as_millis()).unwrap_or(u32::MAX);
        app.dispatch(Event::BackboneLost { reason, retry_in_ms });
        if sleep_or_asked(&app, retry_in_ms).await {
            backoff.reset();
        }
    }
}

/// Whether several runs are here and this is the page of none: a page that was kept is at the root while no server
/// says that the root leads to the list.
async fn is_of_none(reason: &str) -> bool {
    if base::here() != Place::Run(String::new()) {
        return false;
    }
    if reason == NO_ANSWER {
        return kept_run().is_none() && !kept_runs().is_empty();
    }
    let says = |url, status| async move {
        Request::get(url).send().await.is_ok_and(|response| response.status() == status)
    };
    says(RUN_URL, 404).await && says(RUNS_URL, 200).await
}

/// Asks who gave the most, for as long as the page is open.
pub(crate) async fn follow_leaders(app: Rc<App>) {
    loop {
        // Without an answer what is shown stays as it is.
        let own = app.with_page(|page| page.peer_id.clone());
        let own = own.map_or_else(String::new, |peer| format!("&peer={peer}"));
        if !crate::dom::document().hidden()
            && let Ok(leaders) =
                ask::<Contributions>(&app, &format!("{CONTRIBUTIONS_URL}?limit={N_LEADERS}{own}")).await
        {
            app.dispatch(Event::LeadersKnown(Box::new(leaders)));
        }
        let has_leaders =
            |page: &Page| page.leaders.as_ref().is_some_and(|known| !known.contributors.is_empty());
        sleep(if app.with_page(has_leaders) { LEADERS_EVERY_MS } else { NO_LEADERS_EVERY_MS }).await;
    }
}

/// Asks which models there are to download, for as long as the page is open. A run that is not open has none.
pub(crate) async fn follow_models(app: Rc<App>) {
    loop {
        if !crate::dom::document().hidden()
            && let Ok(models) = ask::<Models>(&app, MODELS_URL).await
        {
            app.dispatch(Event::ModelsKnown(models));
        }
        sleep(MODELS_EVERY_MS).await;
    }
}

/// Sleeps, unless there is a reason to ask at once: whether there was.
async fn sleep_or_asked(app: &Rc<App>, delay_ms: u32) -> bool {
    let asked = Promise::new(&mut |resolve, _| app.when_asked_again(Some(resolve)));
    let over = wasm_bindgen_futures::future_to_promise(async move {
        sleep(delay_ms).await;
        Ok(JsValue::FALSE)
    });
    let first = JsFuture::from(Promise::race(&Array::of2(&asked, &over))).await;
    app.when_asked_again(None);
    // The one that was asked resolves to nothing.
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

/// What the web server says of this page's run.
async fn ask<T: DeserializeOwned>(app: &Rc<App>, path: &str) -> Result<T, String> {
    let text = fetch(&of_run(path)).await?;
    app.count_received(text.len());
    read(&text)
}

/// What the web server says at an address.
pub(crate) async fn get<T: DeserializeOwned>(url: &str) -> Result<T, String> {
    read(&fetch(url).await?)
}

async fn fetch(url: &str) -> Result<String, String> {
    let response = Request::get(url).send().await.map_err(|_| NO_ANSWER.to_owned())?;
    if !response.ok() {
        return Err(format!("it answered with status {}", response.status()));
    }
    response.text().await.map_err(|_| "its answer was cut short".to_owned())
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("its answer makes no sense: {error}"))
}

/// Hands on events until the stream ends, and says why it did.
async fn listen(app: &Rc<App>) -> String {
    let Ok(source) = EventSource::new(&of_run(EVENTS_URL)) else {
        return "this browser has no event streams".into();
    };
    let on_progress = {
        let app = Rc::clone(app);
        Listener::new(&source, "progress", move |event| {
            let data = event.unchecked_ref::<MessageEvent>().data().as_string().unwrap_or_default();
            app.count_received(data.len());
            // An event of a newer backbone is skipped: the next `GET /api/run` tells.
            if let Ok(live) = serde_json::from_str::<LiveProgress>(&data) {
                app.dispatch(Event::Live(live));
            }
        })
    };
    let mut on_error = None;
    let ended = Promise::new(&mut |resolve, _| {
        // A stream may hang for minutes on a network that is gone.
        app.when_asked_again(Some(resolve.clone()));
        on_error = Some(Listener::new(&source, "error", move |_| {
            let _ = resolve.call0(&JsValue::NULL);
        }));
    });
    // Neither outcome says more than that it ended.
    let _ = JsFuture::from(ended).await;
    app.when_asked_again(None);
    source.close();
    drop((on_progress, on_error));
    "the connection ended".into()
}
