//! Checks the files in `deploy/`: they parse, and fit the program, the examples and the manual.
//! Nothing is started but the script of the health checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::time::Duration;

use barnraise_native::cli::Cli;
use barnraise_native::config::RunConfig;
#[cfg(unix)]
use barnraise_native::host::readiness::{OperatorPage, Readiness, StartupStep};
use barnraise_relay::Environment;
use barnraise_relay::server::{HostNames, RelayConfig};
use clap::Parser;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
#[cfg(unix)]
use tokio_util::sync::CancellationToken;
use yaml_rust2::{Yaml, YamlLoader};

/// Restrictions of every service.
const HARDENING: [(&str, &str); 13] = [
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
        // Its folders are those that systemd lets it write to.
        let folder = format!("/var/lib/{}", values(service, "StateDirectory")[0]);
        let settings = settings(service);
        assert!(settings.contains(&("BARNRAISE__STORAGE__FOLDER".into(), folder.clone())), "{settings:?}");
        let environment = environment(&settings);
        if name == "barnraise" {
            let config = RunConfig::load_in(&root().join("native/run.reference.toml"), &environment).unwrap();
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
        // The operator of a run must be the user that owns its folder; a relay has no operator commands.
        let is_root = values(service, "User").is_empty() && values(service, "DynamicUser") != ["yes"];
        assert!(!is_root, "{name}");
    }
    let backbone = unit("deploy/systemd/barnraise.service");
    let user = values(&backbone["Service"], "User")[0];
    let users = read("deploy/systemd/barnraise.conf");
    assert!(users.lines().any(|line| line.starts_with(&format!("u {user} - "))), "{users}");
    assert!(read("docs/operate/training.md").contains(&format!("sudo -u {user} ")));
}

/// `compose.env` as an operator fills it in.
fn filled_in() -> BTreeMap<String, String> {
    let text = read("deploy/compose.env.example");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.split_once('=').unwrap();
            assert_eq!(value, "", "{name} has a default: a forgotten variable would get it");
            (name.to_owned(), "barn.example".to_owned())
        })
        .collect()
}

/// A text with its variables substituted, each of which must be required.
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

/// The content of `database` according to `compose.env.example`, with a password.
fn database_secret() -> String {
    let text = read("deploy/compose.env.example");
    let line = text.lines().find(|line| line.ends_with("> database")).unwrap();
    line.split('\'').nth(1).unwrap().replace("%s", "a-password")
}

fn run_of_compose() -> RunConfig {
    let compose = compose();
    let backbone = &compose["services"]["backbone"];
    let secrets = tempfile::tempdir().unwrap();
    let here = secrets.path().join("database");
    fs::write(&here, database_secret()).unwrap();
    let mut variables = variables_of(backbone);
    for (name, value) in &mut variables {
        if let Some(secret) = value.strip_prefix("/run/secrets/") {
            assert!(texts(&backbone["secrets"]).contains(&secret), "{name}");
            *value = here.display().to_string();
        }
    }
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
    assert!(database.starts_with("postgres://barnraise:a-password@127.0.0.1:5432/"), "{database}");
    assert_eq!(texts(&services["database"]["ports"]), ["127.0.0.1:5432:5432"]);
    for (name, address) in [("backbone", config.network.http), ("relay", relay_of_compose().network.http)] {
        let (_, asked) = health_check(&services[name]);
        assert_eq!(asked, on_device(address), "{name}");
    }
    // While PostgreSQL is set up it answers at its socket only, and then ends.
    assert!(texts(&services["database"]["healthcheck"]["test"]).contains(&"127.0.0.1"));
    // The folders are the volumes of the image.
    let container = read("deploy/Containerfile");
    assert_eq!(config.storage.folder, Path::new("/var/lib/barnraise"));
    assert_eq!(relay_of_compose().storage.folder, Path::new("/var/lib/barnraise"));
    assert!(container.contains("VOLUME /var/lib/barnraise /var/cache/barnraise"));
}

/// The script of a service's health check, and its argument.
fn health_check(service: &Yaml) -> (String, String) {
    let test = texts(&service["healthcheck"]["test"]);
    assert_eq!(test[..3], ["CMD", "bash", "-c"]);
    assert_eq!(test.len(), 5, "{test:?}");
    // Compose takes one of two.
    (test[3].replace("$$", "$"), test[4].to_owned())
}

