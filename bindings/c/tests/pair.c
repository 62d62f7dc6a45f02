/*
 * Two endpoints of one process that reach each other through shared memory: what each function of the interface is for is asked of it. Ends
 * with 0 if all was as the header has it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <spraywire.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GRH 40
#define IS(a, b)                                                                                                        \
	do {                                                                                                            \
		long long a_ = (long long)(a), b_ = (long long)(b);                                                     \
		if (a_ != b_) {                                                                                         \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld (%s)\n", __FILE__, __LINE__, #a, a_, b_, spw_last_error()); \
			exit(1);                                                                                        \
		}                                                                                                       \
	} while (0)
#define TRUE(x) IS(!!(x), 1)

/* The client, and the server. */
static spw_endpoint_t *client, *server;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *poll_server(void *stop)
{
	while (!atomic_load((atomic_int *)stop))
		IS(spw_poll(server, NULL, 0), 0);
	return NULL;
}

/* The client's handle to the server, which answers meanwhile. */
static uint64_t handle(void)
{
	atomic_int stop = 0;
	pthread_t thread;
	uint64_t ah = 0;
	IS(pthread_create(&thread, NULL, poll_server, &stop), 0);
	int result = spw_ah_create(client, "192.0.2.1", 10000, &ah);
	atomic_store(&stop, 1);
	pthread_join(thread, NULL);
	IS(result, 0);
	return ah;
}

/* What `look` finds at an endpoint, while both are polled; it must come in time. */
static void await(int (*look)(spw_endpoint_t *, void *), spw_endpoint_t *of, void *found)
{
	for (double until = now() + 20; now() < until;) {
		if (look(of, found) == 1)
			return;
		spw_poll(client, NULL, 0);
		spw_poll(server, NULL, 0);
	}
	fprintf(stderr, "nothing came\n");
	exit(1);
}

static int one_completion(spw_endpoint_t *of, void *found)
{
	return spw_poll(of, found, 1);
}

static int one_message(spw_endpoint_t *of, void *found)
{
	return spw_poll_messages(of, found, 1);
}

static int one_event(spw_endpoint_t *of, void *found)
{
	return spw_poll_event(of, found);
}

/* The next completion of an endpoint. */
static spw_completion next(spw_endpoint_t *of)
{
	spw_completion done;
	await(one_completion, of, &done);
	return done;
}

/* Nothing comes at an endpoint. */
static void quiet(spw_endpoint_t *at)
{
	spw_completion done;
	for (double until = now() + 0.1; now() < until;) {
		spw_poll(client == at ? server : client, NULL, 0);
		IS(spw_poll(at, &done, 1), 0);
	}
}

