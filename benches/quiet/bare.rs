//! A loop in C over the library that formgate is linked with: the least that opening a file can cost.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

use crate::process::checked;
use crate::world::World;

pub(crate) struct Bare<'w> {
    program: PathBuf,
    world: &'w World,
}

impl<'w> Bare<'w> {
    pub(crate) fn build(world: &'w World) -> anyhow::Result<Self> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/quiet/bare.c");
        let program = world.path("bare");
        let (library, header) = (library()?, header()?);
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-o"]).arg(&program).arg(source).arg(&library).arg("-I").arg(header);
        checked(compile.args(["-lpthread", "-lm", "-ldl"]))?;
        Ok(Self { program, world })
    }

    /// The CPU time of a round in milliseconds.
    pub(crate) fn run(&self, rounds: usize) -> anyhow::Result<f64> {
        let files = (0..rounds).map(|n| self.world.file(n % self.world.accounts));
        Ok(checked(Command::new(&self.program).args(files))?.parse()?)
    }
}

/// The library that Cargo built next to this program, the newest if there are several.
fn library() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let build = program.parent().and_then(|deps| deps.parent()).context("a folder above")?.join("build");
    let folders = fs::read_dir(build)?.flatten().map(|entry| entry.path().join("out/libsqlite3.a"));
    let newest = folders.filter_map(|library| Some((library.metadata().ok()?.modified().ok()?, library))).max();
    Ok(newest.context("a build of the library")?.1)
}

/// The folder of its header.
fn header() -> anyhow::Result<PathBuf> {
    let metadata = checked(
        Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--offline"])
            .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]),
    )?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().context("packages")?;
    let package = packages.iter().find(|package| package["name"] == "libsqlite3-sys").context("the library")?;
    let manifest = PathBuf::from(package["manifest_path"].as_str().context("a path")?);
    Ok(manifest.parent().context("a folder")?.join("sqlite3"))
}
