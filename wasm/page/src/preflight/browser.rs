//! The browser, by its user agent: only for the sentence on how to enable WebGPU.

use super::WebGpu;

/// A browser on a system; the texts are empty if it is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BrowserIdentity {
    name: &'static str,
    version: u32,
    system: &'static str,
    engine: Engine,
}

/// Engine of a browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Engine {
    Chromium,
    Gecko,
    WebKit,
    #[default]
    Unknown,
}

/// Mark before the version, name and engine. The first match counts, since user agents also contain the names of
/// older browsers.
const BROWSERS: [(&str, &str, Engine); 8] = [
    ("Edg/", "Edge", Engine::Chromium),
    ("OPR/", "Opera", Engine::Chromium),
    ("SamsungBrowser/", "Samsung Internet", Engine::Chromium),
    ("CriOS/", "Chrome", Engine::WebKit),
    ("FxiOS/", "Firefox", Engine::WebKit),
    ("Firefox/", "Firefox", Engine::Gecko),
    ("Chrome/", "Chrome", Engine::Chromium),
    ("Version/", "Safari", Engine::WebKit),
];

/// Mark and name of each system. The first match counts.
const SYSTEMS: [(&str, &str); 7] = [
    ("Android", "Android"),
    ("iPhone", "iOS"),
    ("iPad", "iPadOS"),
    ("CrOS", "ChromeOS"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
];

impl BrowserIdentity {
    /// By `navigator.userAgent`.
    pub(crate) fn of(user_agent: &str) -> Self {
        let found = BROWSERS.iter().find_map(|&(mark, name, engine)| {
            let (_, rest) = user_agent.split_once(mark)?;
            let digits = rest.split(|digit: char| !digit.is_ascii_digit()).next()?;
            Some((name, digits.parse().ok()?, engine))
        });
        let (name, version, engine) = found.unwrap_or_default();
        let system = SYSTEMS.iter().find(|(mark, _)| user_agent.contains(mark));
        Self { name, version, engine, system: system.map_or("", |(_, system)| system) }
    }

    /// For people: `Chrome 156 on Linux`.
    pub(crate) fn words(self) -> String {
        match (self.name, self.system) {
            ("", _) => "One that this page does not know".into(),
            (name, "") => format!("{name} {}", self.version),
            (name, system) => format!("{name} {} on {system}", self.version),
        }
    }

    /// Advice on how to enable WebGPU here.
    pub(crate) fn web_gpu_hint(self, web_gpu: WebGpu) -> &'static str {
        match (self.engine, self.system, web_gpu) {
            (Engine::Chromium, "Linux", _) => {
                "On Linux, switch on “Unsafe WebGPU Support” and “Vulkan” at chrome://flags, and graphics \
                 acceleration in the browser's settings."
            }
            (Engine::Chromium, _, WebGpu::NoAdapter) => {
                "Switch on graphics acceleration in the browser's settings, under System, and bring the \
                 graphics driver up to date."
            }
            (Engine::Chromium, ..) => {
                "Bring the browser up to date: Chrome and Edge have WebGPU from version 113 on, on Android \
                 from 121."
            }
            (Engine::Gecko, ..) => {
                "Firefox has WebGPU from version 141 on Windows and 145 on Macs with Apple silicon; \
                 elsewhere, dom.webgpu.enabled at about:config switches it on in Firefox Nightly."
            }
            (Engine::WebKit, ..) => {
                "Safari, and every browser on an iPhone or iPad, has WebGPU from system version 26 on; before \
                 that it is among Safari's feature flags."
            }
            (Engine::Unknown, ..) => "A Chrome, Edge, Safari or Firefox of today offers it.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_are_told_apart() {
        let webkit =
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko)";
        let chromium = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)";
        for (user_agent, words) in [
            (format!("{chromium} HeadlessChrome/156.0.0.0 Safari/537.36"), "Chrome 156 on Linux"),
            (
                "Mozilla/5.0 (Windows NT 10.0) Chrome/150.0.0.0 Safari/537.36 Edg/150.0".into(),
                "Edge 150 on Windows",
            ),
            (format!("{webkit} Version/26.1 Safari/605.1.15"), "Safari 26 on macOS"),
            (
                "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0".into(),
                "Firefox 145 on Linux",
            ),
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) CriOS/150.0 Mobile Safari/604.1"
                    .into(),
                "Chrome 150 on iOS",
            ),
            (
                "Mozilla/5.0 (Linux; Android 10; K) Chrome/150.0.0.0 Mobile Safari/537.36".into(),
                "Chrome 150 on Android",
            ),
            ("curl/8".into(), "One that this page does not know"),
        ] {
            assert_eq!(BrowserIdentity::of(&user_agent).words(), words, "{user_agent}");
        }
    }

    #[test]
    fn the_hint_is_for_this_browser() {
        let hint = |user_agent: &str, web_gpu| BrowserIdentity::of(user_agent).web_gpu_hint(web_gpu);
        assert!(hint("(X11; Linux) Chrome/150", WebGpu::NoAdapter).contains("chrome://flags"));
        assert!(hint("(Windows NT 10.0) Chrome/150", WebGpu::NoAdapter).contains("acceleration"));
        assert!(hint("(Windows NT 10.0) Chrome/99", WebGpu::Absent).contains("up to date"));
        assert!(hint("(X11; Linux) Firefox/145", WebGpu::Absent).contains("about:config"));
        assert!(hint("(iPhone; like Mac OS X) CriOS/150", WebGpu::Absent).contains("feature flags"));
    }
}
