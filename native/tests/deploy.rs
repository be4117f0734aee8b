//! What is in `deploy/`: that it parses, and that it goes together with the program, the examples and the manual.
//! Nothing of it is started here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use barnraise_native::cli::{Cli, Command};
use barnraise_native::config::RunConfig;
use barnraise_relay::Environment;
use barnraise_relay::server::RelayConfig;
use clap::Parser;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use yaml_rust2::{Yaml, YamlLoader};

/// What every service is kept from.
const HARDENING: [(&str, &str); 14] = [
    ("DynamicUser", "yes"),
    ("NoNewPrivileges", "yes"),
    ("CapabilityBoundingSet", ""),
    ("ProtectSystem", "strict"),
    ("ProtectHome", "yes"),
    ("PrivateTmp", "yes"),
    ("PrivateDevices", "yes"),
    ("ProtectKernelTunables", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectControlGroups", "yes"),
    ("RestrictNamespaces", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("LockPersonality", "yes"),
    ("SystemCallFilter", "@system-service"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Yaml {
    YamlLoader::load_from_str(&read(path)).unwrap().remove(0)
}

fn environment(variables: &[(String, String)]) -> Environment {
    let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
    Environment::of(variables, &["contributions.database"]).unwrap()
}

fn texts(list: &Yaml) -> Vec<&str> {
    list.as_vec().map(|texts| texts.iter().filter_map(Yaml::as_str).collect()).unwrap_or_default()
}

/// Keys with their values, in the order of the file, by section.
fn unit(path: &str) -> BTreeMap<String, Vec<(String, String)>> {
    let text = read(path);
    let mut sections: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut section = String::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{path}: {line}"));
        sections.entry(section.clone()).or_default().push((key.into(), value.into()));
    }
    sections
}

fn values<'a>(keys: &'a [(String, String)], wanted: &str) -> Vec<&'a str> {
    keys.iter().filter(|(key, _)| key == wanted).map(|(_, value)| value.as_str()).collect()
}

fn settings(service: &[(String, String)]) -> Vec<(String, String)> {
    let pairs = values(service, "Environment").into_iter().map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn services_of_systemd_run_the_program_as_it_is_and_with_nothing_they_do_not_need() {
    for name in ["barnraise", "barnraise-relay"] {
        let unit = unit(&format!("deploy/systemd/{name}.service"));
        assert_eq!(unit.keys().collect::<Vec<_>>(), ["Install", "Service", "Unit"]);
        let service = &unit["Service"];
        for (key, value) in HARDENING {
            assert_eq!(values(service, key), [value], "{name}: {key}");
        }
        // What it writes is where systemd lets it.
        let folder = format!("/var/lib/{}", values(service, "StateDirectory")[0]);
        let settings = settings(service);
        assert!(settings.contains(&("BARNRAISE__STORAGE__FOLDER".into(), folder.clone())), "{settings:?}");
        let environment = environment(&settings);
        if name == "barnraise" {
            let config = RunConfig::load_in(&root().join("native/run.example.toml"), &environment).unwrap();
            assert_eq!(config.storage.folder, Path::new(&folder));
        } else {
            let text = read("relay/relay.example.toml");
            let config = RelayConfig::parse(&text, Path::new("relay.toml"), &environment).unwrap();
            assert_eq!(config.storage.folder, Path::new(&folder));
        }
        for command in values(service, "ExecStart").into_iter().chain(values(service, "ExecStartPre")) {
            let words: Vec<&str> = command.split(' ').collect();
            assert_eq!(words[0], format!("/usr/local/bin/{name}"));
            if name == "barnraise" {
                Cli::try_parse_from(&words).unwrap();
            }
        }
        assert_eq!(values(service, "KillSignal"), ["SIGTERM"]);
    }
}

/// `compose.env` as an operator fills it in.
fn filled_in() -> BTreeMap<String, String> {
    let text = read("deploy/compose.env.example");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.split_once('=').unwrap();
            assert_eq!(value, "", "{name} has a default: whoever forgets it gets that");
            (name.to_owned(), "barn.example".to_owned())
        })
        .collect()
}

