//! Blocks of code in documents, as a reader copies them.

use std::fs;
use std::path::{Path, PathBuf};

/// The only block of code of a document that is in a language and has a text.
pub(crate) fn block<'document>(document: &'document str, language: &str, text: &str) -> &'document str {
    let fence = format!("```{language}\n");
    let blocks = document.split(&fence).skip(1).filter_map(|rest| rest.split("```").next());
    let mut found = blocks.filter(|block| block.contains(text));
    let block = found.next().unwrap_or_else(|| panic!("no block in {language} has {text}"));
    assert_eq!(found.next(), None, "one block in {language} has {text}");
    block
}

/// Has Python programs below a folder find every host on this machine: the value of `PYTHONPATH`.
pub(crate) fn python_that_finds_every_host_here(folder: &Path) -> PathBuf {
    let modules = folder.join("modules");
    fs::create_dir_all(&modules).expect("the folder can be written");
    let lines = "import socket\nfound = socket.getaddrinfo\n\
        socket.getaddrinfo = lambda host, *rest, **options: found('127.0.0.1', *rest, **options)\n";
    fs::write(modules.join("sitecustomize.py"), lines).expect("the folder can be written");
    modules
}
