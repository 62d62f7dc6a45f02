//! Running the program as somebody else.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A copy of the program where another user can run it, gone with its folder.
pub struct Copied {
    _folder: tempfile::TempDir,
    /// Where it is.
    pub path: PathBuf,
}

/// The copy that the tests of this process share, made anew if none of them has one now.
///
/// A process that is being started still has every file open that was open here. If one of them is a copy being written, it
/// cannot be run until then ("Text file busy"). So whoever starts processes must hold a copy before: then none is written
/// meanwhile.
pub fn copied() -> Arc<Copied> {
    static SHARED: Mutex<Weak<Copied>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("spraywire");
        std::fs::copy(env!("CARGO_BIN_EXE_spraywire"), &path).unwrap();
        let copied = Arc::new(Copied { _folder: folder, path });
        *shared = Arc::downgrade(&copied);
        copied
    })
}