static void raw(void)
{
	static uint8_t memory[4][GRH + 2000], text[2000];
	uint32_t from, to, small;
	memset(text, 'x', sizeof text);
	IS(spw_max_message(server), 1024);
	IS(spw_qp_create(server, 7, 1, 4, &to), 0);
	IS(to, 0x20000);
	IS(spw_qp_create(client, 9, 2, 1, &from), 0);
	IS(from, 0x30000);
	uint64_t ah = handle();
	spw_send send = { .wr_id = 5, .qpn = from, .ah = ah, .dst_qpn = to, .qkey = 7, .imm = 77, .has_imm = 1, .signaled = 1 };
	/* An immediate, and a completion at either side. */
	IS(spw_post_recv(server, to, 1, memory[0], GRH + 100), 0);
	IS(spw_post_send(client, &send, "abc", 3), 0);
	spw_completion done = next(client);
	TRUE(done.wr_id == 5 && done.qpn == from && done.status == 0 && !done.is_receive && done.byte_len == 3);
	done = next(server);
	TRUE(done.wr_id == 1 && done.qpn == to && done.status == 0 && done.is_receive && done.byte_len == GRH + 3);
	TRUE(done.src_qpn == from && done.has_imm && done.imm == 77);
	TRUE(!memcmp(memory[0] + GRH, "abc", 4));
	/* Neither an immediate nor a completion. */
	send.has_imm = send.signaled = 0;
	IS(spw_post_recv(server, to, 2, memory[1], GRH + 100), 0);
	IS(spw_post_send(client, &send, "de", 2), 0);
	done = next(server);
	TRUE(done.wr_id == 2 && !done.has_imm && done.imm == 0);
	quiet(client);
	/* Another Q_Key than the queue pair's is dropped, and a receive too few. */
	send.qkey = 9;
	IS(spw_post_recv(server, to, 3, memory[2], GRH + 10), 0);
	IS(spw_post_send(client, &send, "x", 1), 0);
	quiet(server);
	send.qkey = 7;
	/* As deep as it was made; longer than the MTU is another error. */
	IS(spw_post_send(client, &send, text, 1025), -SPW_ERROR_ARGUMENT);
	send.signaled = 1;
	for (int i = 0; i < 2; i++)
		IS(spw_post_send(client, &send, text, 9), 0);
	IS(spw_post_send(client, &send, text, 9), -SPW_ERROR_AGAIN);
	/* The places for completions are as many as was said, and no more are written. */
	spw_completion both[3];
	memset(both, 0xee, sizeof both);
	IS(spw_poll(client, both, 0), 0);
	IS(spw_poll(client, both, 1), 1);
	IS(both[1].wr_id, 0xeeeeeeeeeeeeeeee);
	IS(spw_poll(client, both + 1, 1), 1);
	IS(spw_poll(client, both + 2, 1), 0);
	IS(next(server).wr_id, 3);
	/* The other one found no receive. A receive that is too short ends its queue pair, and what was posted after it is flushed. */
	IS(spw_post_recv(server, to, 10, memory[2], GRH + 8), 0);
	IS(spw_post_recv(server, to, 11, memory[3], GRH + 100), 0);
	memset(memory[2], 0xee, sizeof memory[2]);
	IS(spw_post_send(client, &send, text, 9), 0);
	IS(next(client).status, 0);
	done = next(server);
	TRUE(done.wr_id == 10 && done.status == 1 && memory[2][GRH] == 0xee);
	done = next(server);
	TRUE(done.wr_id == 11 && done.status == 2);
	/* Memory of a queue pair that is gone is not written. */
	IS(spw_qp_create(server, 7, 1, 2, &small), 0);
	IS(spw_post_recv(server, small, 12, memory[2], GRH + 100), 0);
	IS(spw_qp_destroy(server, small), 0);
	send.dst_qpn = small;
	send.signaled = 0;
	IS(spw_post_send(client, &send, text, 9), 0);
	quiet(server);
	TRUE(memory[2][GRH] == 0xee);
	IS(spw_post_recv(server, small, 12, memory[2], GRH + 100), -SPW_ERROR_STATE);
	/* Handles and queue pairs that are gone. */
	IS(spw_ah_destroy(client, ah), 0);
	IS(spw_ah_destroy(client, ah), -SPW_ERROR_STATE);
	IS(spw_post_send(client, &send, text, 9), -SPW_ERROR_STATE);
	IS(spw_qp_destroy(client, from), 0);
	IS(spw_qp_destroy(server, to), 0);
	/* Nobody answers: not for longer than was said. */
	double start = now();
	IS(spw_ah_create(client, "192.0.2.77", 200, &ah), -SPW_ERROR_TIMED_OUT);
	TRUE(now() - start >= 0.2 && now() - start < 3);
}

/* The next reliable message that is done with at an endpoint, and the next event. */
static spw_done done_at(spw_endpoint_t *of)
{
	spw_done done;
	await(one_message, of, &done);
	return done;
}

static spw_event event_at(spw_endpoint_t *of)
{
	spw_event event;
	await(one_event, of, &event);
	return event;
}

