//! Dependencies between the top modules of `src/` point one way: down the list in `src/lib.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers from the top down, as the documentation of `src/lib.rs` lists them after the heading `# Layers`.
fn layers(lib: &str) -> Vec<Vec<String>> {
    let (_, section) = lib.split_once("//! # Layers\n").expect("lib.rs lists the layers");
    let (_, list) = section.split_once("//! ```text\n").expect("the list begins");
    let (list, _) = list.split_once("//! ```\n").expect("the list ends");
    let modules = |line: &str| line.trim_start_matches("//!").split(',').map(|name| name.trim().to_owned()).collect();
    list.lines().map(modules).collect()
}

/// The modules that `lib.rs` declares.
fn declared(lib: &str) -> BTreeSet<String> {
    let module = |line: &str| {
        let line = line.trim_start_matches("pub ");
        Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
    };
    lib.lines().filter_map(module).collect()
}

/// The names that follow `crate::` in a source text: of `use` trees, and of paths in between.
fn used(text: &str) -> BTreeSet<String> {
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let after = &code[at + "crate::".len()..];
        let heads: Vec<&str> = match after.strip_prefix('{') {
            Some(tree) => heads_of_tree(tree),
            None => vec![after],
        };
        let name =
            |head: &str| head.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_owned();
        names.extend(heads.into_iter().map(name));
    }
    names
}

/// The branches of a `use` tree up to the brace that closes it.
fn heads_of_tree(tree: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut heads) = (0_u32, 0, Vec::new());
    for (at, letter) in tree.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' | ',' if depth == 0 => {
                heads.push(tree[begin..at].trim_start());
                begin = at + 1;
                if letter == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    heads
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder can be listed").map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Every use of a module that the list does not allow, as `file uses module`.
fn forbidden(layers: &[Vec<String>], files: &BTreeMap<String, String>) -> Vec<String> {
    let depth: BTreeMap<&str, usize> =
        layers.iter().enumerate().flat_map(|(depth, names)| names.iter().map(move |name| (&**name, depth))).collect();
    let mut found = Vec::new();
    for (file, text) in files {
        let module = file.split(['/', '.']).next().unwrap_or_default();
        let Some(own) = depth.get(module) else { continue };
        for name in used(text) {
            if depth.get(&*name).is_some_and(|other| other <= own) && name != module {
                found.push(format!("src/{file} uses {name}"));
            }
        }
    }
    found
}

fn crate_files() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rust = sources(&root).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|path| {
        let text = fs::read_to_string(&path).expect("a source file is text");
        (path.strip_prefix(&root).expect("it is below src").to_str().expect("a plain name").to_owned(), text)
    })
    .collect()
}

#[test]
fn every_module_is_in_one_layer_and_uses_only_layers_below() {
    let files = crate_files();
    let layers = layers(&files["lib.rs"]);
    let listed: Vec<_> = layers.iter().flatten().cloned().collect();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), declared(&files["lib.rs"]), "the list and the modules");
    assert_eq!(listed.len(), declared(&files["lib.rs"]).len(), "a module is listed twice");
    assert_eq!(forbidden(&layers, &files), Vec::<String>::new());
}

#[test]
fn an_arrow_that_points_up_or_sideways_is_found_however_it_is_written() {
    let files = crate_files();
    let layers = layers(&files["lib.rs"]);
    for (file, line) in [
        ("store/forms.rs", "use crate::tenant::Tenant;"),
        ("quota/window.rs", "use crate::{metrics::Metrics, api::{route, Call}};"),
        ("config/limits.rs", "    let gate = crate::gate::Gate::new();"),
        ("error.rs", "pub(crate) use crate::tenant;"),
    ] {
        let mut broken = files.clone();
        broken.get_mut(file).expect("the file is there").push_str(&format!("\n{line}\n"));
        assert_eq!(forbidden(&layers, &broken).len(), 1, "{file}: {line}");
    }
}
