//! Connections, and commands and replies as bytes.

use mio::net::TcpStream;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream as BlockingStream};

/// Opens non-blocking connections to a local server.
pub fn connect(port: u16, count: usize) -> io::Result<Vec<TcpStream>> {
    (0..count)
        .map(|_| {
            let stream = BlockingStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(TcpStream::from_std(stream))
        })
        .collect()
}

/// Encodes a command in the server's protocol.
pub fn pack(words: &[&str]) -> Vec<u8> {
    let mut packed = format!("*{}\r\n", words.len());
    for word in words {
        write!(packed, "${}\r\n{word}\r\n", word.len()).expect("writing to a string cannot fail");
    }
    packed.into_bytes()
}

/// Appends all received bytes.
pub fn receive(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 16384];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server hung up")),
            Ok(count) => {
                received.extend_from_slice(&buffer[..count]);
                if count < buffer.len() {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the number of complete lines. A line that begins with a dash is returned as an error.
pub fn lines(received: &[u8]) -> io::Result<usize> {
    let mut count = 0;
    for line in received.split_inclusive(|&byte| byte == b'\n') {
        if line.starts_with(b"-") {
            return Err(io::Error::other(String::from_utf8_lossy(line).into_owned()));
        }
        count += usize::from(line.ends_with(b"\n"));
    }
    Ok(count)
}
