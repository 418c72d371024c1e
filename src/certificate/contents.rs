//! Guesses what a file contains that is not the expected PEM certificate or key.
//!
//! Runs only after parsing failed. Quotes nothing of a file but the label of a section, and only if it consists of
//! capital letters, digits and spaces: a key must not appear in a report.

/// What a file contains instead of the expected section.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contents {
    /// Nothing, or only whitespace.
    #[error("the file is empty")]
    Empty,
    /// Text in two-byte characters.
    #[error("the file is UTF-16 text")]
    Utf16,
    /// Binary ASN.1.
    #[error("the file is in DER form, which is binary")]
    Der,
    /// A PKCS #12 archive (`.p12`, `.pfx`).
    #[error("the file is a PKCS #12 archive")]
    Pkcs12,
    /// A PKCS #7 bundle (`.p7b`).
    #[error("the file is a PKCS #7 bundle")]
    Pkcs7,
    /// A private key where a certificate belongs.
    #[error("the file holds a private key")]
    PrivateKey,
    /// A certificate where a private key belongs.
    #[error("the file holds a certificate")]
    Certificate,
    /// A certificate signing request.
    #[error("the file holds a request for a certificate (CSR)")]
    Request,
    /// A public key.
    #[error("the file holds a public key")]
    PublicKey,
    /// A key in OpenSSH format.
    #[error("the file holds a key in the format of OpenSSH")]
    OpenSsh,
    /// A section of the expected kind that is not valid PEM.
    #[error("its section is cut off or damaged")]
    Damaged,
    /// Sections of another kind.
    #[error("the file holds a section `{0}`")]
    Section(String),
    /// Text without any section.
    #[error("the file has no line `-----BEGIN …-----`")]
    NoSection,
}

/// The labels of private keys that rustls reads.
const KEYS: [&str; 3] = ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"];

/// The content type of a PKCS #12 archive, 1.2.840.113549.1.7.1 or .2, without its last byte.
const PKCS_7: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07];

impl Contents {
    /// The contents of a file without a certificate.
    pub(super) fn in_place_of_certificate(bytes: &[u8]) -> Self {
        Self::of(bytes, &["CERTIFICATE"])
    }

    /// The contents of a file without a key.
    pub(super) fn in_place_of_key(bytes: &[u8]) -> Self {
        Self::of(bytes, &KEYS)
    }

    fn of(bytes: &[u8], wanted: &[&str]) -> Self {
        let labels = labels(bytes);
        let has = |label: &str| labels.iter().any(|known| known == label);
        match labels.first() {
            None if bytes.trim_ascii().is_empty() => Self::Empty,
            None if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) => Self::Utf16,
            None if bytes.starts_with(&[0x30]) && !bytes.is_ascii() => {
                let head = &bytes[..bytes.len().min(64)];
                if head.windows(PKCS_7.len()).any(|window| window == PKCS_7) { Self::Pkcs12 } else { Self::Der }
            }
            None => Self::NoSection,
            Some(_) if wanted.iter().any(|label| has(label)) => Self::Damaged,
            Some(_) if has("OPENSSH PRIVATE KEY") => Self::OpenSsh,
            Some(_) if labels.iter().any(|label| label.ends_with("CERTIFICATE REQUEST")) => Self::Request,
            Some(_) if has("CERTIFICATE") => Self::Certificate,
            Some(_) if labels.iter().any(|label| label.ends_with("PRIVATE KEY")) => Self::PrivateKey,
            Some(_) if labels.iter().any(|label| label.ends_with("PUBLIC KEY")) => Self::PublicKey,
            Some(_) if has("PKCS7") => Self::Pkcs7,
            Some(label) => Self::Section(label.clone()),
        }
    }

    /// How to get the expected file; `tool` is the OpenSSL command, `x509` or `pkey`.
    pub(super) fn remedy(&self, tool: &str) -> String {
        match self {
            Self::Empty | Self::NoSection => "write the PEM text there".to_owned(),
            Self::Utf16 => "save it as UTF-8".to_owned(),
            Self::Der => format!("convert it: openssl {tool} -inform der -in FILE -out NEW"),
            Self::Pkcs12 => {
                "convert it: openssl pkcs12 -in FILE -nodes -out NEW; NEW then is both `certificate` and `private_key`"
                    .to_owned()
            }
            Self::Pkcs7 => "convert it: openssl pkcs7 -print_certs -in FILE -out NEW".to_owned(),
            Self::PrivateKey | Self::Certificate => {
                "check whether `certificate` and `private_key` are swapped".to_owned()
            }
            Self::Request => "name the certificate that the authority issued for it".to_owned(),
            Self::PublicKey => "name the private key that belongs to it".to_owned(),
            Self::OpenSsh => "convert it: ssh-keygen -p -m PEM -N '' -f FILE".to_owned(),
            Self::Damaged => "copy the file again, whole".to_owned(),
            Self::Section(_) => format!("convert it: openssl {tool} -in FILE -out NEW"),
        }
    }
}

/// Whether a file without a readable key holds one that a passphrase protects: PKCS #8, or the older way of OpenSSL.
pub(super) fn is_encrypted_key(bytes: &[u8]) -> bool {
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    has("-----BEGIN ENCRYPTED PRIVATE KEY-----") || (has("PRIVATE KEY-----") && has("\nProc-Type: 4,ENCRYPTED"))
}

/// The well-formed labels of all sections.
fn labels(bytes: &[u8]) -> Vec<String> {
    let plain = |label: &str| label.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b' ');
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line.trim_ascii()).ok());
    let labels = lines.filter_map(|line| line.strip_prefix("-----BEGIN ")?.strip_suffix("-----"));
    labels.filter(|label| label.len() <= 40 && plain(label)).map(str::to_owned).collect()
}
