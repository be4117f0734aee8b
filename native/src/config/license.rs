//! Licences of models, by their SPDX ids. Pure.

/// The licences of the SPDX list that are used for programs, texts, data and models. Ids are case-insensitive. Other
/// licences are written as `LicenseRef-` and a name.
const KNOWN: [&str; 78] = [
    "0bsd",
    "afl-3.0",
    "agpl-3.0",
    "agpl-3.0-only",
    "agpl-3.0-or-later",
    "apache-1.1",
    "apache-2.0",
    "artistic-2.0",
    "blueoak-1.0.0",
    "bsd-2-clause",
    "bsd-2-clause-patent",
    "bsd-3-clause",
    "bsd-3-clause-clear",
    "bsl-1.0",
    "busl-1.1",
    "c-uda-1.0",
    "cc-by-1.0",
    "cc-by-2.0",
    "cc-by-2.5",
    "cc-by-3.0",
    "cc-by-4.0",
    "cc-by-nc-2.0",
    "cc-by-nc-3.0",
    "cc-by-nc-4.0",
    "cc-by-nc-nd-3.0",
    "cc-by-nc-nd-4.0",
    "cc-by-nc-sa-2.0",
    "cc-by-nc-sa-3.0",
    "cc-by-nc-sa-4.0",
    "cc-by-nd-3.0",
    "cc-by-nd-4.0",
    "cc-by-sa-2.0",
    "cc-by-sa-2.5",
    "cc-by-sa-3.0",
    "cc-by-sa-4.0",
    "cc-pddc",
    "cc0-1.0",
    "cdla-permissive-1.0",
    "cdla-permissive-2.0",
    "cdla-sharing-1.0",
    "cecill-2.1",
    "cecill-b",
    "cecill-c",
    "ecl-2.0",
    "epl-1.0",
    "epl-2.0",
    "etalab-2.0",
    "eupl-1.1",
    "eupl-1.2",
    "gfdl-1.3-only",
    "gfdl-1.3-or-later",
    "gpl-2.0",
    "gpl-2.0-only",
    "gpl-2.0-or-later",
    "gpl-3.0",
    "gpl-3.0-only",
    "gpl-3.0-or-later",
    "isc",
    "lgpl-2.1",
    "lgpl-2.1-only",
    "lgpl-2.1-or-later",
    "lgpl-3.0",
    "lgpl-3.0-only",
    "lgpl-3.0-or-later",
    "mit",
    "mit-0",
    "mpl-2.0",
    "ms-pl",
    "ncsa",
    "o-uda-1.0",
    "odbl-1.0",
    "odc-by-1.0",
    "ofl-1.1",
    "osl-3.0",
    "pddl-1.0",
    "postgresql",
    "unlicense",
    "zlib",
];
const OWN: &str = "licenseref-";

/// Whether `id` names a licence.
pub(super) fn is_known(id: &str) -> bool {
    let id = id.to_ascii_lowercase();
    KNOWN.contains(&id.as_str()) || id.strip_prefix(OWN).is_some_and(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_known_or_has_a_name_of_its_own() {
        for id in ["mit", "MIT", "Apache-2.0", "cc-by-4.0", "LicenseRef-barn"] {
            assert!(is_known(id), "{id}");
        }
        for id in ["", "nonsense", "cc-by", "LicenseRef-"] {
            assert!(!is_known(id), "{id}");
        }
    }
}
