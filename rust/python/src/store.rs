//! The c10d store by itself, for tests and benchmarks against torch's own clients.

use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

use phalanx_job::collect_logs;
use phalanx_types::{Error, Network};
use pyo3::prelude::*;

use crate::errors::detached;
use crate::logs;

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct StoreServer {
    server: Mutex<Option<phalanx_rendezvous::store::StoreServer>>,
    port: u16,
}

#[pymethods]
impl StoreServer {
    #[new]
    #[pyo3(signature = (host = "127.0.0.1", port = 0, allowed = None))]
    fn new(py: Python<'_>, host: &str, port: u16, allowed: Option<Vec<String>>) -> PyResult<StoreServer> {
        collect_logs();
        detached(py, || {
            let allowed = allowed
                .map(|all| all.iter().map(|text| text.parse()).collect::<Result<Vec<Network>, _>>())
                .transpose()?;
            let listener = TcpListener::bind((host, port))
                .map_err(|e| Error::io(format!("bind the store to {host}:{port}"), &e))?;
            let server = phalanx_rendezvous::store::StoreServer::start(listener, allowed)?;
            let port = server.address().port();
            Ok(StoreServer { server: Mutex::new(Some(server)), port })
        })
    }

    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            drop(self.server.lock().unwrap_or_else(PoisonError::into_inner).take());
            Ok(())
        })?;
        logs::hand_over(py)
    }
}
