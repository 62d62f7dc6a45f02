//! Running a test's own program again, as somebody else.

use std::env;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

/// Whether this process is root.
pub fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n")
}

/// A copy of this program where anybody can read it, removed when dropped: the build folder may be closed to others.
pub struct Copy(PathBuf);

impl Copy {
    /// `name` tells the tests of one machine apart.
    pub fn new(name: &str) -> Copy {
        let dir = env::temp_dir().join(format!("spw-{name}-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o755).create(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        let program = dir.join("test");
        fs::copy(env::current_exe().unwrap(), &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Copy(dir)
    }

    /// Runs one test of the copy without any privilege, whoever we are.
    pub fn unprivileged(&self, test: &str) -> Command {
        let program = self.0.join("test");
        let mut command = if is_root() {
            let mut command = Command::new("setpriv");
            // The number of "nobody" on every system.
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
            command.args(["--inh-caps=-all", "--bounding-set=-all"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.args([test, "--exact", "--nocapture"]).current_dir("/").env_remove("XDG_RUNTIME_DIR");
        command
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
