//! A visitor's browser that reads pages and sends forms, with cookies: no scripts, no pictures.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use ureq::http::{Response, header};
use url::Url;

/// Most redirects in a row.
const REDIRECTS_MAX: usize = 10;

/// A browser with its cookies.
#[derive(Debug)]
pub struct Visitor {
    agent: ureq::Agent,
    /// Of each origin, by name and path.
    cookies: HashMap<String, HashMap<(String, String), String>>,
    /// Every cookie that was set, as it was set.
    pub set_cookies: Vec<String>,
}

/// What is shown.
#[derive(Debug)]
pub struct VisitedPage {
    /// Where, after all redirects.
    pub url: Url,
    /// HTTP.
    pub status: u16,
    /// HTML.
    pub text: String,
}

impl Default for Visitor {
    fn default() -> Self {
        Self::new()
    }
}

impl Visitor {
    /// A browser without cookies.
    pub fn new() -> Self {
        let config = ureq::Agent::config_builder().max_redirects(0).http_status_as_error(false);
        Self { agent: config.build().into(), cookies: HashMap::new(), set_cookies: Vec::new() }
    }

    /// Opens a page and follows where it leads.
    ///
    /// # Errors
    /// Where nobody answers.
    pub fn open(&mut self, url: &str) -> Result<VisitedPage> {
        self.go(Url::parse(url)?, None)
    }

    /// Sends the first form of `page` with these fields and its hidden ones.
    ///
    /// # Errors
    /// A page without a form.
    pub fn send(&mut self, page: &VisitedPage, fields: &[(&str, &str)]) -> Result<VisitedPage> {
        let form = page.text.split_once("<form").with_context(|| format!("no form in {page:?}"))?.1;
        let form = form.split_once("</form>").map_or(form, |(form, _)| form);
        let action = attribute(form, "action").context("a form without an action")?;
        let mut body = url::form_urlencoded::Serializer::new(String::new());
        for input in form.split("<input").skip(1) {
            let input = input.split_once('>').map_or(input, |(input, _)| input);
            if attribute(input, "type") == Some("hidden")
                && let Some(name) = attribute(input, "name")
            {
                body.append_pair(name, attribute(input, "value").unwrap_or_default());
            }
        }
        for (name, value) in fields {
            body.append_pair(name, value);
        }
        self.go(page.url.join(action)?, Some(body.finish()))
    }

    fn go(&mut self, mut url: Url, mut body: Option<String>) -> Result<VisitedPage> {
        for _ in 0..REDIRECTS_MAX {
            let mut response = self.request(&url, body.take())?;
            match response.headers().get(header::LOCATION) {
                Some(location) if response.status().is_redirection() => url = url.join(location.to_str()?)?,
                _ => {
                    let text = response.body_mut().read_to_string()?;
                    return Ok(VisitedPage { url, status: response.status().as_u16(), text });
                }
            }
        }
        bail!("redirected in a circle, to {url}")
    }

    fn request(&mut self, url: &Url, body: Option<String>) -> Result<Response<ureq::Body>> {
        let jar = self.cookies.entry(url.origin().ascii_serialization()).or_default();
        let sent = jar.iter().filter(|((_, path), _)| is_below(url.path(), path));
        let cookies: Vec<String> = sent.map(|((name, _), value)| format!("{name}={value}")).collect();
        let cookies = cookies.join("; ");
        let response = match body {
            None => self.agent.get(url.as_str()).header("cookie", cookies).call()?,
            Some(body) => {
                let form = "application/x-www-form-urlencoded";
                let request = self.agent.post(url.as_str()).header("cookie", cookies);
                request.header("content-type", form).send(body)?
            }
        };
        for cookie in response.headers().get_all(header::SET_COOKIE) {
            self.set_cookies.push(cookie.to_str()?.to_owned());
            let mut parts = cookie.to_str()?.split(';').map(str::trim);
            let pair = parts.next().unwrap_or_default();
            let path = parts.find_map(|part| {
                let (name, value) = part.split_once('=')?;
                (name.eq_ignore_ascii_case("path") && value.starts_with('/')).then(|| value.to_owned())
            });
            let path = path.unwrap_or_else(|| folder_of(url.path()));
            if let Some((name, value)) = pair.split_once('=') {
                jar.insert((name.to_owned(), path), value.to_owned());
            }
        }
        Ok(response)
    }
}

/// Where a cookie belongs that does not say so.
fn folder_of(path: &str) -> String {
    let folder = path.rsplit_once('/').map(|(folder, _)| folder).filter(|folder| !folder.is_empty());
    folder.unwrap_or("/").to_owned()
}

/// Whether a cookie of `folder` goes along to `path`, as RFC 6265 has it.
fn is_below(path: &str, folder: &str) -> bool {
    let rest = path.strip_prefix(folder);
    rest.is_some_and(|rest| rest.is_empty() || folder.ends_with('/') || rest.starts_with('/'))
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tag.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}
