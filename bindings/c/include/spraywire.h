// The services of Spraywire over any port that DPDK drives: raw UD, RoCEv2 datagrams, and reliable messages of any size over them.
//
// Made by cbindgen from bindings/c/src/lib.rs; a test compares the two.
//
// Functions return 0 (or a count), or a negative number of `spw_error`; spw_last_error() then says what is wrong and
// what to do about it. An endpoint is used by one thread at a time, and packets move only within spw_poll() and
// spw_poll_messages().

#ifndef SPRAYWIRE_H
#define SPRAYWIRE_H

#include <stddef.h>
#include <stdint.h>

// What went wrong; functions return the negative of these.
typedef enum spw_error {
  // An argument that cannot be.
  SPW_ERROR_ARGUMENT = 1,
  // The port cannot be opened.
  SPW_ERROR_OPEN = 2,
  // A queue is full, the peer's MAC address is not known yet, or the session is not open yet: poll and try again.
  SPW_ERROR_AGAIN = 3,
  // Nobody answers for the address.
  SPW_ERROR_TIMED_OUT = 4,
  // No such queue pair, address handle or session (any more), or one in the error state.
  SPW_ERROR_STATE = 5,
  // An error of Spraywire itself.
  SPW_ERROR_INTERNAL = 6,
} spw_error;

// An open port with its queue pairs.
typedef struct spw_endpoint_t spw_endpoint_t;

// How an endpoint is opened. Zero and NULL leave the defaults.
typedef struct spw_config {
  // The port in DPDK's syntax, such as "net_af_packet0,iface=veth0".
  const char *port;
  // Its addresses, with commas in between: "192.0.2.1/24,2001:db8::1".
  const char *addresses;
  // MTU of the port in bytes.
  uint16_t mtu;
  // Seconds that a memif client waits for its server; 10 if zero.
  uint32_t wait_seconds;
  // Queue pairs' first number; 0x10000 if zero.
  uint32_t first_qpn;
  // UDP source ports to send from, as of --entropy-range: "49152-65535", the default. Each queue pair, and each path of a
  // reliable session, has one of them.
  const char *entropy_range;
} spw_config;

// A send: everything but its bytes.
typedef struct spw_send {
  // Your own number, given back in the completion.
  uint64_t wr_id;
  // The queue pair to send from.
  uint32_t qpn;
  // The address handle to send by.
  uint64_t ah;
  // The peer's queue pair.
  uint32_t dst_qpn;
  // The Q_Key to send.
  uint32_t qkey;
  // An immediate in host byte order, if `has_imm` is not 0.
  uint32_t imm;
  // Whether there is an immediate.
  uint8_t has_imm;
  // Whether the send completes with an entry for spw_poll().
  uint8_t signaled;
} spw_send;

// A finished work request.
typedef struct spw_completion {
  // Your own number.
  uint64_t wr_id;
  // The local queue pair.
  uint32_t qpn;
  // 0: done. 1: the receive buffer was too short. 2: flushed. 3: it could not be done. After 1, the queue pair is in error.
  uint32_t status;
  // Receives: bytes in the buffer, the 40 of the GRH area included. Sends: bytes sent.
  uint32_t byte_len;
  // Receives: the sender's queue pair.
  uint32_t src_qpn;
  // Receives: the immediate, if `has_imm` is not 0.
  uint32_t imm;
  // Whether there is an immediate.
  uint8_t has_imm;
  // Whether it is a receive.
  uint8_t is_receive;
} spw_completion;

// How reliable messages are begun. Zero leaves the defaults.
typedef struct spw_reliable_config {
  // Number of its queue pair; the next free one if zero.
  uint32_t qpn;
  // The Q_Key of both sides; 0x11111111 if zero.
  uint32_t qkey;
  // Sessions at a time at most; 16,384 if zero.
  uint32_t sessions;
  // Whether sessions that others begin are accepted.
  uint8_t listen;
  // Paths (UDP source ports) of a session, 1 to 32; 1 if zero.
  uint8_t paths;
  // Congestion control: 0 is a fixed window, 1 follows delay and ECN.
  uint8_t congestion;
  // Bytes of a session in flight with a fixed window; 512 KiB if zero.
  uint64_t window;
} spw_reliable_config;

// A reliable message to send or to receive: everything but its bytes. The n-th send of a session, communicator and tag goes to
// the n-th receive of the same at the other side. Members that you do not set must be zero.
typedef struct spw_message {
  // Your own number, given back when it is done.
  uint64_t wr_id;
  // The session.
  uint64_t session;
  // Your tag.
  uint64_t tag;
  // Your communicator.
  uint32_t communicator;
  // Of a send, what kind of traffic it is: 0 says nothing, and has no parity; 1 gradients of data-parallel training, 2 activations of
  // pipeline-parallel training, 3 control. Those are protected over long round trips, as losses ask for.
  uint8_t traffic_class;
  // Of a send with a class, its priority, 0 to 15. Gradients are protected from 8 on.
  uint8_t priority;
  // Of a send with a class, its place in the pipeline: the earlier, the stronger it is protected.
  uint8_t stage;
  // Of a send with a class, the loss that you tolerate, in 1/256. All of it arrives all the same.
  uint8_t tolerance;
} spw_message;

// A reliable message that is done with.
typedef struct spw_done {
  // Your own number.
  uint64_t wr_id;
  // The session.
  uint64_t session;
  // Your tag.
  uint64_t tag;
  // Bytes of the message.
  uint64_t len;
  // Your communicator.
  uint32_t communicator;
  // Of a send, segments that were sent again.
  uint32_t retransmitted;
  // 0: every byte is in its place. 1: longer than the receive posted for it. 2: the session went down.
  uint32_t status;
  // Whether it is a receive.
  uint8_t is_receive;
} spw_done;

