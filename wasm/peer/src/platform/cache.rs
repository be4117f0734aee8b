//! The browser's Cache API: shards under their hash, which survive a reload; the newest model, for when no backbone
//! can be reached; and access tokens.
//!
//! The browser may refuse or evict at any time; then the shard is fetched again. Nothing here is
//! trusted: the contributor checks every hash.

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::TOKEN_BYTES_MAX;
use barnraise_protocol::dataset::SHARD_BYTES_MAX;
use barnraise_protocol::framing::HEADER_BYTES;
use barnraise_protocol::pieces::Pieces;
use gloo::timers::future::TimeoutFuture;
use js_sys::{Array, ArrayBuffer, Promise, Reflect, Uint8Array};
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Cache, Request, Response};

use crate::page;

/// Name of the cache of shards; it changes with their format.
const NAME: &str = "barnraise-shards-1";
/// Name of the cache of the newest model, its tokenizer and access tokens; it changes with their format.
const MODEL_NAME: &str = "barnraise-model-2";
/// Longest access token that is read back: a frame.
const TOKEN_FILE_BYTES_MAX: u32 = (HEADER_BYTES + TOKEN_BYTES_MAX) as u32;
/// Longest model that is read back: a description and its parameters.
const MODEL_BYTES_MAX: u32 = 1 << 30;
/// Bytes of a model that are on their way between this program and the browser.
const BLOB_BYTES: u32 = 1 << 20;
/// Most cached shards, those of earlier runs included; the oldest is evicted first.
const SHARDS_MAX: u32 = if cfg!(feature = "tests") { 8 } else { 1024 };

// Declared here because web-sys features are shared by the whole build, the page included.
#[wasm_bindgen]
extern "C" {
    /// Bytes that the browser holds, on its disk where they are many.
    type Blob;

    #[wasm_bindgen(constructor, catch)]
    fn new(parts: &Array) -> Result<Blob, JsValue>;

    #[wasm_bindgen(method, getter)]
    fn size(this: &Blob) -> f64;

    #[wasm_bindgen(method)]
    fn slice(this: &Blob, start: f64, end: f64) -> Blob;

    #[wasm_bindgen(method, js_name = arrayBuffer)]
    fn array_buffer(this: &Blob) -> Promise;

    #[wasm_bindgen(extends = Response)]
    #[wasm_bindgen(js_name = Response)]
    type BlobResponse;

    #[wasm_bindgen(constructor, catch, js_class = "Response")]
    fn new(body: &Blob) -> Result<BlobResponse, JsValue>;
}

/// The cache of one origin.
pub(crate) struct ShardCache {
    folder: String,
    tokens: String,
    model: String,
    tokenizer: String,
}

impl ShardCache {
    pub(crate) fn new(origin: &str) -> Self {
        Self {
            folder: format!("{origin}/shards/"),
            tokens: format!("{origin}/tokens/"),
            model: format!("{origin}/model"),
            tokenizer: format!("{origin}/tokenizer"),
        }
    }

    /// The bytes cached under a hash.
    pub(crate) async fn get(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        read(&open(NAME).await.ok()?, &self.address(sha256), SHARD_BYTES_MAX).await
    }

    /// The newest model.
    pub(crate) async fn model(&self) -> Option<Pieces> {
        read_pieces(&open(MODEL_NAME).await.ok()?, &self.model).await.ok()?
    }

    /// Replaces the cached model.
    pub(super) async fn put_model(&self, file: impl Iterator<Item = Vec<u8>>) {
        if let Err(error) = replace_by_pieces(&self.model, file).await {
            gloo::console::info!("the newest model was not kept:", page::describe(&error));
        }
    }

    /// The cached tokenizer of a text model, unless it is longer than `n_bytes_max`.
    pub(crate) async fn tokenizer(&self, n_bytes_max: u32) -> Option<Vec<u8>> {
        read(&open(MODEL_NAME).await.ok()?, &self.tokenizer, n_bytes_max).await
    }

    /// Replaces the cached tokenizer.
    pub(crate) async fn put_tokenizer(&self, tokenizer: &[u8]) {
        if let Err(error) = replace(&self.tokenizer, tokenizer).await {
            gloo::console::info!("the tokenizer was not kept:", page::describe(&error));
        }
    }

    /// The access token kept under a name.
    pub(super) async fn token(&self, name: Sha256Hash) -> Option<Vec<u8>> {
        let address = format!("{}{name}", self.tokens);
        read(&open(MODEL_NAME).await.ok()?, &address, TOKEN_FILE_BYTES_MAX).await
    }

    /// Keeps an access token under a name.
    pub(super) async fn put_token(&self, name: Sha256Hash, token: &[u8]) {
        if let Err(error) = replace(&format!("{}{name}", self.tokens), token).await {
            gloo::console::info!("the access token was not kept:", page::describe(&error));
        }
    }

    /// Caches bytes under their hash, where the browser has room.
    pub(crate) async fn put(&self, sha256: Sha256Hash, bytes: &[u8]) {
        if let Err(error) = self.try_put(sha256, bytes).await {
            gloo::console::info!("a shard was not kept:", page::describe(&error));
        }
    }

    async fn try_put(&self, sha256: Sha256Hash, bytes: &[u8]) -> Result<(), JsValue> {
        let cache = open(NAME).await?;
        let keys: Array = JsFuture::from(cache.keys()).await?.dyn_into()?;
        // Keys come in the order in which they were put.
        for index in 0..(keys.length() + 1).saturating_sub(SHARDS_MAX) {
            let oldest: Request = keys.get(index).dyn_into()?;
            JsFuture::from(cache.delete_with_request(&oldest)).await?;
        }
        let response = Response::new_with_opt_js_u8_array(Some(&Uint8Array::from(bytes)))?;
        JsFuture::from(cache.put_with_str(&self.address(sha256), &response)).await?;
        Ok(())
    }

