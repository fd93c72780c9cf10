//! Whose process is at the other end of a connection inside this host.
//!
//! - IO-4 (own-user-only): a connection counts as this user's only if the kernel says that its other end is open in a
//!   process, and that it is this user's. Of an end that nobody has open any more the kernel says that it is root's.
//! - IO-5 (one-question): the kernel is asked for one connection, not for the list of all. So an answer takes the same
//!   time however many there are.
//!
//! - IO-6 (bounded): where a kernel or a sandbox has no sock_diag(7), and IO-5 doesn't hold, no more than
//!   [`MAX_LIST_BYTES`] of the list of all are read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::AsFd;

use phalanx_types::{Deadline, Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, getpeername, getsockname, netlink, recv,
    send, socket_with,
};

/// An end of a connection, as the kernel tells of it.
#[derive(Debug, PartialEq, Eq)]
struct End {
    state: u8,
    user: u32,
    /// 0 if no process has it open.
    inode: u32,
}

/// The states of an end that is connected, and that may have said everything or heard everything: ESTABLISHED,
/// FIN_WAIT1, FIN_WAIT2 and CLOSE_WAIT (`net/tcp_states.h`).
const CONNECTED: [u8; 4] = [1, 4, 5, 8];

impl End {
    fn is_of(&self, user: u32) -> bool {
        CONNECTED.contains(&self.state) && self.inode != 0 && self.user == user
    }
}

/// Checks that the peer of `connection`, both at IPv4 addresses of this host, is a process of this process's user. A
/// peer that has closed its end is nobody's.
///
/// # Errors
/// [`ErrorKind::Refused`] where it is not, [`ErrorKind::Io`] where the kernel doesn't tell.
pub fn check_own_user(connection: impl AsFd) -> Result<()> {
    match is_own_user(connection) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(Error::new(ErrorKind::Refused, "it belongs to another user, or to a process that has ended"))
        }
        Err(error) => Err(Error::io("find out whose it is", &error)),
    }
}

/// Checks that [`check_own_user`] works here, by a connection of this process's own.
///
/// # Errors
/// [`ErrorKind::State`] where a sandbox hides whose connections are; [`ErrorKind::Io`] without a loopback address.
pub fn check_owners_are_told() -> Result<()> {
    let failed = |error: io::Error| Error::io("connect to 127.0.0.1", &error);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let open = crate::connect(listener.local_addr().map_err(failed)?, Deadline::never())?;
    let accepted = loop {
        let (accepted, peer) = listener.accept().map_err(failed)?;
        // Somebody else may have found the port meanwhile.
        if peer == open.local_addr().map_err(failed)? {
            break accepted;
        }
    };
    check_own_user(accepted).map_err(|why| {
        let text = "the system doesn't say which user a connection belongs to, so the encrypted store can't serve any";
        Error::new(ErrorKind::State, format!("{text}: {why}"))
    })
}

fn is_own_user(connection: impl AsFd) -> io::Result<bool> {
    let Some(peer) = peer(&connection)? else { return Ok(false) };
    let Some(local) = v4(getsockname(&connection)?.try_into()?) else { return Ok(false) };
    let end = match asked(peer, local) {
        Ok(Some(end)) => Some(end),
        // There is no such end, or nothing to ask for it: a missing part of the kernel is told in both ways.
        Ok(None) | Err(_) => listed(peer, local)?,
    };
    let is_own = end.is_some_and(|end| end.is_of(rustix::process::geteuid().as_raw()));
    // While this end is connected nobody else's can have taken the peer's port.
    Ok(is_own && self::peer(&connection)?.is_some())
}

/// The address of the other end, if it is IPv4 and the connection isn't over.
fn peer(connection: &impl AsFd) -> io::Result<Option<SocketAddrV4>> {
    match getpeername(connection) {
        Ok(Some(address)) => Ok(v4(address.try_into()?)),
        Ok(None) | Err(Errno::NOTCONN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn v4(address: SocketAddr) -> Option<SocketAddrV4> {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, address.port())),
        IpAddr::V6(_) => None,
    }
}