// What happened to a session.
typedef struct spw_event {
  // The session. One that a peer began is heard of first here.
  uint64_t session;
  // The peer's queue pair.
  uint32_t peer_qpn;
  // 1: it is open. 0: it is gone, and so is its number.
  uint8_t is_up;
  // Whether the peer began it.
  uint8_t accepted;
  // The peer's IP address.
  char peer[48];
  // Why it is gone, and what is likely wrong.
  char reason[256];
} spw_event;

// Figures of a session since it began.
typedef struct spw_session_figures {
  // Segments sent for the first time.
  uint64_t segments_sent;
  // Segments sent again.
  uint64_t retransmitted;
  // Of them, those that the peer had.
  uint64_t spurious;
  // Segments received for the first time.
  uint64_t segments_received;
  // Segments received more than once.
  uint64_t duplicates;
  // Bytes of messages whose send is done.
  uint64_t bytes_sent;
  // Bytes of messages whose receive is done.
  uint64_t bytes_received;
  // The smoothed round trip in nanoseconds; 0 before the first.
  uint64_t round_trip_ns;
} spw_session_figures;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What went wrong last in this thread, and what to do about it. The text stays until the next error of this thread.
const char *spw_last_error(void);

// Opens a port; the endpoint goes to `*out`. The first call starts DPDK, once for the process.
int spw_open(const struct spw_config *config, struct spw_endpoint_t **out);

// Closes an endpoint. Buffers of posted receives are yours again. NULL is allowed. The end of the process closes its port, unless
// the endpoint is still open then.
void spw_close(struct spw_endpoint_t *endpoint);

// The largest message in bytes.
int spw_max_message(struct spw_endpoint_t *endpoint);

// Makes a queue pair that is ready to send and receive; its number goes to `*qpn`. Incoming messages must carry `qkey`.
int spw_qp_create(struct spw_endpoint_t *endpoint,
                  uint32_t qkey,
                  uint32_t send_depth,
                  uint32_t recv_depth,
                  uint32_t *qpn);

// Destroys a queue pair with its work. Buffers of its receives are yours again.
int spw_qp_destroy(struct spw_endpoint_t *endpoint, uint32_t qpn);

// Makes an address handle to an IP address, for which it waits at most `timeout_ms`; its number goes to `*ah`.
int spw_ah_create(struct spw_endpoint_t *endpoint,
                  const char *address,
                  uint32_t timeout_ms,
                  uint64_t *ah);

// Destroys an address handle.
int spw_ah_destroy(struct spw_endpoint_t *endpoint, uint64_t ah);

// Posts a send of `len` bytes, which are copied at once. SPW_ERROR_AGAIN is back-pressure: poll and try again.
int spw_post_send(struct spw_endpoint_t *endpoint,
                  const struct spw_send *send,
                  const void *data,
                  uintptr_t len);

// Posts a receive into `len` bytes at `buffer`: 40 bytes of GRH area, then the message. The memory is the endpoint's until the
// receive completes, or its queue pair or endpoint is gone.
int spw_post_recv(struct spw_endpoint_t *endpoint,
                  uint32_t qpn,
                  uint64_t wr_id,
                  void *buffer,
                  uintptr_t len);

// Moves packets, and takes up to `max` completions, oldest first; how many. To be called often: nothing moves, and no neighbour is
// answered, otherwise.
int spw_poll(struct spw_endpoint_t *endpoint,
             struct spw_completion *completions,
             uintptr_t max);

// Begins with reliable messages, once for an endpoint; the number of their queue pair, by which peers connect, goes to `*qpn`. With a
// configuration of NULL everything is as zeros leave it.
int spw_reliable_start(struct spw_endpoint_t *endpoint,
                       const struct spw_reliable_config *config,
                       uint32_t *qpn);

// Begins a session with the reliable endpoint at an IP address and queue pair; its number goes to `*session`. It is open, or refused,
// once spw_poll_event() says so.
int spw_connect(struct spw_endpoint_t *endpoint,
                const char *address,
                uint32_t qpn,
                uint64_t *session);

// Ends a session. What is not done yet is done with status 2, and spw_poll_event() says when it is gone.
int spw_disconnect(struct spw_endpoint_t *endpoint, uint64_t session);

// Sends a message of `len` bytes. The memory must stay, and not be written to, until the send is done or the endpoint closed.
// SPW_ERROR_AGAIN is back-pressure: poll and try again.
int spw_send_message(struct spw_endpoint_t *endpoint,
                     const struct spw_message *message,
                     const void *data,
                     uintptr_t len);

// Posts a receive of a message of up to `len` bytes. The memory is the endpoint's until the receive is done or the endpoint closed.
int spw_recv_message(struct spw_endpoint_t *endpoint,
                     const struct spw_message *message,
                     void *buffer,
                     uintptr_t len);

// Moves packets, as spw_poll() does, and takes up to `max` reliable messages that are done, oldest first; how many. To be called often.
int spw_poll_messages(struct spw_endpoint_t *endpoint,
                      struct spw_done *messages,
                      uintptr_t max);

// Takes the next event of a session: 1 if there was one, otherwise 0. Events wait until the messages that are done have been taken.
int spw_poll_event(struct spw_endpoint_t *endpoint,
                   struct spw_event *event);

// Figures of an open session.
int spw_session_stats(struct spw_endpoint_t *endpoint, uint64_t session, struct spw_session_figures *stats);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPRAYWIRE_H */