/// A text with its variables in place, each of which is asked for where it is missing.
fn substituted(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut parts = text.split("${");
    let mut result = parts.next().unwrap().to_owned();
    for part in parts {
        let (variable, rest) = part.split_once('}').unwrap();
        let (name, _) = variable.split_once(":?").unwrap_or_else(|| panic!("{variable} is not asked for"));
        result
            .push_str(variables.get(name).unwrap_or_else(|| panic!("{name} is not in compose.env.example")));
        result.push_str(rest);
    }
    result
}

fn compose() -> Yaml {
    let text = substituted(&read("deploy/compose.yaml"), &filled_in());
    YamlLoader::load_from_str(&text).unwrap().remove(0)
}

fn variables_of(service: &Yaml) -> Vec<(String, String)> {
    let variables = service["environment"].as_hash().unwrap().iter();
    variables.map(|(name, value)| (name.as_str().unwrap().into(), value.as_str().unwrap().into())).collect()
}

fn run_of_compose() -> RunConfig {
    let variables = variables_of(&compose()["services"]["backbone"]);
    RunConfig::load_in(&root().join("deploy/config/run.toml"), &environment(&variables)).unwrap()
}

fn relay_of_compose() -> RelayConfig {
    let path = root().join("deploy/config/relay.toml");
    RelayConfig::parse(&read("deploy/config/relay.toml"), &path, &Environment::default()).unwrap()
}

#[test]
fn the_run_of_compose_is_what_its_services_expect() {
    let (config, compose) = (run_of_compose(), compose());
    assert_eq!(config.access.page.as_deref(), Some("https://barn.example"));
    let wss: Multiaddr = "/dns4/barn.example/tcp/443/wss".parse().unwrap();
    assert_eq!(config.network.announce, [wss]);
    let services = &compose["services"];
    let database = config.contributions.database.unwrap();
    assert!(database.starts_with("postgres://barnraise:barn.example@127.0.0.1:5432/"), "{database}");
    assert_eq!(texts(&services["database"]["ports"]), ["127.0.0.1:5432:5432"]);
    let health = texts(&services["backbone"]["healthcheck"]["test"]);
    let Command::Top(top) = Cli::try_parse_from(&health[1..]).unwrap().command else { panic!("{health:?}") };
    assert_eq!(top.address, format!("http://{}", config.network.http));
    // The folders are the volumes of the image.
    let container = read("deploy/Containerfile");
    assert_eq!(config.storage.folder, Path::new("/var/lib/barnraise"));
    assert_eq!(relay_of_compose().storage.folder, Path::new("/var/lib/barnraise"));
    assert!(container.contains("VOLUME /var/lib/barnraise /var/cache/barnraise"));
}

#[test]
fn compose_names_what_there_is_and_shows_nothing_that_is_for_inside() {
    let compose = compose();
    let volumes: BTreeSet<&str> =
        compose["volumes"].as_hash().unwrap().keys().filter_map(Yaml::as_str).collect();
    let mut used = BTreeSet::new();
    for (name, service) in compose["services"].as_hash().unwrap() {
        let name = name.as_str().unwrap();
        for volume in texts(&service["volumes"]) {
            let (source, target) = volume.split_once(':').unwrap();
            assert!(target.starts_with('/'), "{name}: {volume}");
            if let Some(path) = source.strip_prefix("./") {
                assert!(root().join("deploy").join(path).exists(), "{name}: {volume}");
                assert!(target.ends_with(":ro"), "{name}: {volume}");
            } else {
                assert!(volumes.contains(source), "{name}: {volume}");
                used.insert(source);
            }
        }
        for port in texts(&service["ports"]) {
            assert!(port.starts_with("127.0.0.1:"), "{name}: {port} is for everybody");
        }
        let image = service["image"].as_str().unwrap();
        assert!(
            image.contains(':') && (image.starts_with("barnraise") || !image.ends_with(":latest")),
            "{image}"
        );
    }
    assert_eq!(used, volumes);
    let grafana = variables_of(&compose["services"]["grafana"]);
    assert!(grafana.contains(&("GF_SERVER_HTTP_ADDR".into(), "127.0.0.1".into())));
    assert!(grafana.contains(&("GF_AUTH_ANONYMOUS_ENABLED".into(), "false".into())));
    let prometheus = texts(&compose["services"]["prometheus"]["command"]);
    assert!(prometheus.contains(&"--web.listen-address=127.0.0.1:9090"), "{prometheus:?}");
    for name in ["backbone", "relay"] {
        let service = &compose["services"][name];
        assert_eq!(service["read_only"].as_bool(), Some(true));
        assert_eq!(texts(&service["cap_drop"]), ["ALL"]);
    }
    assert!(read("deploy/Containerfile").contains("\nUSER 10001:10001\n"), "not as root");
}