    fn address(&self, sha256: Sha256Hash) -> String {
        format!("{}{sha256}", self.folder)
    }
}

/// Replaces the bytes cached at an address.
async fn replace(address: &str, bytes: &[u8]) -> Result<(), JsValue> {
    let response = Response::new_with_opt_js_u8_array(Some(&Uint8Array::from(bytes)))?;
    JsFuture::from(open(MODEL_NAME).await?.put_with_str(address, &response)).await?;
    Ok(())
}

/// Replaces the bytes cached at an address, which are nowhere in one place.
async fn replace_by_pieces(address: &str, pieces: impl Iterator<Item = Vec<u8>>) -> Result<(), JsValue> {
    let (blobs, mut waiting, mut n_waiting) = (Array::new(), Array::new(), 0);
    for piece in pieces {
        let piece = Uint8Array::from(piece.as_slice());
        n_waiting += piece.length();
        waiting.push(&piece);
        if n_waiting >= BLOB_BYTES {
            blobs.push(&Blob::new(&waiting)?.into());
            (waiting, n_waiting) = (Array::new(), 0);
            // The browser takes them over meanwhile.
            TimeoutFuture::new(0).await;
        }
    }
    blobs.push(&Blob::new(&waiting)?.into());
    let response = BlobResponse::new(&Blob::new(&blobs)?)?;
    JsFuture::from(open(MODEL_NAME).await?.put_with_str(address, &response)).await?;
    Ok(())
}

/// The model cached at an address, a part after the other; `None` where there is none, or a longer one than there can be.
async fn read_pieces(cache: &Cache, address: &str) -> Result<Option<Pieces>, JsValue> {
    let Ok(response) = JsFuture::from(cache.match_with_str(address)).await?.dyn_into::<Response>() else {
        return Ok(None);
    };
    let blob: Blob = JsFuture::from(response.blob()?).await?.unchecked_into();
    if blob.size() > f64::from(MODEL_BYTES_MAX) {
        return Ok(None);
    }
    let mut pieces = Pieces::default();
    for start in (0..blob.size() as u32).step_by(BLOB_BYTES as usize) {
        let part = blob.slice(f64::from(start), f64::from(start + BLOB_BYTES));
        let buffer: ArrayBuffer = JsFuture::from(part.array_buffer()).await?.dyn_into()?;
        pieces.push(&Uint8Array::new(&buffer).to_vec());
    }
    Ok(Some(pieces))
}

/// The bytes cached at an address, unless they are longer than `n_bytes_max`.
async fn read(cache: &Cache, address: &str, n_bytes_max: u32) -> Option<Vec<u8>> {
    let found = JsFuture::from(cache.match_with_str(address)).await.ok()?;
    let response: Response = found.dyn_into().ok()?;
    let buffer: ArrayBuffer = JsFuture::from(response.array_buffer().ok()?).await.ok()?.dyn_into().ok()?;
    let bytes = Uint8Array::new(&buffer);
    (bytes.length() <= n_bytes_max).then(|| bytes.to_vec())
}

/// The cache; absent outside of secure contexts, refused in some private windows.
async fn open(name: &str) -> Result<Cache, JsValue> {
    let scope = page::scope().ok_or(JsValue::NULL)?;
    if !Reflect::has(&scope, &JsValue::from_str("caches"))? {
        return Err(JsValue::from_str("this context has no Cache API"));
    }
    JsFuture::from(scope.caches()?.open(name)).await?.dyn_into()
}

#[cfg(feature = "tests")]
mod tests {
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    #[wasm_bindgen_test]
    async fn shards_come_back_under_their_hash_and_the_oldest_are_evicted() {
        let cache = ShardCache::new("http://shards.test");
        let hash = |number: u32| Sha256Hash::of(&number.to_le_bytes());
        assert_eq!(cache.token(hash(0)).await, None);
        cache.put_token(hash(0), b"token").await;
        assert_eq!(cache.get(hash(0)).await, None);
        for number in 0..SHARDS_MAX + 2 {
            cache.put(hash(number), &number.to_le_bytes()).await;
        }
        assert_eq!(cache.get(hash(SHARDS_MAX + 1)).await, Some((SHARDS_MAX + 1).to_le_bytes().to_vec()));
        assert_eq!(cache.get(hash(2)).await, Some(2_u32.to_le_bytes().to_vec()));
        for gone in 0..2 {
            assert_eq!(cache.get(hash(gone)).await, None, "shard {gone}");
        }
        assert_eq!(cache.token(hash(0)).await.as_deref(), Some(&b"token"[..]), "no shard takes its place");
    }

    #[wasm_bindgen_test]
    async fn the_newest_model_takes_the_place_of_the_one_before_and_each_page_has_its_own() {
        let (here, elsewhere) = (ShardCache::new("http://models.test"), ShardCache::new("http://other.test"));
        let long = (0..50).map(|number| vec![number; 50_000]);
        here.put_model(std::iter::once(b"first".to_vec())).await;
        here.put_model(long.clone()).await;
        let mut want = Pieces::default();
        long.for_each(|piece| want.push(&piece));
        assert!(here.model().await == Some(want), "of several blobs");
        assert_eq!(elsewhere.model().await, None);
    }

    #[wasm_bindgen_test]
    async fn entries_above_the_length_limit_are_not_read_back() {
        let cache = ShardCache::new("http://words.test");
        cache.put_tokenizer(b"12345678").await;
        assert_eq!(cache.tokenizer(8).await.as_deref(), Some(&b"12345678"[..]));
        assert_eq!(cache.tokenizer(7).await, None);
    }
}
