//! `formgate export`: writes a tenant's submissions to a file, past the budget of its API.
//!
//! A file appears under its name once it is complete: until then it has another one, and a command that fails removes it. What
//! goes to standard output can't be taken back, so there the exit code says whether it is complete, as does the end of NDJSON
//! and Parquet.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::signal::unix::{SignalKind, signal};

use super::import::progress_bar;
use super::output::{print, print_stderr};
use super::{OfTenant, TenantChoice, actor};
use crate::api::export::{BeginError, ExportParts, ExportQuery, FormatKind, Selection};
use crate::api::parse_form_id;
use crate::reply::PartsError;
use crate::store::{AuditEntry, ExportError, ExportRequest, Store, StoreError};

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    tenant: TenantChoice,
    /// The format.
    #[arg(long, value_name = "FORMAT", value_parser = format())]
    format: FormatKind,
    /// Only the submissions of this form, such as for_1; with those of its sub-forms as NDJSON. Required for CSV and Parquet.
    #[arg(long, value_name = "ID", value_parser = form_id, required_if_eq_any([("format", "csv"), ("format", "parquet")]))]
    form: Option<i64>,
    /// The file; `-` writes to standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Begin CSV with the mark by which Excel knows UTF-8.
    #[arg(long)]
    excel: bool,
    /// Leave texts in CSV that a spreadsheet would take for formulas; without it, they get a leading `'`.
    #[arg(long)]
    raw: bool,
}

/// How many connections an export uses: one to read, and one to number changes.
///
/// Larger: none would use it. Smaller: an export waits for itself.
const CONNECTIONS: u32 = 2;

fn format() -> impl TypedValueParser<Value = FormatKind> {
    let names = PossibleValuesParser::new(FormatKind::ALL.map(FormatKind::name));
    names.map(|name| FormatKind::parse(&name).expect("it is one of their names"))
}

fn form_id(text: &str) -> Result<i64, String> {
    parse_form_id(text).ok_or_else(|| "an id is for_<number> or a number".to_owned())
}

pub(super) async fn run(command: &ExportArgs) -> Result<()> {
    let to_output = command.output == Path::new("-");
    if to_output && command.format == FormatKind::Parquet && io::stdout().is_terminal() {
        bail!("Parquet is no text for a terminal; name a file by `--output`");
    }
    let tenant = command.tenant.find().await?;
    let store = Store::open(&tenant.database, CONNECTIONS).await.of_tenant(&tenant)?;
    let request =
        ExportRequest { form: command.form, is_form_alone: command.format.has_columns(), ..ExportRequest::default() };
    if let Some(form) = command.form {
        let found = store.find_form(form).await.of_tenant(&tenant)?;
        found.ok_or_else(|| anyhow!("tenant `{}` has no form for_{form}", tenant.slug))?;
    }
    let count = store.count_export(&request).await.map_err(store_error).of_tenant(&tenant)?;
    let bar = progress_bar(Some(count.rows), "{bar:40} {percent:>3}%  {pos} of {len} submissions  {eta} left");
    let subject = command.form.map_or_else(|| "submissions".to_owned(), |form| format!("for_{form}"));
    let entry = AuditEntry { action: "export", subject, details: json!({ "format": command.format.name() }) };
    store.audit(&actor(), entry, Timestamp::now()).await.of_tenant(&tenant)?;
    let (kind, excel, raw) = (command.format, command.excel, command.raw);
    let query = ExportQuery { kind, request, excel, raw, selection: Selection::ALL };
    let writing = async {
        let mut output = Output::create(&command.output)?;
        let mut parts =
            ExportParts::begin(&store, query, &tenant.timezone).await.map_err(begin_error).of_tenant(&tenant)?;
        write_all(&mut parts, &mut output, &bar).await.of_tenant(&tenant)?;
        output.complete()?;
        anyhow::Ok((parts.rows().unwrap_or_default(), parts.cursor().to_owned()))
    };
    // Dropping the export removes the file that it began.
    let mut terminated = signal(SignalKind::terminate()).context("can't wait for SIGTERM")?;
    let written = tokio::select! {
        written = writing => written,
        _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted; the export is not complete")),
        _ = terminated.recv() => Err(anyhow!("terminated; the export is not complete")),
    };
    bar.finish_and_clear();
    store.close().await;
    let (rows, cursor) = written?;
    let forms = command.form.map(|form| format!("?forms=for_{form}")).unwrap_or_default();
    let summary = format!("{rows} submissions; GET /submission/changes{forms} goes on with cursor={cursor}");
    if to_output {
        print_stderr(&summary);
        return Ok(());
    }
    print(&summary)
}

async fn write_all(parts: &mut ExportParts, output: &mut Output, bar: &ProgressBar) -> Result<()> {
    while let Some(part) = parts.next().await.map_err(unboxed)? {
        output.write(&part.bytes)?;
        bar.inc(part.read.len() as u64);
    }
    Ok(())
}

/// An error of the database as one, for its remedy.
fn unboxed(error: PartsError) -> anyhow::Error {
    match error.downcast::<StoreError>() {
        Ok(error) => (*error).into(),
        Err(other) => anyhow!(other),
    }
}

fn begin_error(error: BeginError) -> anyhow::Error {
    match error {
        BeginError::Export(error) => store_error(error),
        BeginError::Unreadable(error) => unboxed(error),
        BeginError::NoForm | BeginError::NoColumns => error.into(),
    }
}

fn store_error(error: ExportError) -> anyhow::Error {
    match error {
        ExportError::Store(error) => error.into(),
        ExportError::Lost(_) => error.into(),
    }
}

/// Where an export goes.
enum Output {
    Stdout,
    /// Something that exists and is no file, such as a pipe.
    Device(fs::File),
    /// A file that gets its name once it is complete.
    File(NamedTempFile, PathBuf),
}

impl Output {
    fn create(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let failed = || format!("can't write `{}`", path.display());
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Ok(Self::Device(fs::OpenOptions::new().write(true).open(path).with_context(failed)?));
        }
        // A link stays one.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let name = path.file_name().with_context(failed)?.to_string_lossy();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        // Whoever made the file that is replaced has decided who may read it.
        let rights = fs::metadata(&path).map_or(Permissions::from_mode(0o666), |found| found.permissions());
        let prefix = format!(".{name}.");
        let file = builder.prefix(&prefix).suffix(".incomplete").permissions(rights).tempfile_in(folder);
        Ok(Self::File(file.with_context(failed)?, path))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Stdout => {
                let mut output = io::stdout().lock();
                output.write_all(bytes).and_then(|()| output.flush()).map_err(|error| match error.kind() {
                    ErrorKind::BrokenPipe => anyhow!("standard output was closed; the export is not complete"),
                    _ => anyhow!(error).context("standard output can't be written"),
                })
            }
            Self::Device(file) => file.write_all(bytes).context("the output can't be written"),
            Self::File(file, path) => {
                file.write_all(bytes).with_context(|| format!("can't write `{}`", path.display()))
            }
        }
    }

    /// Gives a file its name.
    fn complete(self) -> Result<()> {
        let Self::File(file, path) = self else { return Ok(()) };
        let failed = || format!("can't write `{}`", path.display());
        file.as_file().sync_all().with_context(failed)?;
        file.persist(&path).with_context(failed)?;
        Ok(())
    }
}
