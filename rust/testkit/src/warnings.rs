//! What this process says in its log. A process has one logger, so a program of tests that asks for it has this one.

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keeps;

impl log::Log for Keeps {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            kept().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// All that this process has warned of since the first call, in order; who holds it stops who warns.
pub fn warnings() -> MutexGuard<'static, Vec<String>> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Err(error) = log::set_logger(&Keeps) {
            panic!("this process has another logger: {error}");
        }
        log::set_max_level(log::LevelFilter::Warn);
    });
    kept()
}

/// A test that failed while it held them has failed alone.
fn kept() -> MutexGuard<'static, Vec<String>> {
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner)
}
