//! What all ranks said while their group comes together ([`super::exchange`]), as it goes from rank to rank of a host:
//! who has it from the store hands it to those that it leads.
//!
//! - GROUP-76 (bounded): what one rank hands to another is no longer than what the store may have.

use std::os::unix::net::UnixStream;

use phalanx_types::{Deadline, Error, ErrorKind, Result};

use crate::door::timed::Timed;

const DOING: &str = "hand on what all ranks said";
/// Bytes of a table: no value of a job's store is longer.
const MOST_BYTES: u32 = 8 << 20;

/// The tables, as text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tables {
    /// How each rank is reached.
    pub(crate) cards: Vec<u8>,
    /// With what lowest rank each shares memory.
    pub(crate) leaders: Vec<u8>,
}

impl Tables {
    pub(crate) fn send(&self, stream: &mut UnixStream, deadline: Deadline) -> Result<()> {
        for table in [&self.cards, &self.leaders] {
            stream.send(&(table.len() as u32).to_le_bytes(), deadline, DOING)?;
            stream.send(table, deadline, DOING)?;
        }
        Ok(())
    }

    /// What [`Tables::send`] sent.
    pub(crate) fn receive(stream: &mut UnixStream, deadline: Deadline) -> Result<Tables> {
        let (cards, leaders) = (receive(stream, deadline)?, receive(stream, deadline)?);
        Ok(Tables { cards, leaders })
    }
}

fn receive(stream: &mut UnixStream, deadline: Deadline) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.receive(&mut length, deadline, DOING)?;
    let length = u32::from_le_bytes(length);
    if length > MOST_BYTES {
        let text = format!("a table of {length} bytes is too long");
        return Err(Error::new(ErrorKind::Protocol, text));
    }
    let mut table = vec![0; length as usize];
    stream.receive(&mut table, deadline, DOING)?;
    Ok(table)
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(30))
    }

    #[test]
    fn tables_arrive_as_they_were_sent_also_where_they_fit_no_buffer() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let (cards, leaders) = (vec![7; MOST_BYTES as usize], Vec::new());
        let tables = Tables { cards, leaders };
        std::thread::scope(|scope| {
            scope.spawn(|| tables.send(&mut here, soon()).unwrap());
            assert_eq!(Tables::receive(&mut there, soon()).unwrap(), tables);
        });
    }

    #[test]
    fn a_table_that_is_too_long_is_not_waited_for() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        here.write_all(&(MOST_BYTES + 1).to_le_bytes()).unwrap();
        let error = Tables::receive(&mut there, soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "GROUP-76: {error}");
    }
}
