//! As much HTTP/1.1 (RFC 9112) as one page needs, for clients that are not to be trusted.
//!
//! One thread serves all connections, of which there are few at a time; each is answered once and closed, and has little
//! time and memory. So who asks slowly, endlessly or in crowds gets rid of nobody but himself. A library for servers was
//! there before: it kept a thread for each connection and each header that came, without end.

use super::runtime::run_on;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections at a time: many more than there are monitors. One more takes the place of the oldest.
const CONNECTIONS: usize = 32;
/// The longest head of a request. Those of browsers have about 1 KiB.
const MAX_HEAD: usize = 8 * 1024;
/// Bytes of a body, which nobody needs, that are taken so that the answer is not lost with the connection (RFC 9112, 9.6).
const MAX_REST: usize = 64 * 1024;
/// How long a client may take over its request, as long again over the answer, and again until it closes.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before the next try where no connection can be accepted, as without a file descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The page.
    Get,
    /// Its headers.
    Head,
    /// Anything else.
    Other,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code, with its words: `200 OK`.
    pub status: &'static str,
    /// The type of the text.
    pub content_type: &'static str,
    /// The text.
    pub text: String,
}

impl Answer {
    /// A line of plain text.
    pub fn line(status: &'static str, text: &str) -> Answer {
        Answer { status, content_type: "text/plain; charset=utf-8", text: format!("{text}\n") }
    }
}

/// A server that answers until it is dropped.
pub struct Serving {
    /// Closed to end it.
    alive: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Answers those who come to `listener` by what `page` says of a method and a path, in a thread that runs on `cores`. It is asked
    /// at most once in a round for each of them, however many want the same.
    ///
    /// # Errors
    /// A system that gives no thread.
    pub fn start(
        listener: TcpListener,
        cores: &[usize],
        page: impl FnMut(Method, &str) -> Answer + Send + 'static,
    ) -> io::Result<Serving> {
        Serving::with_patience(listener, cores, PATIENCE, page)
    }

