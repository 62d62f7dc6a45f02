//! Commands of this program on DPDK's telemetry socket.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

/// The numbers of an answer, by name: letters, digits, `_` and `/`. DPDK takes up to 256 of them.
pub type Numbers = Vec<(String, u64)>;

type Handler = Arc<dyn Fn(&str) -> Option<Numbers> + Send + Sync>;

/// The commands and what answers them; they stay for the life of the process, as they do in DPDK.
static COMMANDS: Mutex<Vec<(CString, Handler)>> = Mutex::new(Vec::new());

/// DPDK refused a telemetry command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("DPDK refused the telemetry command {command} (error {errno})")]
pub struct TelemetryError {
    /// The command.
    pub command: String,
    /// The error number.
    pub errno: i32,
}

/// Adds the command `name` (`/program/what`) to DPDK's telemetry socket, if the environment has one: see
/// [`crate::EalConfig::telemetry`]. `handler` gets what stood behind the comma and answers with numbers, on a thread of DPDK's.
/// Added again, a command gets the new handler.
///
/// # Errors
/// A name that does not begin with `/`, or more commands than DPDK has room for.
pub fn telemetry_command(
    name: &str,
    help: &str,
    handler: impl Fn(&str) -> Option<Numbers> + Send + Sync + 'static,
) -> Result<(), TelemetryError> {
    let refused = |errno: i32| TelemetryError { command: name.to_owned(), errno };
    let (Ok(text), Ok(help)) = (CString::new(name), CString::new(help)) else {
        return Err(refused(libc::EINVAL));
    };
    let mut commands = COMMANDS.lock().unwrap_or_else(PoisonError::into_inner);
    let handler: Handler = Arc::new(handler);
    if let Some((_, old)) = commands.iter_mut().find(|(known, _)| *known == text) {
        *old = handler;
        return Ok(());
    }
    // SAFETY: both strings are zero-terminated, and DPDK copies them; `answer` lives as long as the process.
    let ret = unsafe { dpdk_sys::rte_telemetry_register_cmd(text.as_ptr(), Some(answer), help.as_ptr()) };
    if ret != 0 {
        return Err(refused(-ret));
    }
    commands.push((text, handler));
    Ok(())
}

/// Called by DPDK for each of our commands.
unsafe extern "C" fn answer(
    command: *const c_char,
    parameters: *const c_char,
    data: *mut dpdk_sys::rte_tel_data,
) -> c_int {
    if command.is_null() || data.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: DPDK gives zero-terminated strings that live through the call; the parameters may be absent.
    let (command, parameters) = unsafe {
        let parameters = if parameters.is_null() { c"" } else { CStr::from_ptr(parameters) };
        (CStr::from_ptr(command), parameters.to_string_lossy())
    };
    let commands = COMMANDS.lock().unwrap_or_else(PoisonError::into_inner);
    let handler = commands.iter().find(|(known, _)| known.as_c_str() == command).map(|(_, h)| h.clone());
    // It may take a while, and another thread may add commands meanwhile.
    drop(commands);
    let Some(numbers) = handler.and_then(|handler| handler(&parameters)) else { return -libc::EINVAL };
    // SAFETY: `data` is DPDK's own, fresh for this answer.
    let mut ret = unsafe { dpdk_sys::rte_tel_data_start_dict(data) };
    for (name, value) in numbers.iter().take(dpdk_sys::RTE_TEL_MAX_DICT_ENTRIES as usize) {
        let Ok(name) = CString::new(name.as_str()) else { continue };
        if ret == 0 {
            // SAFETY: as above; the name is copied.
            ret = unsafe { dpdk_sys::spw_telemetry_add(data, name.as_ptr(), *value) };
        }
    }
    ret
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_path_is_refused() {
        let error = telemetry_command("nothing", "help", |_| None).unwrap_err();
        assert_eq!((error.command.as_str(), error.errno), ("nothing", libc::EINVAL));
        assert!(telemetry_command("/a\0b", "help", |_| None).is_err());
    }
}