/// What sock_diag(7) says of the socket at `local` that is connected to `remote`. It finds one of IPv6's, too, that has
/// connected to an IPv4 address, as torch's client makes one.
fn asked(local: SocketAddrV4, remote: SocketAddrV4) -> io::Result<Option<End>> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const NLMSG_ERROR: u16 = 2;
    const AF_INET: u8 = 2;
    const IPPROTO_TCP: u8 = 6;
    const REQUEST_BYTES: u32 = 72;

    let mut request = Vec::with_capacity(REQUEST_BYTES as usize);
    // A nlmsghdr, with its sequence and port 0.
    request.extend(REQUEST_BYTES.to_ne_bytes());
    request.extend([SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST].map(u16::to_ne_bytes).concat());
    request.extend([0; 8]);
    // An inet_diag_req_v2, for an end in any state, on any interface, with any cookie.
    request.extend([AF_INET, IPPROTO_TCP, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend([local.port(), remote.port()].map(u16::to_be_bytes).concat());
    for address in [local, remote] {
        request.extend(address.ip().octets());
        request.extend([0; 12]);
    }
    request.extend([0, u32::MAX, u32::MAX].map(u32::to_ne_bytes).concat());

    let kernel =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    send(&kernel, &request, SendFlags::empty())?;
    let mut answer = [0; 512];
    // The kernel has answered when `send` returns.
    let (count, _) = recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
    let answer = &answer[..count.min(answer.len())];
    let number = |at: usize| answer.get(at..at + 4)?.first_chunk().copied().map(u32::from_ne_bytes);
    match answer.get(4..6) {
        Some(kind) if kind == SOCK_DIAG_BY_FAMILY.to_ne_bytes() => {
            // An inet_diag_msg behind the header; a listener at `local` is an answer, too, with a state of its own.
            let end = || Some(End { state: *answer.get(17)?, user: number(80)?, inode: number(84)? });
            end().map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
        }
        Some(kind) if kind == NLMSG_ERROR.to_ne_bytes() => Ok(None),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// How often the list is read: a connection that opens or closes meanwhile may hide another one from a reader.
const LOOKS: usize = 3;

/// How much of a list is read: some 400,000 connections.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// The lists of proc_pid_net(5). A socket of IPv6's that has connected to an IPv4 address is in the second.
const LISTS: [(&str, &str); 2] = [("/proc/net/tcp", ""), ("/proc/net/tcp6", MAPPED)];

/// What the second list has before an IPv4 address: `::ffff:`, as three numbers of this machine.
const MAPPED: &str =
    if cfg!(target_endian = "little") { "0000000000000000FFFF0000" } else { "00000000000000000000FFFF" };

/// The same by the lists of all connections.
fn listed(local: SocketAddrV4, remote: SocketAddrV4) -> io::Result<Option<End>> {
    // The bytes of the address as a number of this machine, and the port.
    let [local, remote] = [local, remote]
        .map(|end| format!("{:08X}:{:04X}", u32::from_ne_bytes(end.ip().octets()), end.port()));
    for _ in 0..LOOKS {
        for (list, before) in LISTS {
            let sockets = match File::open(list) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // a system without IPv6
                sockets => sockets?.take(MAX_LIST_BYTES),
            };
            let (local, remote) = (format!("{before}{local}"), format!("{before}{remote}"));
            if let Some(end) = end_in(sockets, &local, &remote)? {
                return Ok(Some(end));
            }
        }
    }
    Ok(None)
}

/// The end at `local` that is connected to `remote`, in one of the lists, of which a line at a time is in memory. That
/// it isn't in there is not known if the list is longer than what may be read.
fn end_in(list: io::Take<impl Read>, local: &str, remote: &str) -> io::Result<Option<End>> {
    let (mut list, mut line) = (BufReader::new(list), String::new());
    while list.read_line(&mut line)? > 0 {
        if let Some(end) = end_of(&line, local, remote) {
            return Ok(Some(end));
        }
        line.clear();
    }
    match list.get_ref().limit() {
        0 => Err(io::Error::new(io::ErrorKind::FileTooLarge, "the list of all connections is too long")),
        _ => Ok(None),
    }
}

/// What a line says of that end, if it is of it.
fn end_of(line: &str, local: &str, remote: &str) -> Option<End> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    // Besides these: the line's number, the queues, the timer, the retransmits, and a time-out.
    let [_, from, to, state, _, _, _, user, _, inode, ..] = fields[..] else { return None };
    let end = || {
        let state = u8::from_str_radix(state, 16).ok()?;
        Some(End { state, user: user.parse().ok()?, inode: inode.parse().ok()? })
    };
    (from == local && to == remote).then(end).flatten()
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpStream};
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::time::Duration;

    use rustix::net::sockopt::set_socket_linger;

    use super::*;

    const NOBODY: u32 = 65534;

    /// A connection of two sockets of this process: the client's end, and the one that was accepted.
    fn connected(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }

    /// The peer of an accepted connection as the kernel tells of it, and as its list does.
    fn told(accepted: &TcpStream) -> [Option<End>; 2] {
        let of = |address: io::Result<SocketAddr>| v4(address.unwrap()).unwrap();
        let (peer, local) = (of(accepted.peer_addr()), of(accepted.local_addr()));
        [asked(peer, local).unwrap(), listed(peer, local).unwrap()]
    }

    fn soon(what: &str, is_so: impl Fn() -> bool) {
        let patience = Deadline::after(Duration::from_secs(10));
        while !is_so() {
            assert!(!patience.passed(), "{what}");
            crate::pause(Duration::from_millis(10), patience);
        }
    }

    #[test]
    fn a_connection_of_this_process_is_its_users_for_as_long_as_its_end_is_open() {
        let listener = listener();
        let (client, accepted) = connected(&listener);
        assert!(is_own_user(&accepted).unwrap(), "IO-4");
        client.shutdown(Shutdown::Write).unwrap();
        assert!(is_own_user(&accepted).unwrap(), "IO-4: it still hears");
        drop(client);
        // A process that another test forks has it, too, until it runs its program.
        soon("IO-4: nobody has it open", || !is_own_user(&accepted).unwrap());
        let (client, accepted) = connected(&listener);
        set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        soon("IO-4: the connection is over", || !is_own_user(&accepted).unwrap());
        assert!(!is_own_user(&listener).unwrap(), "IO-4: nobody is connected");
    }

    #[test]
    fn a_connection_of_another_user_is_not_its_own_even_when_he_has_gone() {
        if !rustix::process::geteuid().is_root() {
            return; // Nobody else can be made a user.
        }
        let listener = listener();
        let port = listener.local_addr().unwrap().port();
        for leaves in [false, true] {
            let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf x >&3");
            let script = if leaves { script } else { format!("{script}; read -t 20 -u 3 a") };
            let mut bash = Command::new("bash");
            let mut bash = bash.args(["-c", &script]).uid(NOBODY).spawn().unwrap();
            let accepted = listener.accept().unwrap().0;
            let refused = check_own_user(&accepted).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Refused, "IO-4: {refused}");
            if leaves {
                bash.wait().unwrap();
                // What the kernel says of him is soon that he is root.
                soon("what is left is root's", || {
                    assert!(!is_own_user(&accepted).unwrap(), "IO-4");
                    told(&accepted).iter().flatten().any(|end| end.state == 5 && end.user == 0)
                });
            }
            assert!(!is_own_user(&accepted).unwrap(), "IO-4");
            drop(accepted);
            bash.wait().unwrap();
        }
    }

    #[test]
    fn this_machine_tells_whose_connections_are() {
        check_owners_are_told().unwrap();
    }

    #[test]
    fn a_connection_by_a_socket_of_ipv6s_is_its_users_too() {
        let listener = listener();
        let port = listener.local_addr().unwrap().port();
        let Ok(client) = TcpStream::connect(format!("[::ffff:127.0.0.1]:{port}")) else { return }; // no IPv6 here
        assert!(is_own_user(listener.accept().unwrap().0).unwrap(), "IO-4");
        drop(client);
    }

    #[test]
    fn one_question_is_answered_as_by_the_list_of_all() {
        let (client, accepted) = connected(&listener());
        let [one, of_all] = told(&accepted);
        assert!(one.is_some(), "IO-5");
        assert_eq!(one, of_all);
        drop(client);
        let nobody: SocketAddrV4 = "127.0.0.1:1".parse().unwrap();
        assert_eq!((asked(nobody, nobody).unwrap(), listed(nobody, nobody).unwrap()), (None, None));
    }

    #[test]
    fn an_end_that_nobody_has_open_is_not_roots() {
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 11 1\n\
             1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 02:000A7E0C 00000000 65534        0 12 2\n\
             2: 0100007F:C351 0100007F:1F90 06 00000000:00000000 03:00000E10 00000000     0        0 0 3\n\
             3: 0100007F:C352 0100007F:1F90 05 00000000:00000000 00:00000000 00000000     0        0 0 1\n";
        let said = |from: &str, to: &str| end_in(list.as_bytes().take(MAX_LIST_BYTES), from, to).unwrap();
        let of = |port: &str| said(&format!("0100007F:{port}"), "0100007F:1F90");
        assert_eq!(of("C350"), Some(End { state: 1, user: 65534, inode: 12 }));
        assert!(of("C350").unwrap().is_of(65534) && !of("C350").unwrap().is_of(0), "IO-4");
        assert!(said("0100007F:1F90", "0100007F:C350").unwrap().is_of(0));
        assert!(!of("C351").unwrap().is_of(0), "IO-4: TIME_WAIT");
        assert!(!of("C352").unwrap().is_of(0), "IO-4: FIN_WAIT2, and closed");
        // Somebody who begins to connect from a port that was another's.
        assert!(!End { state: 2, user: 0, inode: 9 }.is_of(0), "IO-4: SYN_SENT");
        assert_eq!(of("C353"), None);
    }

    #[test]
    fn a_list_of_too_many_is_read_to_the_bound_and_says_so() {
        let (from, to) = ("0100007F:C350", "0100007F:1F90");
        let mine = format!("0: {from} {to} 01 0:0 00:0 0 7 0 12 2\n");
        let others = mine.replace("C350", "C351").repeat(100);
        let list = others.clone() + &mine;
        let within = |most: u64| end_in(list.as_bytes().chain(io::repeat(b'x')).take(most), from, to);
        let (before, all) = (others.len() as u64, list.len() as u64);
        assert_eq!(within(all).unwrap().unwrap().user, 7);
        assert_eq!(within(before).unwrap_err().kind(), io::ErrorKind::FileTooLarge, "IO-6");
        assert_eq!(end_in(others.as_bytes().take(before + 1), from, to).unwrap(), None);
    }
}