#[test]
fn prometheus_grafana_and_the_proxy_look_where_it_is() {
    let (run, relay) = (run_of_compose(), relay_of_compose());
    let prometheus = yaml("deploy/prometheus.yml");
    let jobs = prometheus["scrape_configs"].as_vec().unwrap();
    let targets: Vec<(&str, Vec<&str>)> = jobs
        .iter()
        .map(|job| (job["job_name"].as_str().unwrap(), texts(&job["static_configs"][0]["targets"])))
        .collect();
    let (backbone, relay) = (run.network.operator.unwrap().to_string(), relay.network.http.to_string());
    assert_eq!(targets, [("backbone", vec![backbone.as_str()]), ("relay", vec![relay.as_str()])]);

    let source = yaml("deploy/grafana/provisioning/datasources/prometheus.yaml");
    assert_eq!(source["datasources"][0]["url"].as_str(), Some("http://127.0.0.1:9090"));
    assert_eq!(source["datasources"][0]["uid"].as_str(), Some("prometheus"));
    let provider = yaml("deploy/grafana/provisioning/dashboards/barnraise.yaml");
    let folder = provider["providers"][0]["options"]["path"].as_str().unwrap();
    let mounts = compose();
    let mounts = texts(&mounts["services"]["grafana"]["volumes"]);
    assert!(mounts.contains(&format!("./grafana/barnraise.json:{folder}/barnraise.json:ro").as_str()));

    let caddy = read("deploy/Caddyfile");
    let websocket =
        run.network.listen.iter().find(|address| address.iter().any(|part| matches!(part, Protocol::Ws(_))));
    let (_, port) = port(websocket.unwrap());
    for part in [
        format!("reverse_proxy {} {{", run.network.http),
        format!("reverse_proxy @websocket 127.0.0.1:{port}"),
    ] {
        assert!(caddy.contains(&part), "{part}");
    }
    assert!(!caddy.contains("8082"), "the operator's page is not for visitors");
}

fn port(address: &Multiaddr) -> (&'static str, u16) {
    let port = address.iter().find_map(|part| match part {
        Protocol::Udp(port) => Some(("UDP", port)),
        Protocol::Tcp(port) => Some(("TCP", port)),
        _ => None,
    });
    port.unwrap()
}

#[test]
fn the_manual_lists_every_port() {
    let manual = read("docs/operating.md");
    let (run, relay, defaults) = (run_of_compose(), relay_of_compose(), RunConfig::default());
    let listen = run.network.listen.iter().chain(&relay.network.listen).chain(&defaults.network.listen);
    let mut ports: BTreeSet<(&str, u16)> = listen.map(port).collect();
    ports.extend([("TCP", run.network.http.port()), ("TCP", run.network.operator.unwrap().port())]);
    ports.extend([("TCP", relay.network.http.port())]);
    ports.extend([80, 443, 3000, 5432, 9090].map(|port| ("TCP", port)));
    let rows: Vec<&str> = manual.lines().filter(|line| line.starts_with('|')).collect();
    for (protocol, port) in ports {
        let start = format!("| {protocol} {port} |");
        assert!(rows.iter().any(|row| row.starts_with(&start)), "{start} is missing in docs/operating.md");
    }
    let container = read("deploy/Containerfile");
    let exposed = container.lines().find_map(|line| line.strip_prefix("EXPOSE ")).unwrap();
    for (protocol, port) in run.network.listen.iter().map(self::port) {
        let port = format!("{port}/{}", protocol.to_lowercase());
        assert!(exposed.split(' ').any(|exposed| exposed == port), "{port}");
    }
}
