//! Listens to the choice of pictures, a table or texts that the visitor brings. Pictures are read one after the other.

use std::rc::Rc;

use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{EventTarget, File, HtmlElement, HtmlInputElement};

use super::on;
use crate::app::App;
use crate::dom::{DomError, by_id};
use crate::photo;
use crate::picture;
use crate::state::{OwnFile, PageEvent, PageState, class_of_path};

// Declared here because web-sys features are shared by the whole build, burn included.
#[wasm_bindgen]
extern "C" {
    /// A file that was chosen with a folder.
    #[wasm_bindgen(js_name = File)]
    type InFolder;
    #[wasm_bindgen(method, getter, js_name = webkitRelativePath)]
    fn relative_path(this: &InFolder) -> String;
}

pub(super) fn listen(app: &Rc<App>) -> Result<(), DomError> {
    let folder: HtmlInputElement = by_id("own-folder")?;
    let chosen = folder.clone();
    on(&folder, "change", app, move |app, _| {
        let names = app.with_page(|page| page.class_names().to_vec());
        let class = |file: &File| class_of_path(&file.unchecked_ref::<InFolder>().relative_path(), &names);
        begin(app, taken(&chosen).into_iter().map(|file| (class(&file), file)).collect());
    });
    let (files, class): (HtmlInputElement, JsValue) =
        (by_id("own-files")?, by_id::<EventTarget>("own-class")?.into());
    let chosen = files.clone();
    on(&files, "change", app, move |app, _| {
        let value = js_sys::Reflect::get(&class, &"value".into()).ok().and_then(|value| value.as_string());
        let class = value.and_then(|value| value.parse().ok());
        begin(app, taken(&chosen).into_iter().map(|file| (class, file)).collect());
    });
    for id in ["own-table", "own-texts"] {
        let input: HtmlInputElement = by_id(id)?;
        let chosen = input.clone();
        on(&input, "change", app, move |app, _| begin_files(app, taken(&chosen)));
    }
    let keep: HtmlInputElement = by_id("own-keep")?;
    let wanted = keep.clone();
    on(&keep, "change", app, move |app, _| app.dispatch(PageEvent::KeepOwn(wanted.checked())));
    let summary: HtmlElement = by_id("own-summary")?;
    on(&by_id::<EventTarget>("own-forget")?, "click", app, move |app, _| {
        app.dispatch(PageEvent::OwnForgotten);
        // The button is hidden now. Without a focus the next key begins at the top of the page.
        let _ = summary.focus();
    });
    Ok(())
}

/// What was chosen. Choosing it once more chooses it once more.
fn taken(input: &HtmlInputElement) -> Vec<File> {
    let files = js_sys::Reflect::get(input, &"files".into()).ok();
    let files = files.map(|files| js_sys::Array::from(&files)).unwrap_or_default();
    let files = files.iter().filter_map(|file| file.dyn_into::<File>().ok()).collect();
    input.set_value("");
    files
}

/// Reads the files: one at a time, so that a phone holds one photo in memory and no more.
fn begin(app: &Rc<App>, files: Vec<(Option<u8>, File)>) {
    let Some(shape) = app.with_page(PageState::image_shape) else { return };
    let mut of_class = Vec::new();
    for (class, file) in files {
        match class {
            Some(class) => {
                app.dispatch(PageEvent::OwnFile(OwnFile::Begun));
                of_class.push((class, file));
            }
            None => app.dispatch(PageEvent::OwnFile(OwnFile::WithoutClass)),
        }
    }
    let app = Rc::clone(app);
    spawn_local(async move {
        for (class, file) in of_class {
            let read = photo::read(&file, shape).await.ok();
            let pixels = read.map(|pixels| picture::of_photo(&pixels, shape));
            app.dispatch(PageEvent::OwnFile(OwnFile::Read { class, pixels }));
        }
    });
}

/// Reads the contents of a table or of texts, where they are not too large.
fn begin_files(app: &Rc<App>, files: Vec<File>) {
    let name = match &files[..] {
        [] => return,
        [file] => file.name(),
        files => format!("{} files", files.len()),
    };
    let n_bytes = files.iter().map(|file| file.size() as u64).sum();
    app.dispatch(PageEvent::OwnFile(OwnFile::FilesBegun { name, n_bytes }));
    if !app.with_page(PageState::reads_own_files) {
        return;
    }
    let app = Rc::clone(app);
    spawn_local(async move {
        let contents = contents_of(files).await;
        app.dispatch(PageEvent::OwnFile(OwnFile::FilesRead(contents)));
    });
}

/// `None` where one of them cannot be read.
async fn contents_of(files: Vec<File>) -> Option<Vec<Vec<u8>>> {
    let mut contents = Vec::new();
    for file in files {
        let buffer = JsFuture::from(file.array_buffer()).await.ok()?;
        contents.push(js_sys::Uint8Array::new(&buffer).to_vec());
    }
    Some(contents)
}
