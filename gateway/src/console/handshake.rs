//! The console's listener, with TLS where there is a certificate. A handshake keeps nobody else waiting.

use super::guard::Ends;
use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing is accepted after the process has run out of files.
const FULL: Duration = Duration::from_millis(100);

/// Where the console is, and what it answers.
pub struct Bound {
    /// Where people connect.
    pub listener: TcpListener,
    /// Its certificate and key, if it speaks TLS.
    pub tls: Option<TlsAcceptor>,
    /// What it answers.
    pub router: Router,
}

impl Bound {
    /// Answers until `ended`.
    pub async fn serve(self, ended: impl Future<Output = ()> + Send + 'static) {
        let service = self.router.into_make_service_with_connect_info::<Ends>();
        // Whoever breaks off is no error of this side.
        let _ = match self.tls {
            None => axum::serve(self.listener, service).with_graceful_shutdown(ended).await,
            Some(tls) => match Handshaken::of(self.listener, tls) {
                Ok(listener) => axum::serve(listener, service).with_graceful_shutdown(ended).await,
                Err(error) => Err(error),
            },
        };
    }
}

/// Connections whose handshake is done.
struct Handshaken {
    at: SocketAddr,
    ready: mpsc::Receiver<(TlsStream<TcpStream>, Ends)>,
}

impl Handshaken {
    fn of(listener: TcpListener, tls: TlsAcceptor) -> io::Result<Handshaken> {
        let at = listener.local_addr()?;
        let (done, ready) = mpsc::channel(1);
        tokio::spawn(accept(listener, tls, done));
        Ok(Handshaken { at, ready })
    }
}

/// Accepts connections until nobody takes them any more.
async fn accept(listener: TcpListener, tls: TlsAcceptor, done: mpsc::Sender<(TlsStream<TcpStream>, Ends)>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = done.closed() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // Who has gone again is no reason to wait.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(_) => {
                sleep(FULL).await;
                continue;
            }
        };
        let ends = Ends::of(&stream, peer);
        let (handshake, done) = (tls.accept(stream), done.clone());
        tokio::spawn(async move {
            if let Ok(Ok(stream)) = timeout(PATIENCE, handshake).await {
                let _ = done.send((stream, ends)).await;
            }
        });
    }
}

impl axum::serve::Listener for Handshaken {
    type Io = TlsStream<TcpStream>;
    type Addr = Ends;

    async fn accept(&mut self) -> (TlsStream<TcpStream>, Ends) {
        match self.ready.recv().await {
            Some(accepted) => accepted,
            // Nobody accepts any more: the service is about to end.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Ends> {
        Ok(Ends { peer: self.at, own: Some(self.at.ip()) })
    }
}

impl Connected<IncomingStream<'_, Handshaken>> for Ends {
    fn connect_info(stream: IncomingStream<'_, Handshaken>) -> Ends {
        *stream.remote_addr()
    }
}