    fn with_patience(
        listener: TcpListener,
        cores: &[usize],
        patience: Duration,
        mut page: impl FnMut(Method, &str) -> Answer + Send + 'static,
    ) -> io::Result<Serving> {
        listener.set_nonblocking(true)?;
        let cores = cores.to_vec();
        let (alive, ended) = UnixStream::pair()?;
        let thread = std::thread::Builder::new().name("spraywire-http".to_owned()).spawn(move || {
            run_on(&cores);
            let mut server = Server { listener, ended, connections: Vec::new(), patience };
            while server.round(&mut page) {}
        })?;
        Ok(Serving { alive: Some(alive), thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    listener: TcpListener,
    ended: UnixStream,
    /// The oldest first.
    connections: Vec<Connection>,
    patience: Duration,
}

impl Server {
    /// Waits until something happens, and does what it makes possible; false at the end.
    fn round(&mut self, page: &mut impl FnMut(Method, &str) -> Answer) -> bool {
        let first = self.connections.iter().map(|c| c.deadline).min();
        let mut fds =
            vec![PollFd::new(&self.ended, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(self.connections.iter().map(|c| PollFd::new(&c.stream, c.stage.awaits())));
        let timeout = first.map(|at| timespec(at.saturating_duration_since(Instant::now())));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
        let happened: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let [ended, comes, ready @ ..] = happened.as_slice() else { return false };
        if *ended {
            return false;
        }
        let mut said: Vec<(Method, String, Answer)> = Vec::new();
        let mut tell =
            |method, path: &str| match said.iter().find(|(m, p, _)| (*m, p.as_str()) == (method, path)) {
                Some((.., answer)) => answer.clone(),
                None => {
                    let answer = page(method, path);
                    said.push((method, path.to_owned(), answer.clone()));
                    answer
                }
            };
        let now = Instant::now();
        let mut ready = ready.iter();
        self.connections.retain_mut(|connection| {
            let lives = !ready.next().is_some_and(|r| *r) || connection.go_on(&mut tell);
            lives && now < connection.deadline
        });
        // All that are there, so that they are answered together.
        let _ = *comes && (0..CONNECTIONS).all(|_| self.accept());
        true
    }

    /// Takes a connection; false if there is none.
    fn accept(&mut self) -> bool {
        match self.listener.accept() {
            Ok((stream, _)) => {
                if stream.set_nonblocking(true).is_err() {
                    return true;
                }
                if self.connections.len() >= CONNECTIONS {
                    self.connections.remove(0);
                }
                self.connections.push(Connection {
                    stream,
                    stage: Stage::Request(Vec::new()),
                    deadline: Instant::now() + self.patience,
                    patience: self.patience,
                });
                true
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => false,
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => true,
            Err(_) => {
                std::thread::sleep(PAUSE);
                false
            }
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    // A bit later than the deadline, so that it is over then.
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()).min(998_999_999) + 1_000_000,
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

struct Connection {
    stream: TcpStream,
    stage: Stage,
    deadline: Instant,
    patience: Duration,
}

enum Stage {
    /// What came of the head so far.
    Request(Vec<u8>),
    /// The answer, and how much of it was taken.
    Answer(Vec<u8>, usize),
    /// The client is to close; so much more came from it.
    Rest(usize),
}

impl Stage {
    fn awaits(&self) -> PollFlags {
        match self {
            Stage::Answer(..) => PollFlags::OUT,
            Stage::Request(_) | Stage::Rest(_) => PollFlags::IN,
        }
    }
}

impl Connection {
    /// Reads or writes what it can without waiting; false if it is done.
    fn go_on(&mut self, page: &mut impl FnMut(Method, &str) -> Answer) -> bool {
        match &mut self.stage {
            Stage::Request(head) => match read_head(&mut self.stream, head) {
                Ok(None) => true,
                Ok(Some(request)) => {
                    let answer = match request {
                        Some((method, path)) => bytes(method, &page(method, &path)),
                        None if head.len() >= MAX_HEAD => {
                            let text = "the head of a request has at most 8 KiB here";
                            bytes(Method::Get, &Answer::line("431 Request Header Fields Too Large", text))
                        }
                        None => bytes(Method::Get, &Answer::line("400 Bad Request", "that is not HTTP/1")),
                    };
                    self.next(Stage::Answer(answer, 0));
                    self.go_on(page)
                }
                Err(e) => is_for_later(&e),
            },
            Stage::Answer(bytes, taken) => match self.stream.write(bytes.get(*taken..).unwrap_or_default()) {
                Ok(n) => {
                    *taken += n;
                    if *taken >= bytes.len() {
                        // Who is gone already needs no end of the stream.
                        let _ = self.stream.shutdown(Shutdown::Write);
                        self.next(Stage::Rest(0));
                    }
                    true
                }
                Err(e) => is_for_later(&e),
            },
            Stage::Rest(len) => match self.stream.read(&mut [0; 4096]) {
                Ok(0) => false,
                Ok(n) => {
                    *len += n;
                    *len < MAX_REST
                }
                Err(e) => is_for_later(&e),
            },
        }
    }

    fn next(&mut self, stage: Stage) {
        self.stage = stage;
        self.deadline = Instant::now() + self.patience;
    }
}

/// Reads some of a head; `Some` if it is all there or cannot become one, with the request if it is one.
fn read_head(stream: &mut impl Read, head: &mut Vec<u8>) -> io::Result<Option<Option<(Method, String)>>> {
    let mut more = [0; 2048];
    let room = more.len().min(MAX_HEAD - head.len());
    let n = stream.read(more.get_mut(..room).unwrap_or_default())?;
    if n == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    head.extend_from_slice(more.get(..n).unwrap_or_default());
    // Lines may end without a carriage return too (RFC 9112, 2.2).
    let ends = head.windows(2).any(|w| w == b"\n\n") || head.windows(4).any(|w| w == b"\r\n\r\n");
    let cannot = !head.iter().take(3).all(|b| b.is_ascii_uppercase());
    Ok((ends || cannot || head.len() >= MAX_HEAD).then(|| if ends { request(head) } else { None }))
}

/// Method and path of a request by its first line.
fn request(head: &[u8]) -> Option<(Method, String)> {
    let line = head.split(|b| *b == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?.trim_end_matches('\r');
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if !matches!(version, "HTTP/1.0" | "HTTP/1.1") || words.next().is_some() {
        return None;
    }
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        _ => Method::Other,
    };
    Some((method, target.split('?').next()?.to_owned()))
}

fn bytes(method: Method, answer: &Answer) -> Vec<u8> {
    let Answer { status, content_type, text } = answer;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n",
        text.len(),
        if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" }
    );
    let body = if method == Method::Head { "" } else { text };
    (head + body).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const PAGE: &str = "the page";

    fn serve(patience: Duration, text: &'static str) -> (Serving, SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (addr, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = asked.clone();
        let serving = Serving::with_patience(listener, &[], patience, move |method, path| {
            count.fetch_add(1, Ordering::Relaxed);
            match (method, path) {
                (Method::Other, _) => Answer::line("405 Method Not Allowed", "no"),
                (_, "/page") => Answer { status: "200 OK", content_type: "text/x", text: text.to_owned() },
                _ => Answer::line("404 Not Found", "no"),
            }
        });
        (serving.unwrap(), addr, asked)
    }

    fn connect(addr: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends all that is given and returns all that comes back, until the end of the stream.
    fn ask(addr: SocketAddr, request: &[u8]) -> String {
        let mut stream = connect(addr);
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    const GET: &[u8] = b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n";

    #[test]
    fn each_request_is_answered_once_by_its_kind() {
        let (_serving, addr, _) = serve(PATIENCE, PAGE);
        let head =
            "HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 8\r\nConnection: close\r\n\r\n";
        assert_eq!(ask(addr, GET), format!("{head}{PAGE}"));
        assert_eq!(ask(addr, b"HEAD /page?x=1 HTTP/1.1\r\n\r\n"), head);
        assert_eq!(ask(addr, b"GET /page HTTP/1.0\n\n"), format!("{head}{PAGE}"));
        let body =
            [b"POST /page HTTP/1.1\r\nContent-Length: 30000\r\n\r\n", [b'x'; 30_000].as_slice()].concat();
        for (request, status) in [
            (b"GET /other HTTP/1.1\r\n\r\n".as_slice(), "404"),
            (b"OPTIONS * HTTP/1.1\r\n\r\n", "405"),
            (&body, "405"),
            (b"GET /page HTTP/2.0\r\n\r\n", "400"),
            (b"GET /page\r\n\r\n", "400"),
            (b"GET /a b HTTP/1.1\r\n\r\n", "400"),
            (b"GET /page HTTP/1.1 x\r\n\r\n", "400"),
            (b"GET /\xff HTTP/1.1\r\n\r\n", "400"),
            (b"\0\0\0\0", "400"),
            (b"\r\n\r\n", "400"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
        ] {
            let answer = ask(addr, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
            assert_eq!(answer.contains("Allow: GET, HEAD\r\n"), status == "405", "{answer}");
        }
        // In pieces, and two at once: one answer.
        let mut stream = connect(addr);
        for piece in GET.chunks(5) {
            stream.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        stream.write_all(GET).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, format!("{head}{PAGE}"));
    }

    #[test]
    fn an_endless_head_is_cut_off() {
        let (_serving, addr, asked) = serve(PATIENCE, PAGE);
        for line in [[b'x'; 1024].as_slice(), b"x: y\r\n"] {
            let mut stream = connect(addr);
            stream.write_all(b"GET /page HTTP/1.1\r\n").unwrap();
            // Longer than what a head and a rest may have, so at last the connection is closed.
            let sent = (0..10_000_000 / line.len()).take_while(|_| stream.write_all(line).is_ok()).count();
            assert!(sent * line.len() < 9_000_000, "{sent} lines of {} were taken", line.len());
        }
        let head = [b"GET /page HTTP/1.1\r\na: ".as_slice(), &[b'x'; MAX_HEAD]].concat();
        assert!(ask(addr, &head).starts_with("HTTP/1.1 431 "));
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        assert!(ask(addr, GET).starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn crowds_and_slow_clients_keep_nobody_out() {
        let (_serving, addr, _) = serve(PATIENCE, PAGE);
        let mut crowd: Vec<TcpStream> = (0..150).map(|_| connect(addr)).collect();
        for stream in &mut crowd {
            // Some are gone already.
            let _ = stream.write_all(b"GET /pa");
        }
        let start = Instant::now();
        // Several that come together: those who were there before give way, and not one of these to the next.
        let mut honest: Vec<TcpStream> = (0..5).map(|_| connect(addr)).collect();
        std::thread::sleep(Duration::from_millis(100));
        for stream in &mut honest {
            stream.write_all(GET).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        }
        assert!(start.elapsed() < PATIENCE, "others had to be waited for: {:?}", start.elapsed());
        let lives = |stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            stream.peek(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
        };
        let living = crowd.iter().filter(|stream| lives(stream)).count();
        assert!(living <= CONNECTIONS, "{living} are kept");
    }

    #[test]
    fn who_does_not_read_or_write_has_an_end_and_holds_nobody_up() {
        let long: &str = "x".repeat(16 << 20).leak();
        let patience = Duration::from_secs(1);
        let (_serving, addr, _) = serve(patience, long);
        let mut silent = connect(addr);
        silent.write_all(GET).unwrap();
        let mut dribbles = connect(addr);
        // For ever, if that one were waited for: its reader does not come.
        assert!(ask(addr, b"HEAD /page HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
        // A byte now and then does not lengthen the time that a request has.
        let cut = (0..100).find(|_| {
            std::thread::sleep(patience / 10);
            dribbles.write_all(b"G").is_err()
        });
        assert!(cut.is_some_and(|at| at < 40), "{cut:?}");
        std::thread::sleep(2 * patience);
        let mut text = Vec::new();
        let end = silent.read_to_end(&mut text);
        assert!(end.is_err() || text.len() < long.len(), "the answer waited for its reader");
    }

    #[test]
    fn what_many_want_at_once_is_made_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (addr, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let mut all: Vec<TcpStream> = (0..20).map(|_| connect(addr)).collect();
        for stream in &mut all {
            stream.write_all(GET).unwrap();
        }
        let count = asked.clone();
        let serving = Serving::start(listener, &[], move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            // As an endpoint that is slow to answer.
            std::thread::sleep(Duration::from_millis(100));
            Answer::line("200 OK", PAGE)
        });
        for stream in &mut all {
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.ends_with("the page\n"), "{text}");
        }
        assert!(asked.load(Ordering::Relaxed) <= 4, "{asked:?}");
        let start = Instant::now();
        drop(serving);
        assert!(start.elapsed() < PATIENCE && TcpStream::connect(addr).is_err(), "it goes on");
    }
}
