//! The page without a network, and the next version of it: registers the service worker, and notices when it has
//! another build than this page. Never on the way of the first paint.

use std::rc::Rc;

use gloo::timers::callback::Timeout;
use js_sys::{Array, Promise, Reflect};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::EventTarget;

use crate::app::App;
use crate::dom::{Listener, document, window};
use crate::state::Event;

const SERVICE_WORKER_URL: &str = "/service-worker.js";
/// Its caches are called so, and then by their build.
const CACHE_PREFIX: &str = "barnraise-page-";
/// The page and its first answers go first.
const REGISTER_AFTER_MS: u32 = 1500;
/// How often a page that stays open asks for a new version.
const LOOK_EVERY_MS: i32 = 3_600_000;
/// Longest wait for a new service worker to take over before the page is loaded again.
const TAKE_OVER_MS: u32 = 1000;

// Declared here because web-sys features are shared by the whole build, burn included.
#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(extends = EventTarget)]
    type Container;

    #[wasm_bindgen(method, catch)]
    fn register(this: &Container, url: &str) -> Result<Promise, JsValue>;

    #[wasm_bindgen(extends = EventTarget)]
    type Registration;

    #[wasm_bindgen(method, getter)]
    fn installing(this: &Registration) -> Option<ServiceWorker>;

    #[wasm_bindgen(method, getter)]
    fn waiting(this: &Registration) -> Option<ServiceWorker>;

    #[wasm_bindgen(method, catch)]
    fn update(this: &Registration) -> Result<Promise, JsValue>;

    #[wasm_bindgen(extends = EventTarget)]
    #[derive(Clone)]
    type ServiceWorker;

    #[wasm_bindgen(method, getter)]
    fn state(this: &ServiceWorker) -> String;

    #[wasm_bindgen(method, catch, js_name = postMessage)]
    fn post_message(this: &ServiceWorker, message: &str) -> Result<(), JsValue>;

    type Caches;

    #[wasm_bindgen(method, catch)]
    fn keys(this: &Caches) -> Result<Promise, JsValue>;
}

/// Registers the service worker once the page stands.
pub(crate) fn begin(app: &Rc<App>) {
    let Some(container) = container() else { return };
    let app = Rc::clone(app);
    Timeout::new(REGISTER_AFTER_MS, move || {
        spawn_local(async move {
            if let Err(error) = register(&app, &container).await {
                // Private windows may refuse: the page then needs the network.
                gloo::console::info!("this page is not kept for visits without a network:", error);
            }
        });
    })
    .forget();
}

/// Registers it for a page that is no run's, and is newest whenever it is loaded.
pub(crate) fn keep_page() {
    let Some(container) = container() else { return };
    Timeout::new(REGISTER_AFTER_MS, move || {
        spawn_local(async move {
            if let Ok(asked) = container.register(SERVICE_WORKER_URL) {
                // As above: without it the page needs the network.
                let _ = JsFuture::from(asked).await;
            }
        });
    })
    .forget();
}

async fn register(app: &Rc<App>, container: &Container) -> Result<(), JsValue> {
    let registration: Registration =
        JsFuture::from(container.register(SERVICE_WORKER_URL)?).await?.unchecked_into();
    let registration = Rc::new(registration);
    watch(app, &registration);
    let updated = (Rc::clone(app), Rc::clone(&registration));
    Listener::new(&registration, "updatefound", move |_| watch(&updated.0, &updated.1)).keep();
    // Another tab had the new one take over.
    let changed = Rc::clone(app);
    Listener::new(container, "controllerchange", move |_| compare(&changed)).keep();
    let look = wasm_bindgen::closure::Closure::<dyn Fn()>::new(move || {
        // Without a network there is nothing new.
        let _ =
            registration.update().map(|asked| spawn_local(async move { drop(JsFuture::from(asked).await) }));
    });
    window().set_interval_with_callback_and_timeout_and_arguments_0(
        look.into_js_value().unchecked_ref(),
        LOOK_EVERY_MS,
    )?;
    Ok(())
}

/// Compares once the newest service worker is installed.
fn watch(app: &Rc<App>, registration: &Rc<Registration>) {
    if registration.waiting().is_some() {
        compare(app);
    }
    if let Some(installing) = registration.installing() {
        let (app, state) = (Rc::clone(app), installing.clone());
        // One that could not be installed keeps nothing: what is newest is as old as it was.
        let act = move |_: web_sys::Event| {
            if matches!(state.state().as_str(), "installed" | "activated") {
                compare(&app);
            }
        };
        Listener::new(&installing, "statechange", act).keep();
    }
}

/// The newest build that is kept: is it this page's?
fn compare(app: &Rc<App>) {
    let app = Rc::clone(app);
    spawn_local(async move {
        let own = document().body().and_then(|body| body.get_attribute("data-build"));
        match (newest_build().await, own) {
            (Some(newest), Some(own)) if newest == own => take_over(),
            (Some(_), Some(_)) => {
                app.dispatch(Event::NewVersion { is_hidden: document().hidden() });
            }
            _ => {}
        }
    });
}

/// Of the caches, which are listed in the order in which they were made.
async fn newest_build() -> Option<String> {
    let caches = Reflect::get(&window(), &"caches".into()).ok().filter(JsValue::is_object)?;
    let keys = JsFuture::from(caches.unchecked_into::<Caches>().keys().ok()?).await.ok()?;
    let names = keys.dyn_into::<Array>().ok()?;
    let mut builds =
        names.iter().filter_map(|name| name.as_string()?.strip_prefix(CACHE_PREFIX).map(str::to_owned));
    builds.next_back()
}

/// A service worker that waits may begin: whoever says so is of its build, or about to be.
fn take_over() {
    spawn_local(async {
        if let Some(waiting) = registration().await.and_then(|registration| registration.waiting()) {
            // It may have begun by itself meanwhile.
            let _ = waiting.post_message("take-over");
        }
    });
}

/// Loads the page again, under the new service worker where there is one.
pub(crate) fn reload() {
    take_over();
    Timeout::new(TAKE_OVER_MS, || drop(window().location().reload())).forget();
}

async fn registration() -> Option<Registration> {
    let container = container()?;
    let get: js_sys::Function = Reflect::get(&container, &"getRegistration".into()).ok()?.dyn_into().ok()?;
    let asked: Promise = get.call0(&container).ok()?.dyn_into().ok()?;
    let found = JsFuture::from(asked).await.ok().filter(JsValue::is_object)?;
    Some(found.unchecked_into())
}

/// Absent outside of secure contexts.
fn container() -> Option<Container> {
    let navigator = JsValue::from(window().navigator());
    let found = Reflect::get(&navigator, &"serviceWorker".into()).ok().filter(JsValue::is_object)?;
    Some(found.unchecked_into())
}