/// The address as a path of bash's `/dev/tcp`.
fn on_device(address: SocketAddr) -> String {
    format!("{}/{}", address.ip(), address.port())
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_healthy_when_it_is_ready() {
    let compose = compose();
    let (script, _) = health_check(&compose["services"]["backbone"]);
    assert_eq!(script, health_check(&compose["services"]["relay"]).0);
    let is_healthy = async |address: SocketAddr| {
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", &script, &on_device(address)]);
        let output = tokio::task::spawn_blocking(move || bash.output()).await.unwrap();
        output.expect("the image has bash, and so has a test machine").status.success()
    };
    let (readiness, stop) = (Readiness::starting(CancellationToken::new()), CancellationToken::new());
    let here = "127.0.0.1:0".parse().unwrap();
    let names = HostNames::new("operator_names", &[]);
    let page = OperatorPage::open(here, names, Duration::from_secs(10), readiness.clone(), stop.clone());
    let page = page.await.unwrap();
    assert!(!is_healthy(page.address()).await);
    for part in [StartupStep::Data, StartupStep::Checkpoint, StartupStep::Listeners, StartupStep::Database] {
        readiness.done(part);
    }
    assert!(is_healthy(page.address()).await);
    // Nobody listens at a port that was just given back.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(!is_healthy(nobody).await);
    stop.cancel();
}

#[test]
fn no_container_has_a_password_in_its_environment() {
    let compose = compose();
    let secrets = compose["secrets"].as_hash().unwrap();
    let mut used = BTreeSet::new();
    for (name, service) in compose["services"].as_hash().unwrap() {
        let name = name.as_str().unwrap();
        let mounted = texts(&service["secrets"]);
        for secret in &mounted {
            let file = secrets[&Yaml::String((*secret).into())]["file"].as_str().unwrap();
            assert_eq!(file, format!("./secrets/{secret}"), "{name}");
            let example = read("deploy/compose.env.example");
            assert!(example.contains(&format!("> {secret}\n")), "{secret}: how it is made is not said");
            used.insert(*secret);
        }
        let Some(variables) = service["environment"].as_hash() else { continue };
        for (variable, value) in variables {
            let (variable, value) = (variable.as_str().unwrap(), value.as_str().unwrap_or_default());
            let is_secret =
                ["PASSWORD", "SECRET", "TOKEN", "DATABASE"].iter().any(|it| variable.contains(it));
            assert!(!value.contains("://") || !value.contains('@'), "{name}: {variable}");
            if is_secret {
                let secret =
                    value.strip_prefix("/run/secrets/").unwrap_or_else(|| panic!("{name}: {variable}"));
                assert!(mounted.contains(&secret), "{name}: {secret}");
            }
        }
    }
    assert_eq!(used.len(), secrets.len());
    for ignored in [".gitignore", ".dockerignore"] {
        assert!(read(ignored).lines().any(|line| line == "/deploy/secrets"), "{ignored}");
    }
}

/// `name:1.2.3` and more of it, or `name@sha256:…`: not a name that leads elsewhere tomorrow.
fn is_exact(image: &str) -> bool {
    if let Some((_, digest)) = image.split_once("@sha256:") {
        return digest.len() == 64;
    }
    let Some((_, tag)) = image.rsplit_once(':') else { return false };
    let version = tag.trim_start_matches('v').split('-').next().unwrap_or_default();
    let n_numbers = version.split('.').filter(|part| part.parse::<u32>().is_ok()).count();
    // Debian and PostgreSQL have two.
    n_numbers >= if image.contains("/debian:") || image.contains("/postgres:") { 2 } else { 3 }
}

#[test]
fn images_of_others_are_named_by_their_exact_version() {
    let compose = compose();
    let services = compose["services"].as_hash().unwrap().values();
    let images = services.map(|service| service["image"].as_str().unwrap().to_owned());
    let container = read("deploy/Containerfile");
    let bases = container.lines().filter_map(|line| line.strip_prefix("FROM "));
    let bases = bases.map(|line| line.split(' ').next().unwrap().to_owned());
    let others: Vec<String> = images.chain(bases).filter(|image| !image.starts_with("barnraise:")).collect();
    assert!(others.len() >= 6, "{others:?}");
    for image in others {
        assert!(is_exact(&image), "{image}");
    }
    assert!(!is_exact("docker.io/library/postgres:17") && !is_exact("docker.io/library/caddy:2"));
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
        assert!(!service["logging"]["options"]["max-size"].is_badvalue(), "{name}: its log fills the disk");
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
    let container = read("deploy/Containerfile");
    for part in ["groupadd --gid 10001 ", "useradd --uid 10001 --gid 10001 ", "\nUSER 10001:10001\n"] {
        assert!(container.contains(part), "{part}: not as root, and as the owner of its folders");
    }
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
    let nginx = read("deploy/nginx.conf");
    for part in [
        format!("default   http://{};", run.network.http),
        format!("websocket http://127.0.0.1:{port};"),
        // A forged header of a visitor would be trusted.
        "proxy_set_header X-Forwarded-For $remote_addr;".into(),
        "proxy_set_header X-Forwarded-Proto $scheme;".into(),
    ] {
        assert!(nginx.contains(&part), "{part}");
    }
    for proxy in [caddy, nginx] {
        assert!(!proxy.contains("8082"), "the operator's page is not for visitors");
    }
    // Caddy writes the same header by itself; without this WebSockets would all come from the proxy.
    assert!(run.network.trusted_proxies.iter().any(|network| network.contains([127, 0, 0, 1].into())));
    assert_eq!(texts(&prometheus["rule_files"]), ["alerts.yml"]);
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
    let manual = read("docs/operate/network.md");
    let (run, relay, defaults) = (run_of_compose(), relay_of_compose(), RunConfig::default());
    let listen = run.network.listen.iter().chain(&relay.network.listen).chain(&defaults.network.listen);
    let mut ports: BTreeSet<(&str, u16)> = listen.map(port).collect();
    ports.extend([("TCP", run.network.http.port()), ("TCP", run.network.operator.unwrap().port())]);
    ports.extend([("TCP", relay.network.http.port())]);
    // HTTP/3.
    ports.insert(("UDP", 443));
    ports.extend([80, 443, 3000, 5432, 9090].map(|port| ("TCP", port)));
    let rows: Vec<&str> = manual.lines().filter(|line| line.starts_with('|')).collect();
    for (protocol, port) in ports {
        let start = format!("| {protocol} {port} |");
        assert!(
            rows.iter().any(|row| row.starts_with(&start)),
            "{start} is missing in docs/operate/network.md"
        );
    }
    let container = read("deploy/Containerfile");
    let exposed = container.lines().find_map(|line| line.strip_prefix("EXPOSE ")).unwrap();
    for (protocol, port) in run.network.listen.iter().map(self::port) {
        let port = format!("{port}/{}", protocol.to_lowercase());
        assert!(exposed.split(' ').any(|exposed| exposed == port), "{port}");
    }
}

/// The README and the chapters on operating.
fn chapters() -> Vec<PathBuf> {
    let chapters = fs::read_dir(root().join("docs/operate")).unwrap();
    chapters.map(|chapter| chapter.unwrap().path()).chain([root().join("README.md")]).collect()
}

/// The arguments of each `barnraise` command line of a chapter.
fn commands(manual: &str) -> Vec<Vec<&str>> {
    let lines = manual.lines().filter(|line| line.starts_with("    "));
    let arguments = lines.filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let program = words.iter().rposition(|word| *word == "barnraise")?;
        let arguments = words[program + 1..].iter().copied();
        Some(arguments.take_while(|word| !["#", ">", "&&", "\\"].contains(word)).collect::<Vec<&str>>())
    });
    arguments.filter(|arguments| !arguments.is_empty()).collect()
}

#[test]
fn the_manual_says_commands_that_there_are() {
    let mut n_commands = 0;
    for chapter in chapters() {
        for command in commands(&fs::read_to_string(&chapter).unwrap()) {
            n_commands += 1;
            let words = ["barnraise"].into_iter().chain(command);
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{}: {error}", chapter.display()));
        }
    }
    assert!(n_commands > 12, "{n_commands}");
}