static void reliable(void)
{
	static uint8_t text[200000], place[3][200000];
	uint32_t at, from, first;
	for (size_t i = 0; i < sizeof text; i++)
		text[i] = i * 7 + i / 256;
	spw_reliable_config listens = { .qpn = 0x20005, .qkey = 12, .listen = 1 }, plain = { .qkey = 12, .paths = 3 };
	IS(spw_reliable_start(server, &listens, &at), 0);
	IS(at, 0x20005);
	IS(spw_reliable_start(client, &plain, &from), 0);
	uint64_t ours;
	IS(spw_connect(client, "192.0.2.1", at, &ours), 0);
	spw_event up = event_at(client), accepted = event_at(server);
	TRUE(up.is_up && !up.accepted && up.session == ours && up.peer_qpn == at && !strcmp(up.peer, "192.0.2.1"));
	TRUE(accepted.is_up && accepted.accepted && accepted.peer_qpn == from && !strcmp(accepted.peer, "192.0.2.2"));
	uint64_t theirs = accepted.session;
	/* Receives are told apart by communicator and tag. */
	for (int i = 0; i < 3; i++) {
		spw_message receive = { .wr_id = i, .session = theirs, .tag = i == 1, .communicator = i == 2 };
		IS(spw_recv_message(server, &receive, place[i], sizeof place[i]), 0);
	}
	for (int i = 2; i >= 0; i--) {
		spw_message send = { .wr_id = 20 + i, .session = ours, .tag = i == 1, .communicator = i == 2 };
		IS(spw_send_message(client, &send, text, 50000 * i), 0);
	}
	int seen = 0;
	for (int i = 0; i < 3; i++) {
		spw_done done = done_at(server);
		TRUE(done.wr_id < 3 && done.is_receive && done.status == 0 && done.session == theirs);
		IS(done.len, 50000 * done.wr_id);
		IS(done.tag, done.wr_id == 1);
		IS(done.communicator, done.wr_id == 2);
		TRUE(!memcmp(place[done.wr_id], text, done.len) && place[done.wr_id][done.len] == 0);
		seen |= 1 << done.wr_id;
	}
	IS(seen, 7);
	for (int i = 0; i < 3; i++) {
		spw_done done = done_at(client);
		TRUE(done.wr_id >= 20 && done.wr_id < 23 && !done.is_receive && done.status == 0 && done.session == ours);
	}
	spw_session_figures figures;
	IS(spw_session_stats(client, ours, &figures), 0);
	TRUE(figures.bytes_sent == 150000 && figures.bytes_received == 0 && figures.segments_received == 0);
	TRUE(figures.segments_sent >= 150 && figures.round_trip_ns > 0);
	IS(spw_session_stats(server, theirs, &figures), 0);
	TRUE(figures.bytes_sent == 0 && figures.bytes_received == 150000 && figures.segments_received >= 150);
	/* Longer than its receive; what a class must not say; one place, one message. */
	spw_message message = { .wr_id = 30, .session = theirs };
	IS(spw_recv_message(server, &message, place[0], 10), 0);
	message = (spw_message){ .wr_id = 31, .session = ours, .traffic_class = 4 };
	IS(spw_send_message(client, &message, text, 11), -SPW_ERROR_ARGUMENT);
	message.traffic_class = 1;
	IS(spw_send_message(client, &message, text, 11), 0);
	memset(place[0], 0xee, 100);
	spw_done done = done_at(server);
	TRUE(done.wr_id == 30 && done.status == 1 && place[0][10] == 0xee);
	done_at(client);
	/* The end: what is not done yet is told before the session is gone, and that says why. */
	message = (spw_message){ .wr_id = 40, .session = theirs };
	IS(spw_recv_message(server, &message, place[0], 10), 0);
	IS(spw_disconnect(client, ours), 0);
	spw_event event;
	spw_done last[2];
	memset(last, 0xee, sizeof last);
	for (double until = now() + 20; spw_session_stats(server, theirs, &figures) == 0 && now() < until;) {
		spw_poll(client, NULL, 0);
		spw_poll(server, NULL, 0);
	}
	IS(spw_poll_event(server, &event), 0);
	IS(spw_poll_messages(server, last, 1), 1);
	TRUE(last[0].wr_id == 40 && last[0].status == 2 && last[0].session == theirs && last[1].wr_id == 0xeeeeeeeeeeeeeeee);
	event = event_at(server);
	TRUE(!event.is_up && event.session == theirs && strstr(event.reason, "closed by the peer"));
	event = event_at(client);
	TRUE(!event.is_up && event.session == ours && !strcmp(event.reason, "closed"));
	IS(spw_send_message(client, &message, text, 1), -SPW_ERROR_STATE);
	IS(spw_recv_message(server, &message, text, 1), -SPW_ERROR_STATE);
	TRUE(strstr(spw_last_error(), "there is no session"));
	/* Numbers are not used again. The other side listens to nobody; and with another Q_Key nobody answers. */
	IS(spw_connect(client, "192.0.2.1", at, &ours), 0);
	accepted = event_at(server);
	TRUE(accepted.is_up && accepted.session != theirs && event_at(client).session == ours && ours != up.session);
	uint64_t back;
	IS(spw_disconnect(server, accepted.session), 0);
	TRUE(!event_at(server).is_up && !event_at(client).is_up);
	IS(spw_connect(server, "192.0.2.2", from, &back), 0);
	event = event_at(server);
	TRUE(!event.is_up && event.session == back && strstr(event.reason, "refused"));
	IS(spw_qp_create(client, 1, 1, 1, &first), 0);
	IS(spw_qp_destroy(client, first), 0);
}

int main(int argc, char **argv)
{
	TRUE(argc == 2);
	char port[2][200];
	spw_config config = { .mtu = 1200 };
	for (int i = 0; i < 2; i++) {
		snprintf(port[i], sizeof port[i], "net_memif%d,role=%s,id=0,socket=%s", i, i ? "client" : "server", argv[1]);
		config.port = port[i];
		config.addresses = i ? "192.0.2.2" : "192.0.2.1";
		config.first_qpn = i ? 0x30000 : 0x20000;
		config.wait_seconds = i;
		IS(spw_open(&config, i ? &client : &server), 0);
	}
	raw();
	reliable();
	spw_close(client);
	/* With nobody there, the wait for a server ends when it was said to. */
	spw_endpoint_t *alone = NULL;
	char nowhere[250];
	snprintf(nowhere, sizeof nowhere, "net_memif2,role=client,id=0,socket=%s-none", argv[1]);
	config.port = nowhere;
	double start = now();
	IS(spw_open(&config, &alone), -SPW_ERROR_OPEN);
	TRUE(!alone && now() - start < 6);
	spw_close(server);
	return 0;
}
