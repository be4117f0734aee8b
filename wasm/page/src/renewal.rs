//! Registers the service worker, which caches the page for visits without a network, and notices new builds of the
//! page. Never before the first paint.

use std::rc::Rc;

use gloo::timers::callback::Timeout;
use js_sys::{Array, Promise, Reflect};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::EventTarget;

use crate::app::App;
use crate::dom::{DomListener, document, window};
use crate::state::PageEvent;

const SERVICE_WORKER_URL: &str = "/service-worker.js";
/// Prefix of the service worker's caches; the build follows.
const CACHE_PREFIX: &str = "barnraise-page-";
/// Delay of the registration: the page and its first requests go first.
const REGISTER_AFTER_MS: u32 = 1500;
/// Interval at which an open page asks for a new version.
const LOOK_EVERY_MS: i32 = 3_600_000;
/// Longest wait for a new service worker to take over before the page reloads.
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

/// Registers the service worker once the page is set up.
pub(crate) fn begin(app: &Rc<App>) {
    let Some(container) = container() else { return };
    let app = Rc::clone(app);
    Timeout::new(REGISTER_AFTER_MS, move || {
        spawn_local(async move {
            if let Err(error) = register(&app, &container).await {
                // Private windows may refuse: then the page needs the network.
                gloo::console::info!("this page is not kept for visits without a network:", error);
            }
        });
    })
    .forget();
}

/// Registers it for the front page, which is always the newest build.
pub(crate) fn keep_page() {
    let Some(container) = container() else { return };
    Timeout::new(REGISTER_AFTER_MS, move || {
        spawn_local(async move {
            if let Ok(asked) = container.register(SERVICE_WORKER_URL) {
                // Without it the page needs the network.
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
    DomListener::new(&registration, "updatefound", move |_| watch(&updated.0, &updated.1)).keep();
    // Another tab activated the new service worker.
    let changed = Rc::clone(app);
    DomListener::new(container, "controllerchange", move |_| compare(&changed)).keep();
    let look = wasm_bindgen::closure::Closure::<dyn Fn()>::new(move || {
        // Fails without a network.
        let _ =
            registration.update().map(|asked| spawn_local(async move { drop(JsFuture::from(asked).await) }));
    });
    window().set_interval_with_callback_and_timeout_and_arguments_0(
        look.into_js_value().unchecked_ref(),
        LOOK_EVERY_MS,
    )?;
    Ok(())
}

/// Compares builds once the newest service worker is installed.
fn watch(app: &Rc<App>, registration: &Rc<Registration>) {
    if registration.waiting().is_some() {
        compare(app);
    }
    if let Some(installing) = registration.installing() {
        let (app, state) = (Rc::clone(app), installing.clone());
        // A failed installation has no cache: the newest build is the same as before.
        let act = move |_: web_sys::Event| {
            if matches!(state.state().as_str(), "installed" | "activated") {
                compare(&app);
            }
        };
        DomListener::new(&installing, "statechange", act).keep();
    }
}

/// Compares the newest cached build with this page's.
fn compare(app: &Rc<App>) {
    let app = Rc::clone(app);
    spawn_local(async move {
        let own = document().body().and_then(|body| body.get_attribute("data-build"));
        match (newest_build().await, own) {
            (Some(newest), Some(own)) if newest == own => take_over(),
            (Some(_), Some(_)) => {
                app.dispatch(PageEvent::NewVersion { is_hidden: document().hidden() });
            }
            _ => {}
        }
    });
}

/// The build of the newest cache; caches are listed in the order of their creation.
async fn newest_build() -> Option<String> {
    let caches = Reflect::get(&window(), &"caches".into()).ok().filter(JsValue::is_object)?;
    let keys = JsFuture::from(caches.unchecked_into::<Caches>().keys().ok()?).await.ok()?;
    let names = keys.dyn_into::<Array>().ok()?;
    let mut builds =
        names.iter().filter_map(|name| name.as_string()?.strip_prefix(CACHE_PREFIX).map(str::to_owned));
    builds.next_back()
}

/// Activates a waiting service worker. This page is of its build, or about to reload.
fn take_over() {
    spawn_local(async {
        if let Some(waiting) = registration().await.and_then(|registration| registration.waiting()) {
            // It may have been activated in the meantime.
            let _ = waiting.post_message("take-over");
        }
    });
}

/// Reloads the page, under the new service worker where there is one.
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
